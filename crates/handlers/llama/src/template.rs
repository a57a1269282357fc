//! Chat template of a model, which renders messages into a prompt.

mod capped;
mod chat;

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value, context};
use nsbridge_handler::{ChatMessage, Error, Model, Result};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use self::capped::Capped;
pub(crate) use self::chat::Chat;
use crate::config::within;
use crate::date::strftime;
use crate::error::LoadError;
use crate::limits::{FEW_BYTES, INDENT, TEMPLATE_FUEL};
use crate::panics::caught;

const NAME: &str = "chat";

const FILE: &str = "chat_template.jinja";

/// Chat template with the dialect of Jinja that transformers provides to templates.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// Reads the template from `chat_template.jinja`, where transformers 5 writes it, or else from
    /// the tokenizer's configuration, which comes from `file`.
    pub(crate) fn read(
        model: &Model,
        tokenizer: &TokenizerConfig,
        file: &str,
    ) -> Result<Option<Self>, LoadError> {
        let path = within(model, FILE);
        let (source, path) = match model.read_optional(FILE).map_err(LoadError::read)? {
            Some(text) => (Some(String::from_utf8(text).map_err(LoadError::parse(&path))?), path),
            None => (tokenizer.chat_template(), within(model, file)),
        };
        let template = source.map(|source| Self::new(&source, tokenizer));
        let template = template.transpose().map_err(LoadError::parse(path))?;
        template.as_ref().map_or(Ok(()), Self::check)?;
        Ok(template)
    }

    /// Renders a short conversation, so that an endless template fails at load time and not in a
    /// request.
    ///
    /// # Errors
    ///
    /// Returns an error if the template takes too much work or writes too much. Its own errors
    /// about the messages are ignored, since some templates refuse a chat without a system prompt,
    /// or with one.
    fn check(&self) -> Result<(), LoadError> {
        let chat = ["user", "assistant", "user"].map(|role| ChatMessage::new(role, "hello"));
        match self.written(&Chat::of(&chat), UNIX_EPOCH, FEW_BYTES) {
            Err(Fault::Work | Fault::Long) => Err(LoadError::unsupported(
                "the chat template",
                "more than a short conversation may take",
                format!("{TEMPLATE_FUEL} instructions and {FEW_BYTES} bytes at most"),
            )),
            Ok(_) | Err(Fault::Said(_)) => Ok(()),
        }
    }

    fn new(source: &str, tokenizer: &TokenizerConfig) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment
            .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_filter("tojson", to_json);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.add_template_owned(NAME, without_generation_tags(source))?;
        let (bos, eos) = (tokenizer.bos().map(Into::into), tokenizer.eos().map(Into::into));
        Ok(Self { environment, bos, eos })
    }

    /// Renders the prompt for the model's next turn, of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error with a sentence for the caller.
    pub(crate) fn render(
        &self,
        chat: &Chat,
        submitted_at: SystemTime,
        most: usize,
    ) -> Result<String> {
        let rendered = self.written(chat, submitted_at, most).map_err(|fault| {
            Error::bad_input(match fault {
                Fault::Work => "`messages` take too much work in the model's chat template".into(),
                Fault::Long => format!(
                    "`messages` have more than {most} bytes in the model's chat template, the most \
                     for its context"
                ),
                Fault::Said(why) => {
                    format!("`messages` do not fit the model's chat template: {why}")
                }
            })
        })?;
        chat.cut(rendered)
    }

    fn written(&self, chat: &Chat, submitted_at: SystemTime, most: usize) -> Result<String, Fault> {
        let today = move |format: String| strftime(&format, submitted_at);
        let mut out = Capped::new(most);
        // Templates ask whether there are tools by `if tools` or by `tools is not none`.
        let tools = (!chat.tools.is_empty()).then(|| Value::from(Serde(&chat.tools)));
        let chat = context! {
            messages => Value::from(Serde(&chat.messages)),
            add_generation_prompt => chat.turn,
            bos_token => self.bos.as_deref(),
            eos_token => self.eos.as_deref(),
            tools,
            strftime_now => Value::from_function(today),
            ..context! {
                ..Value::from(Serde(&chat.variables)),
                ..context! { documents => () }
            }
        };
        let rendered = caught(|| {
            let template = self.environment.get_template(NAME)?;
            template.render_captured_to(chat, &mut out).map(drop)
        });
        match rendered.map_err(|_| Fault::Said("it cannot render them".to_owned()))? {
            Ok(()) => out.text().ok_or(Fault::Long),
            Err(_) if out.is_full() => Err(Fault::Long),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(Fault::Work),
            Err(error) => {
                let why = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
                Err(Fault::Said(why.chars().take(300).collect()))
            }
        }
    }
}

/// Reason why a chat was not rendered.
enum Fault {
    /// The template ran too many instructions.
    Work,
    /// The template wrote too many bytes.
    Long,
    /// Message of the template, or of its engine.
    Said(String),
}

/// Contents of `tokenizer_config.json` that templates and prompts need.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerConfig {
    bos_token: Option<Special>,
    eos_token: Option<Special>,
    add_bos_token: Option<bool>,
    chat_template: Option<Templates>,
}

#[derive(Clone, Debug, serde::Deserialize)]
#[serde(untagged)]
enum Special {
    Text(String),
    Token { content: String },
}

impl Special {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Token { content: text } => text,
        }
    }
}

#[derive(Clone, Debug, serde::Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Clone, Debug, serde::Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl TokenizerConfig {
    pub(crate) fn bos(&self) -> Option<&str> {
        self.bos_token.as_ref().map(Special::text)
    }

    pub(crate) fn eos(&self) -> Option<&str> {
        self.eos_token.as_ref().map(Special::text)
    }

    /// Returns the text that a raw prompt starts with.
    pub(crate) fn prompt_start(&self) -> Option<&str> {
        self.bos().filter(|_| self.add_bos_token != Some(false))
    }

    fn chat_template(&self) -> Option<String> {
        match self.chat_template.clone()? {
            Templates::One(template) => Some(template),
            Templates::Named(all) => {
                all.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
        }
    }
}

/// Replaces transformers' `{% generation %}`, which marks text to train on, by a plain condition.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // The two characters of the beginning are not a part of the end: `{%}` opens a block.
        let Some(length) = rest[start + 2..].find("%}").map(|length| length + 2) else { break };
        let inside = &rest[start + 2..start + length];
        out.push_str(&rest[..start + 2]);
        match inside.trim_matches(|c: char| c.is_whitespace() || "-+".contains(c)) {
            "generation" => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inside.replace("endgeneration", "endif")),
            _ => out.push_str(inside),
        }
        rest = &rest[start + length..];
    }
    out + rest
}

/// Implements `tojson` like Python's `json.dumps`; minijinja's own filter escapes HTML.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its arguments by value")]
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Keys are never sorted and text is never escaped here, whatever these options say.
    let _: Option<Value> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let text = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(INDENT));
            written(value, PrettyFormatter::with_indent(indent.as_bytes()))
        }
        None => written(value, Spaced),
    };
    text.map_err(|_| minijinja::Error::new(ErrorKind::BadSerialization, "tojson failed"))
}

fn written(value: &Value, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

/// JSON formatter with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests;
