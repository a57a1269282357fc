//! Chat template of a model, which renders messages into a prompt.

mod capped;
mod chat;
mod config;
mod dialect;
mod formats;
mod json;

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use nsbridge_handler::{ChatMessage, Error, Model, Result, TextInput};

use self::capped::Capped;
use self::chat::CallShape;
pub(crate) use self::chat::Chat;
use self::config::Templates;
pub(crate) use self::config::TokenizerConfig;
pub use self::formats::{CallFormat, ChatFormats, ReasoningFormat};
use crate::date::strftime;
use crate::error::{LoadError, within};
use crate::limits::{FEW_BYTES, TEMPLATE_FUEL};
use crate::panics::caught;

/// Name of the template for conversations.
const DEFAULT: &str = "default";

/// Name of the template for conversations with tools. A model without it has one template for both.
const TOOL_USE: &str = "tool_use";

/// Variables that a request cannot set, beside the special tokens.
const OWN_VARIABLES: [&str; 6] =
    ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"];

/// Files of the two templates, where transformers 5 writes them.
pub(crate) const FILES: [(&str, &str); 2] =
    [(DEFAULT, "chat_template.jinja"), (TOOL_USE, "additional_chat_templates/tool_use.jinja")];

/// Chat template with the dialect of Jinja that transformers provides to templates.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// Special tokens by the names of their variables.
    special: serde_json::Map<String, serde_json::Value>,
    /// Form in which the template takes the calls of earlier messages.
    calls: CallShape,
}

impl ChatTemplate {
    /// Reads the templates from their files, or else from the tokenizer's configuration, which comes
    /// from `file`.
    pub(crate) fn read(
        model: &Model,
        tokenizer: &TokenizerConfig,
        file: &str,
    ) -> Result<Option<Self>, LoadError> {
        let mut sources = Templates::default();
        let mut place = within(model, file);
        for (name, path) in FILES {
            if let Some(text) = model.read_optional(path).map_err(LoadError::read)? {
                place = within(model, path);
                let text = String::from_utf8(text).map_err(LoadError::parse(&place))?;
                sources.insert(name.to_owned(), text);
            }
        }
        if sources.is_empty() {
            sources = tokenizer.templates();
        }
        sources.retain(|name, _| [DEFAULT, TOOL_USE].contains(&name.as_str()));
        if sources.is_empty() {
            return Ok(None);
        }
        let mut template = Self::new(&sources, tokenizer).map_err(LoadError::parse(place))?;
        template.calls = template.probed();
        template.check()?;
        Ok(Some(template))
    }

    /// Renders a short conversation, so that an endless template fails at load time and not in a
    /// request.
    ///
    /// # Errors
    ///
    /// Returns an error if the template takes too much work or writes too much. Its own errors
    /// about the messages are logged at most, since some templates refuse a chat without a system
    /// prompt, or with one.
    fn check(&self) -> Result<(), LoadError> {
        let mut refused = None;
        for roles in [&["user", "assistant", "user"][..], &["user"], &["system", "user"]] {
            let chat: Vec<_> = roles.iter().map(|role| ChatMessage::new(*role, "hello")).collect();
            match self.written(&Chat::of(&chat), UNIX_EPOCH, FEW_BYTES) {
                Err(Fault::Work | Fault::Long) => {
                    return Err(LoadError::unsupported(
                        "the chat template",
                        "more than a short conversation may take",
                        format!("{TEMPLATE_FUEL} instructions and {FEW_BYTES} bytes at most"),
                    ));
                }
                Ok(_) => return Ok(()),
                Err(Fault::Said(why)) => refused = refused.or(Some(why)),
            }
        }
        let why = refused.unwrap_or_default();
        tracing::warn!(%why, "the chat template refuses a plain conversation");
        Ok(())
    }

    /// Returns the form in which the template takes calls, from what it makes of one in each form.
    fn probed(&self) -> CallShape {
        let written = |calls| self.written(&Chat::with_call(calls), UNIX_EPOCH, FEW_BYTES).ok();
        let plain = CallShape::default();
        let text = CallShape { text_arguments: true, ..plain };
        let text_arguments = written(plain).is_none() && written(text).is_some();
        let empty = CallShape { text_arguments, ..plain };
        let null = CallShape { null_content: true, ..empty };
        // A template that writes the null takes texts alone.
        let nulls = |text: &str| ["None", "null"].map(|null| text.matches(null).count());
        let takes_null = match (written(empty), written(null)) {
            (Some(empty), Some(null)) => nulls(&empty) == nulls(&null),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if takes_null { null } else { empty }
    }

    fn new(sources: &Templates, tokenizer: &TokenizerConfig) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment
            .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        dialect::add(&mut environment);
        environment.add_function("raise_exception", |why: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.set_fuel(Some(TEMPLATE_FUEL));
        for (name, source) in sources {
            environment.add_template_owned(name.clone(), without_generation_tags(source))?;
        }
        Ok(Self { environment, special: tokenizer.special(), calls: CallShape::default() })
    }

    /// Returns the chat of a request in the form that the template takes.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub(crate) fn chat(&self, input: &TextInput) -> Result<Chat> {
        if let Some(name) = input.chat_template_kwargs.keys().find(|name| self.sets(name)) {
            return Err(Error::bad_input(format!(
                "`chat_template_kwargs` must not set `{name}`, which the worker sets"
            )));
        }
        Chat::new(input, self.calls)
    }

    /// Returns true for a variable that a request cannot set, since the worker sets it.
    fn sets(&self, name: &str) -> bool {
        OWN_VARIABLES.contains(&name) || self.special.contains_key(name)
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
        let has = |name| self.environment.get_template(name).is_ok();
        let name = if tools.is_some() && has(TOOL_USE) { TOOL_USE } else { DEFAULT };
        if !has(name) {
            return Err(Fault::Said("it is for conversations with tools alone".to_owned()));
        }
        let chat = context! {
            messages => Value::from(Serde(&chat.messages)),
            add_generation_prompt => chat.turn,
            tools,
            strftime_now => Value::from_function(today),
            ..context! {
                ..Value::from(Serde(&self.special)),
                ..context! {
                    ..Value::from(Serde(&chat.variables)),
                    ..context! { documents => () }
                }
            }
        };
        let rendered = caught(|| {
            let template = self.environment.get_template(name)?;
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

#[cfg(test)]
mod tests;
