//! Properties of all formats, reasoning, and the time at which text is told.

use proptest::prelude::{Just, Strategy, any, prop, proptest};
use proptest::{prop_assert_eq, prop_oneof};

use super::testing::{calls, characters, check, parse, texts};
use super::{Delta, Forced, OutputParser, ReasoningTags, ToolFormat};

fn formats() -> impl Strategy<Value = ToolFormat> {
    prop_oneof![
        Just(ToolFormat::None),
        Just(ToolFormat::Hermes),
        Just(ToolFormat::Llama3Json),
        Just(ToolFormat::Mistral),
        Just(ToolFormat::Forced(Forced::Named { name: "f".to_owned() })),
        Just(ToolFormat::Forced(Forced::Required)),
        Just(ToolFormat::Forced(Forced::RequiredOne)),
    ]
}

fn tags() -> impl Strategy<Value = Option<ReasoningTags>> {
    prop::option::of(any::<bool>().prop_map(ReasoningTags::think))
}

/// Texts out of the parts of calls, whole and broken.
fn replies() -> impl Strategy<Value = String> {
    const PARTS: [&str; 44] = [
        "<tool_call>",
        "</tool_call>",
        "<tool_call>\n",
        "\n</tool_call>",
        "<tool",
        "</tool_",
        "<",
        "<think>",
        "</think>",
        "</thi",
        "<|python_tag|>",
        "<|py",
        "[TOOL_CALLS]",
        "[TOOL_",
        "[ARGS]",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        ";",
        " ",
        "\n",
        "f",
        "\"",
        "\\",
        "\\u00e9",
        "あ",
        "1",
        "-0.5e3",
        "null",
        "true",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"name\":\"g\",\"parameters\":{}}",
        "{\"arguments\": [1, {\"b\": null}], \"name\": \"h\"}",
        "{\"name\": \"i\"}",
        "\"name\": ",
        "\"arguments\": ",
        "{\"a\": \"x\\\"}\"}",
        "\"{\\\"a\\\": \\\"\\\\u3042\\\"}\"",
        "f{\"a\": 1}",
        "Hello. ",
        "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 2}}",
    ];
    prop::collection::vec(prop::sample::select(PARTS.as_slice()), 0..14)
        .prop_map(|parts| parts.concat())
}

/// Replies that are calls for the most part.
fn calls_in_a_row() -> impl Strategy<Value = String> {
    let call = prop::sample::select(
        [
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [\"</tool_call>\", 1]}}\n</tool_call>",
            "<tool_call>{\"arguments\": {\"b\": 2}, \"name\": \"g\"}</tool_call>\n",
            "{\"name\": \"f\", \"parameters\": {\"a\": 1.5}}; ",
            "[TOOL_CALLS]f{\"a\": {}}",
            "[TOOL_CALLS]f[ARGS]{\"a\": {}}",
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]",
            "[{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"},{\"name\":\"g\",\"arguments\":{}}]",
            " and ",
        ]
        .as_slice(),
    );
    prop::collection::vec(call, 0..5).prop_map(|parts| parts.concat())
}

