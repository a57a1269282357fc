//! Tests that templates render as in transformers.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use nsbridge_handler::{ChatMessage, Error, TextInput, ToolCall};
use serde_json::json;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::{
    CallFormat, CallShape, Chat, ChatTemplate, DEFAULT, ReasoningFormat, TOOL_USE, Templates,
    TokenizerConfig,
};

fn default(source: &str) -> Templates {
    [(DEFAULT.to_owned(), source.to_owned())].into()
}

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, Error> {
    let config = json!({ "bos_token": { "content": "<s>" }, "eos_token": "</s>" });
    let config: TokenizerConfig = serde_json::from_value(config).unwrap();
    let messages: Vec<ChatMessage> =
        messages.iter().map(|(role, content)| ChatMessage::new(*role, *content)).collect();
    let noon = UNIX_EPOCH + Duration::from_secs(951_782_400);
    ChatTemplate::new(&default(source), &config).unwrap().render(&Chat::of(&messages), noon, 1000)
}

#[track_caller]
fn check(source: &str, expected: &str) {
    assert_eq!(
        render(source, &[("user", " ハロー & <b> "), ("assistant", "ok")]).unwrap(),
        expected
    );
}

#[test]
fn a_chat_template_of_llama_3_is_rendered() {
    check(
        "{{- bos_token }}\n{%- for message in messages %}\n    {{- '<|start_header_id|>' + \
         message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' \
         }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
         {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
        "<s><|start_header_id|>user<|end_header_id|>\n\nハロー & <b><|eot_id|><|start_header_id|>\
         assistant<|end_header_id|>\n\nok<|eot_id|><|start_header_id|>assistant\
         <|end_header_id|>\n\n",
    );
}

#[test]
fn blocks_are_trimmed_on_both_sides_and_python_methods_work() {
    check(
        "{% for message in messages %}\n  {% if message.role.startswith('u') %}\n\
         {{ message.content.strip().upper() }}\n  {% endif %}\n{% endfor %}\n{{ eos_token }}",
        "ハロー & <B>\n</s>",
    );
}

#[test]
fn generation_tags_leave_what_is_between_them() {
    check(
        "a {%- generation -%} b {%- endgeneration %} c{% generation %}d{% endgeneration %}e",
        "ab cde",
    );
}

#[test]
fn the_date_is_that_of_the_request() {
    check("{{ strftime_now('%d %b %Y') }}", "29 Feb 2000");
    check("{% if strftime_now is defined %}{{ strftime_now(\"%Y\") }}{% endif %}", "2000");
}

#[test]
fn json_is_written_as_python_writes_it() {
    check("{{ messages[0] | tojson }}", "{\"role\": \"user\", \"content\": \" ハロー & <b> \"}");
    check(
        "{{ [1, [true, none]] | tojson(indent=2) }}",
        "[\n  1,\n  [\n    true,\n    null\n  ]\n]",
    );
}

#[test]
fn tools_are_defined_as_none() {
    check("{% if tools is defined and tools is none %}none{% endif %}", "none");
}

#[test]
fn a_template_may_refuse_a_chat() {
    let source =
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}";
    let error = render(source, &[("user", "x")]).unwrap_err();
    assert!(error.to_string().contains("no system"), "{error}");
}

/// Renders "Hi" by the templates of a configuration, with a tool or without.
fn by_name(config: serde_json::Value, has_tool: bool) -> Result<String, String> {
    let config: TokenizerConfig = serde_json::from_value(config).unwrap();
    let template = ChatTemplate::new(&config.templates(), &config).unwrap();
    let mut input =
        TextInput { messages: vec![ChatMessage::new("user", "Hi")], ..TextInput::default() };
    if has_tool {
        input.tools = vec![json!({ "type": "function", "function": { "name": "f" } })];
    }
    let chat = template.chat(&input).unwrap();
    template.render(&chat, UNIX_EPOCH, 1000).map_err(|error| error.to_string())
}

