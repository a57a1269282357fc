//! Arguments for the prompt and the sampling of a text model.

use std::io::{IsTerminal as _, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use nsbridge_protocol::{ChatMessage, Image, JsonSchema, ResponseFormat, TextInput};

#[derive(Debug, clap::Args)]
pub(crate) struct Sampling {
    /// Seed of the sampling. Equal seeds give equal text.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Maximum number of tokens to generate.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_tokens: Option<u32>,
    /// Sampling temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Probability mass of top-p sampling: only the most likely tokens with this total probability
    /// are sampled.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Applies the model's chat template to the prompt instead of continuing it.
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message before the conversation, instead of the chat template's own.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// Parts of a request for models that take images or adapters.
#[derive(Debug, clap::Args)]
pub(crate) struct Multimodal {
    /// Image before the prompt, for a model that takes images: a PNG, JPEG, WebP or GIF file; repeatable.
    #[arg(long, value_name = "FILE", requires = "chat")]
    image: Vec<PathBuf>,
    /// Adapter (LoRA) of the worker that runs the request.
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

impl Multimodal {
    /// Adds the images and the adapter to the input of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if an image cannot be read, or is none.
    pub(crate) fn add_to(self, input: &mut TextInput) -> Result<()> {
        input.adapter = self.adapter;
        let Some(message) = input.messages.last_mut() else { return Ok(()) };
        let prompt = std::mem::take(&mut message.content);
        for file in &self.image {
            message.content.push_image(image(file)?);
        }
        message.content.append(&prompt);
        Ok(())
    }
}

/// Format of the whole reply.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Format {
    /// Restricts the reply to a JSON object.
    #[arg(long)]
    json_object: bool,
    /// Restricts the reply to JSON that matches the JSON schema in this file.
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Restricts the reply to text that this regular expression matches as a whole.
    #[arg(long, value_name = "EXPRESSION")]
    regex: Option<String>,
}

impl Format {
    fn read(&self) -> Result<Option<ResponseFormat>> {
        if self.json_object {
            return Ok(Some(ResponseFormat::JsonObject {}));
        }
        if let Some(regex) = self.regex.clone() {
            return Ok(Some(ResponseFormat::Regex { regex }));
        }
        let Some(file) = &self.json_schema else { return Ok(None) };
        let place = || format!("reading the schema {}", file.display());
        let text = std::fs::read_to_string(file).with_context(place)?;
        let schema = serde_json::from_str(&text).with_context(place)?;
        let name = file.file_stem().map(|name| name.to_string_lossy().into_owned());
        let mut json_schema = JsonSchema::new(schema);
        (json_schema.name, json_schema.strict) = (name, Some(true));
        Ok(Some(ResponseFormat::JsonSchema { json_schema }))
    }
}

impl Sampling {
    /// Builds the input of the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the schema file cannot be read or is not JSON.
    pub(crate) fn input(&self, prompt: String) -> Result<TextInput> {
        if self.chat {
            return self.conversation(vec![ChatMessage::new("user", prompt)]);
        }
        Ok(TextInput { prompt: Some(prompt), ..self.parameters()? })
    }

    /// Builds the input of a request for the next message of a conversation.
    ///
    /// # Errors
    ///
    /// Returns an error if the schema file cannot be read or is not JSON.
    pub(crate) fn conversation(&self, messages: Vec<ChatMessage>) -> Result<TextInput> {
        let system = self.system.clone();
        let system = system.map(|content| ChatMessage::new("system", content));
        let messages = system.into_iter().chain(messages).collect();
        Ok(TextInput { messages, ..self.parameters()? })
    }

    fn parameters(&self) -> Result<TextInput> {
        Ok(TextInput {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            response_format: self.format.read()?,
            ..TextInput::default()
        })
    }
}

/// Reads an image.
fn image(file: &Path) -> Result<Image> {
    let bytes =
        std::fs::read(file).with_context(|| format!("reading the image {}", file.display()))?;
    let kind = Image::type_of(&bytes)
        .with_context(|| format!("{} is no PNG, JPEG, WebP or GIF", file.display()))?;
    Ok(Image::new(format!("data:{kind};base64,{}", BASE64_STANDARD.encode(&bytes))))
}

/// Returns the prompt, or the text of standard input for `-` and if there is no prompt.
///
/// # Errors
///
/// Returns an error if there is no prompt and standard input is a terminal or empty.
pub(crate) fn read(prompt: Option<String>) -> Result<String> {
    match prompt {
        Some(prompt) if prompt != "-" => return Ok(prompt),
        None if stdin().is_terminal() => bail!("give a prompt, or text on standard input"),
        _ => {}
    }
    let text = std::io::read_to_string(stdin()).context("reading standard input")?;
    ensure!(!text.is_empty(), "standard input is empty: give a prompt");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::{Multimodal, Sampling};

    #[derive(Debug, clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        sampling: Sampling,
        #[command(flatten)]
        multimodal: Multimodal,
    }

    fn format(arguments: &[&str]) -> serde_json::Value {
        let arguments = ["it"].iter().chain(arguments);
        let input =
            Arguments::try_parse_from(arguments).unwrap().sampling.input("x".into()).unwrap();
        serde_json::to_value(input).unwrap()["response_format"].clone()
    }

    #[test]
    fn a_format_is_given_in_one_of_three_ways() {
        assert_eq!(format(&[]), json!(null));
        assert_eq!(format(&["--json-object"]), json!({ "type": "json_object" }));
        let regex = json!({ "type": "regex", "regex": "[a-z]+" });
        assert_eq!(format(&["--regex", "[a-z]+"]), regex);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("person.json");
        std::fs::write(&file, r#"{"type":"object"}"#).unwrap();
        let schema = json!({ "name": "person", "schema": { "type": "object" }, "strict": true });
        let expected = json!({ "type": "json_schema", "json_schema": schema });
        assert_eq!(format(&["--json-schema", file.to_str().unwrap()]), expected);
        let both = Arguments::try_parse_from(["it", "--json-object", "--regex", "a"]);
        assert!(both.unwrap_err().to_string().contains("cannot be used with"));
    }

    #[test]
    fn an_image_stands_before_the_prompt_of_a_chat() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cat.png");
        std::fs::write(&file, b"\x89PNG\r\n\x1a\n").unwrap();
        let of = |arguments: &[&str]| {
            let own = ["it", "--image", file.to_str().unwrap()];
            let parsed = Arguments::try_parse_from(own.iter().chain(arguments));
            let parsed = parsed.map_err(|error| error.to_string())?;
            let mut input = parsed.sampling.input("x".into()).unwrap();
            let added = parsed.multimodal.add_to(&mut input);
            added.map(|()| input).map_err(|error| format!("{error:#}"))
        };
        let input = of(&["--chat", "--adapter", "cats"]).unwrap();
        let url = "data:image/png;base64,iVBORw0KGgo=";
        let expected = json!([{ "type": "image_url", "image_url": { "url": url } },
                              { "type": "text", "text": "x" }]);
        assert_eq!(serde_json::to_value(&input.messages[0].content).unwrap(), expected);
        assert_eq!(input.adapter.as_deref(), Some("cats"));
        assert!(of(&[]).unwrap_err().contains("--chat"));
        std::fs::write(&file, "no image").unwrap();
        assert!(of(&["--chat"]).unwrap_err().contains("cat.png is no PNG, JPEG, WebP or GIF"));
    }

    #[test]
    fn a_schema_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("person.json");
        let read = || {
            let arguments = ["it", "--json-schema", file.to_str().unwrap()];
            let sampling = Arguments::try_parse_from(arguments).unwrap().sampling;
            format!("{:#}", sampling.input("x".into()).unwrap_err())
        };
        assert!(read().contains("person.json"));
        std::fs::write(&file, "{").unwrap();
        assert!(read().contains("person.json"));
    }
}