fn cut<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut at: Vec<usize> = cuts.iter().map(|cut| ends[cut.index(ends.len())]).collect();
    at.extend([0, text.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    #[test]
    fn the_cuts_of_a_reply_change_nothing(
        tools in formats(),
        tags in tags(),
        text in prop_oneof![replies(), calls_in_a_row(), ".{0,40}"],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = parse(&tools, tags, [text.as_str()]);
        // The order of the deltas is the same too.
        prop_assert_eq!(&show(&whole), &show(&parse(&tools, tags, cut(&text, &cuts))));
        prop_assert_eq!(&show(&whole), &show(&parse(&tools, tags, characters(&text))));
    }

    #[test]
    fn the_same_pieces_give_the_same_deltas(
        tools in formats(),
        tags in tags(),
        parts in prop::collection::vec(replies(), 0..4),
    ) {
        let run = || {
            let mut parser = OutputParser::new(tools.clone(), tags);
            let mut all: Vec<_> = parts.iter().map(|part| show(&parser.push(part))).collect();
            all.push(show(&parser.end()));
            all
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn a_reply_without_calls_and_reasoning_is_content_unchanged(
        tools in formats(),
        text in prop_oneof![replies(), calls_in_a_row(), ".{0,40}"],
    ) {
        let deltas = parse(&tools, None, [text.as_str()]);
        // The beginning of a forced call is text of the grammar.
        let is_cut = matches!(tools, ToolFormat::Forced(_)) && texts(&deltas).0.is_empty();
        if calls(&deltas).is_empty() && !is_cut {
            prop_assert_eq!(texts(&deltas), (text, String::new()));
        }
    }

    #[test]
    fn the_text_around_calls_is_content(
        before in "[a-z ]{0,8}",
        between in "[a-z ]{0,8}",
        after in "[a-z ]{0,8}",
        tools in prop_oneof![Just(ToolFormat::Hermes), Just(ToolFormat::Mistral)],
    ) {
        let call = match tools {
            ToolFormat::Hermes => "<tool_call>{\"name\": \"f\"}</tool_call>",
            _ => "[TOOL_CALLS]f{}",
        };
        let text = format!("{before}{call}{between}{call}{after}");
        let content = format!("{}{}{}", before.trim_end(), between.trim(), after.trim_start());
        check(&tools, &text, &content, &[("f", "{}"), ("f", "{}")]);
    }
}

/// Returns the deltas in full, which their own Debug omits.
fn show(deltas: &[Delta]) -> Vec<String> {
    let show = |delta: &Delta| match delta {
        Delta::Content(text) => format!("content {text}"),
        Delta::Reasoning(text) => format!("reasoning {text}"),
        Delta::CallBegin { index, name } => format!("call {index} {name}"),
        Delta::CallArguments { index, text } => format!("arguments {index} {text}"),
    };
    deltas.iter().map(show).collect()
}

/// Checks the deltas of each push; the last are those of the end.
#[track_caller]
fn check_steps(
    tools: ToolFormat,
    tags: Option<ReasoningTags>,
    steps: &[(&str, &[&str])],
    end: &[&str],
) {
    let mut parser = OutputParser::new(tools, tags);
    for (text, told) in steps {
        assert_eq!(&show(&parser.push(text)), told, "after {text:?}");
    }
    assert_eq!(show(&parser.end()), end, "at the end");
}

#[test]
fn only_the_beginning_of_a_tag_is_held_back() {
    check_steps(
        ToolFormat::Hermes,
        None,
        &[
            ("Hello", &["content Hello"]),
            (" ", &[]),
            ("world <", &["content  world"]),
            ("b> 1", &["content  <b> 1"]),
            ("[TOOL", &["content [TOOL"]),
            ("\n<tool_", &[]),
            ("x", &["content \n<tool_x"]),
            (" <tool_call", &[]),
        ],
        &["content  <tool_call"],
    );
    check_steps(ToolFormat::None, None, &[("<tool_call> ", &["content <tool_call> "])], &[]);
    check_steps(
        ToolFormat::Mistral,
        None,
        &[("a[", &["content a"]), ("b[TOOL", &["content [b"]), ("S", &["content [TOOLS"])],
        &[],
    );
    check_steps(
        ToolFormat::Llama3Json,
        None,
        &[("<|py", &[]), ("x", &["content <|pyx"]), ("{", &["content {"])],
        &[],
    );
}

#[test]
fn arguments_are_told_while_they_come() {
    check_steps(
        ToolFormat::Hermes,
        None,
        &[
            ("<tool_call>{\"name\": \"f\", ", &[]),
            ("\"arguments\": {", &["call 0 f", "arguments 0 {"]),
            ("\"a", &["arguments 0 \"a"]),
            ("\": 1}", &["arguments 0 \": 1}"]),
            ("}</tool_call>\n<tool_call>{\"name\": \"g\"", &[]),
            ("}", &["call 1 g", "arguments 1 {}"]),
        ],
        &[],
    );
    check_steps(
        ToolFormat::Forced(Forced::Required),
        None,
        &[
            ("[{\"name\":\"f\",\"arguments\":\"{\\\"a", &["call 0 f", "arguments 0 {\"a"]),
            ("\\", &[]),
            ("\"", &["arguments 0 \""]),
        ],
        &[],
    );
}

#[track_caller]
fn check_reasoning(tags: ReasoningTags, text: &str, reasoning: &str, content: &str) {
    for parts in [vec![text], characters(text)] {
        let deltas = parse(&ToolFormat::Hermes, Some(tags), parts);
        assert_eq!(texts(&deltas), (content.to_owned(), reasoning.to_owned()), "{text}");
    }
}

#[test]
fn reasoning_ends_at_its_closing_tag() {
    let check = |text, reasoning, content| {
        check_reasoning(ReasoningTags::think(false), text, reasoning, content);
    };
    check("<think>\nHm.\n</think>\n\nYes. ", "\nHm.\n", "Yes. ");
    check("\n <think></think>Yes", "", "Yes");
    check("<think>Hm</thin</think>Yes</think>", "Hm</thin", "Yes</think>");
    check("<think>Hm, <tool_call>", "Hm, <tool_call>", "");
    check("<think>Hm</thi", "Hm</thi", "");
    check("<think>Hm</think>\n", "Hm", "");
    check(" Yes <think>no</think>", "", " Yes <think>no</think>");
    check(" <thi", "", " <thi");
    check("", "", "");
}

#[test]
fn a_template_can_open_the_reasoning() {
    let check = |text, reasoning, content| {
        check_reasoning(ReasoningTags::think(true), text, reasoning, content);
    };
    check("Hm.</think>\nYes", "Hm.", "Yes");
    check("\n</think>\nYes", "\n", "Yes");
    check(" <think>Hm.</think>Yes", "Hm.", "Yes");
    check("<<think>Hm", "<<think>Hm", "");
    check("Hm", "Hm", "");
    check(" <th", " <th", "");
}

#[test]
fn calls_follow_reasoning_and_are_not_in_it() {
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let text = format!("<think>{call}</think>\n{call}");
    let deltas = parse(&ToolFormat::Hermes, Some(ReasoningTags::think(false)), [text.as_str()]);
    assert_eq!(show(&deltas), [&format!("reasoning {call}"), "call 0 f", "arguments 0 {}"]);
}

#[test]
fn a_forced_reply_has_no_reasoning() {
    let forced = ToolFormat::Forced(Forced::Named { name: "f".to_owned() });
    let deltas = parse(&forced, Some(ReasoningTags::think(true)), ["{}"]);
    assert_eq!(show(&deltas), ["call 0 f", "arguments 0 {}"]);
}

#[test]
fn debug_shows_nothing_of_the_reply() {
    let forced = Forced::Named { name: "canary".to_owned() };
    let mut parser = OutputParser::new(ToolFormat::Hermes, None);
    let call = "canary <tool_call>{\"name\": \"canary\", \"arguments\": \"canary\"}";
    let mut deltas = parser.push(call);
    deltas.push(Delta::Reasoning("canary".to_owned()));
    let shown = format!("{deltas:?} {parser:?} {:?}", ToolFormat::Forced(forced));
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("CallBegin(0)"), "{shown}");
}

#[test]
fn the_tokens_of_the_reasoning_are_counted_with_its_tags() {
    let count = |begun: bool, tokens: &[&str]| {
        let mut parser = OutputParser::new(ToolFormat::None, Some(ReasoningTags::think(begun)));
        tokens.iter().for_each(|token| drop(parser.push(token)));
        parser.reasoning_tokens()
    };
    assert_eq!(count(false, &["<think>", "Hm", ".", "</think>", "\n\n", "Yes", "."]), 4);
    assert_eq!(count(true, &["Hm", ".", "</think>Y", "es"]), 3);
    assert_eq!(count(false, &["Yes", "<think>", "."]), 0);
    assert_eq!(count(false, &["<th", "ink>", "Hm"]), 2);
    let mut parser = OutputParser::new(ToolFormat::Hermes, None);
    parser.push("<think>Hm");
    assert_eq!(parser.reasoning_tokens(), 0);
}