#[test]
fn tools_have_the_template_of_that_name() {
    let tools =
        json!({ "name": TOOL_USE, "template": "T{{ tools | length }}{{ messages[0].content }}" });
    let plain = json!({ "name": DEFAULT, "template": "D{{ messages[0].content }}" });
    let both = json!({ "chat_template": [plain, tools] });
    assert_eq!(by_name(both.clone(), false).unwrap(), "DHi");
    assert_eq!(by_name(both, true).unwrap(), "T1Hi");
    assert_eq!(by_name(json!({ "chat_template": [plain] }), true).unwrap(), "DHi");
    let alone = json!({ "chat_template": [tools] });
    assert_eq!(by_name(alone.clone(), true).unwrap(), "T1Hi");
    assert!(by_name(alone, false).unwrap_err().contains("with tools alone"));
}

#[test]
fn special_tokens_are_texts_or_undefined() {
    let template = "{{ bos_token }}|{{ pad_token }}|{{ image_token }}|{{ eos_token is defined }}";
    let config = json!({
        "chat_template": template, "bos_token": null, "pad_token": { "content": "<pad>" },
        "extra_special_tokens": { "image_token": "<image>" }
    });
    assert_eq!(by_name(config, false).unwrap(), "|<pad>|<image>|False");
    let mut config: TokenizerConfig =
        serde_json::from_value(json!({ "eos_token": "</s>" })).unwrap();
    let map = json!({ "bos_token": "<s>", "eos_token": "<end>", "additional_special_tokens": [] });
    config.add_special_tokens(map.as_object().unwrap().clone());
    assert_eq!(json!(config.special()), json!({ "bos_token": "<s>", "eos_token": "</s>" }));
    let alone: TokenizerConfig =
        serde_json::from_value(json!({ "bos_token": "<s>", "add_bos_token": null })).unwrap();
    assert_eq!(alone.prompt_start(), None, "tokenizer.json decides");
}

#[test]
fn calls_have_the_form_that_the_template_takes() {
    let shape = |source: &str| read(source).probed();
    let each = |body: &str| format!("{{% for m in messages %}}{body}{{% endfor %}}");
    // A null is told from an empty text by a test, as in DeepSeek's templates.
    let tested = each("{% if m.content is none %}call{% else %}{{ m.content }}{% endif %}");
    assert_eq!(shape(&tested), CallShape { null_content: true, text_arguments: false });
    assert_eq!(shape(&each("{{ m.content }}")), CallShape::default(), "None would be written");
    assert_eq!(shape(&each("{{ m.content | trim }}")), CallShape::default(), "trim refuses none");
    let text = each("{% for c in m.tool_calls %}{{ 'a' + c.function.arguments }}{% endfor %}");
    assert!(shape(&text).text_arguments);
    let object = each("{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}");
    assert!(!shape(&object).text_arguments);
}

#[test]
fn formats_are_found_from_the_template() {
    let calls = "{% for m in messages %}{% for call in m.tool_calls %}<tool_call>\n{{ call.function | tojson \
                 }}\n</tool_call>{% endfor %}{% endfor %}";
    for (source, expected) in [
        (calls.to_owned(), (Some(CallFormat::Hermes), None)),
        (
            format!("{calls}<think>\n"),
            (Some(CallFormat::Hermes), Some(ReasoningFormat::ThinkBegun)),
        ),
        (
            "{{ messages[0].content.split('</think>')[-1] }}".to_owned(),
            (None, Some(ReasoningFormat::Think)),
        ),
        ("{{ messages[0].content }}".to_owned(), (None, None)),
        // A template that refuses the conversation shows nothing.
        ("{{ raise_exception('no') }}".to_owned(), (None, None)),
    ] {
        let template = ChatTemplate::new(&default(&source), &TokenizerConfig::default()).unwrap();
        let found = template.formats();
        assert_eq!((found.calls, found.reasoning), expected, "{source}");
    }
}

#[test]
fn tests_filters_and_methods_are_jinja2s() {
    for (source, expected) in [
        (
            "{{ none is iterable }} {{ '' is sequence }} {{ {} is sequence }} {{ x | length }}",
            "False True True 0",
        ),
        ("{{ 'a-b-c'.rsplit('-', 1) | join('+') }} {{ 'ab'.removeprefix('a') }}", "a-b+c b"),
        (
            "{{ 'a=b'.partition('=') | join(',') }} {{ 'a=b=c'.rpartition('=') | first }}",
            "a,=,b a=b",
        ),
        (
            "{{ '7'.zfill(3) }} {{ '-7'.zfill(3) }} {{ 'a'.ljust(3, '.') }} {{ 'ab'.center(5, '*') }}",
            "007 -07 a.. **ab*",
        ),
        (
            "{{ 'banana'.index('n') }} {{ [3, 4].index(4) }} {{ 'x' | int }} {{ '7' | int }}",
            "2 1 0 7",
        ),
        ("{{ 1e20 }} {{ 0.1 }} {{ 2.0 }} {{ 1e-7 }} {{ 3 }}", "1e+20 0.1 2.0 1e-07 3"),
        ("{{ 'a b  c' | wordcount }} {{ '<b>x</b>  y' | striptags }}", "3 x y"),
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}",
            "{\"a\":\"\\u00e9\",\"b\":1}",
        ),
        ("{{ {'x': 1e-7} | tojson }} {{ [] | tojson(indent=2) }}", "{\"x\": 1e-07} []"),
    ] {
        check(source, expected);
    }
}

/// The expected texts are those of jinja2 3.1.6.
#[test]
fn what_few_templates_use_is_jinja2s_too() {
    for (source, expected) in [
        ("{{ {'a': 1e22} }} {{ [1e-7, 0.5, 2.0] }}", "{'a': 1e+22} [1e-07, 0.5, 2.0]"),
        (
            "{{ [\"a'b\", 'é', true, none, {'k': [1.0]}, (1, 'x'), {}, []] }}",
            "[\"a'b\", 'é', True, None, {'k': [1.0]}, (1, 'x'), {}, []]",
        ),
        (
            "{{ 'a b&c/d~é' | urlencode }} {{ {'a': 'b c/%', 'd': 1} | urlencode }}",
            "a%20b%26c/d~%C3%A9 a=b+c%2F%25&d=1",
        ),
        ("{{ 'ab.txt'.removesuffix('.txt') }} {{ 'ab'.removesuffix('x') }}", "ab ab"),
        ("{{ 'banana'.rindex('an') }} {{ [1, 2, 1].count(1) }} {{ [].count(1) }}", "3 2 0"),
        ("{{ 'a'.rjust(3, '.') }} {{ 'ab'.rjust(1) }}", "..a ab"),
        ("{{ 'Straße ÄÖ'.casefold() }} {{ 'aB ß'.swapcase() }}", "strasse äö Ab SS"),
        ("{{ 'a\\tbc\\td'.expandtabs(4) }}|{{ '\\t'.expandtabs() }}|", "a   bc  d|        |"),
        (
            "{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }}",
            "foo... foo ba...",
        ),
        (
            "{{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(9, end='..', \
             leeway=0) }}",
            "foo bar baz qux foo..",
        ),
        (
            "{{ 1 | filesizeformat }} {{ 1000 | filesizeformat }} {{ 1048576 | filesizeformat(true) \
             }}",
            "1 Byte 1.0 kB 1.0 MiB",
        ),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% set j = joiner('|') %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}", "1|2|3"),
        (
            "{{ cycler is callable }} {{ 'a' is callable }} {{ {} is callable }} {{ none is callable \
             }}",
            "True False False False",
        ),
        (
            "[{{ 'ab' | center(5) }}] [{{ 'abc' | center(4) }}] {{ 'a' | center | length }}",
            "[  ab ] [abc ] 80",
        ),
        ("{{ '%s-%d' | format('a', 3) }}", "a-3"),
    ] {
        check(source, expected);
    }
}

fn read(source: &str) -> ChatTemplate {
    ChatTemplate::new(&default(source), &TokenizerConfig::default()).unwrap()
}

/// Found by mutations of GGUF files: the end of a block overlapped its beginning.
#[test]
fn a_block_without_content_is_an_error_of_the_template() {
    for source in ["{%}", "a {%}{% generation %}", "{%", "{%%}", "{%}%}"] {
        let read = ChatTemplate::new(&default(source), &TokenizerConfig::default());
        assert!(read.is_err(), "{source}");
    }
}

/// Template with 10^15 iterations.
const ENDLESS: &str = "{% for a in range(100000) %}{% for b in range(100000) %}\
     {% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}";

#[test]
fn m7_a_template_that_runs_for_ever_is_refused_when_it_is_loaded() {
    let error = read(ENDLESS).check().unwrap_err().to_string();
    assert!(error.contains("the chat template") && error.contains("5000000"), "{error}");
    let error = read("{% for a in range(100000) %}hello{% endfor %}").check().unwrap_err();
    assert!(error.to_string().contains("65536 bytes"), "{error}");
    // A template that refuses such a chat loads; the error goes to the request.
    assert!(read("{{ raise_exception('no system') }}").check().is_ok());
    assert!(read("{% for m in messages %}{{ m.content }}{% endfor %}").check().is_ok());
}

#[test]
fn m7_a_template_that_runs_for_ever_for_some_chats_refuses_them() {
    let source = format!("{{% if messages[0].content == 'x' %}}{ENDLESS}{{% endif %}}");
    let error = render(&source, &[("user", "x")]).unwrap_err();
    assert!(error.to_string().contains("too much work"), "{error}");
    assert_eq!(render(&source, &[("user", "y")]).unwrap(), "");
    let source = "{% for m in messages %}{{ m.content * 100 }}{% endfor %}";
    let error = render(source, &[("user", "eleven more")]).unwrap_err();
    assert!(error.to_string().contains("more than 1000 bytes"), "{error}");
}

/// Renders the chat of a request by a template.
fn rendered(source: &str, input: &serde_json::Value) -> Result<String, String> {
    let input: TextInput = serde_json::from_str(&input.to_string()).unwrap();
    let template = read(source);
    let chat = template.chat(&input).map_err(|error| error.to_string())?;
    template.render(&chat, UNIX_EPOCH, 1000).map_err(|error| error.to_string())
}

#[test]
fn tools_calls_and_variables_reach_the_template() {
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {} } });
    let call = ToolCall::new("1", "f", r#"{"x": 1}"#);
    let asks = ChatMessage::new("assistant", "").calls(vec![call]);
    let mut input = json!({ "messages": [asks], "tools": [tool] });
    let source = "{% if tools is not none %}{{ tools[0].function.name }}{% endif %}\
         {% for c in messages[0].tool_calls %}{{ c.function.arguments.x + 1 }}{% endfor %}\
         {{ enable_thinking }} {{ reasoning_effort }} {{ add_generation_prompt }}";
    assert_eq!(rendered(source, &input).unwrap(), "f2  True");
    input["chat_template_kwargs"] = json!({ "enable_thinking": false });
    input["reasoning_effort"] = "low".into();
    input["add_generation_prompt"] = false.into();
    assert_eq!(rendered(source, &input).unwrap(), "f2False low False");
    input["chat_template_kwargs"] = json!({ "tools": [] });
    assert!(rendered(source, &input).unwrap_err().contains("must not set `tools`"));
    let none = json!({ "messages": [{ "role": "user", "content": "" }] });
    assert_eq!(rendered("{{ tools is none }}{{ documents is none }}", &none).unwrap(), "TrueTrue");
}

#[test]
fn the_last_message_goes_on_where_its_text_ends() {
    let source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}\
         {% if add_generation_prompt %}<{% endif %}";
    let chat = |last: &str| {
        json!({ "messages": [{ "role": "user", "content": "Go on" },
                             { "role": "assistant", "content": last }],
                "continue_final_message": true })
    };
    assert_eq!(rendered(source, &chat("Once a ")).unwrap(), "[Go on][Once a");
    assert_eq!(rendered("{{ messages[1].content }}!", &chat("Once a ")).unwrap(), "Once a ");
    let shown = "needs a last message whose text";
    assert!(rendered(source, &chat(" ")).unwrap_err().contains(shown));
    assert!(rendered("x", &chat("Once")).unwrap_err().contains(shown));
    let mut both = chat("Once");
    both["add_generation_prompt"] = true.into();
    assert!(rendered(source, &both).unwrap_err().contains("to be false"));
}

/// Texts of the warnings that a piece of code logs.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut log = self.0.lock().unwrap();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            writeln!(log, "{field}={value:?}").unwrap();
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_template_that_refuses_a_plain_conversation_is_a_warning() {
    let logged = |source: &str| {
        let log = Warnings::default();
        tracing::subscriber::with_default(log.clone(), || read(source).check().unwrap());
        let log = log.0.lock().unwrap();
        log.clone()
    };
    let log = logged("{{ raise_exception('no chats here') }}");
    assert!(log.contains("refuses a plain conversation"), "{log}");
    assert!(log.contains("no chats here"), "{log}");
    assert_eq!(logged("{{ messages[0].content }}"), "");
    // One that wants a system prompt refuses some of the conversations alone.
    let wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}";
    assert_eq!(logged(wants), "");
}
