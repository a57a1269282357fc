//! Definition of a model's tokenizer: `tokenizer.json`, or else the metadata of its GGUF file.

use nsbridge_checkpoint::Checkpoint;
use nsbridge_handler::{Model, quote};
use serde_json::{Map, Value};

use super::gguf;
use crate::config::find_json;
use crate::error::{LoadError, within};
use crate::metadata::Facts;
use crate::template::TokenizerConfig;

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// Contents of a `tokenizer.json` and a `tokenizer_config.json`, with the files they come from.
#[derive(Debug)]
pub(super) struct Source {
    /// Content of `tokenizer.json`, or its equivalent.
    pub(super) json: Value,
    pub(super) config: TokenizerConfig,
    /// Name of the file that `json` comes from.
    pub(super) file: String,
    /// Name of the file that `config` comes from.
    pub(super) config_file: String,
}

impl Source {
    /// Reads the definition. A `tokenizer.json` decides alone. Without one, the fields of a
    /// `tokenizer_config.json` replace those of the metadata.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is malformed, or if the model has no vocabulary.
    pub(super) fn read(model: &Model) -> Result<Self, LoadError> {
        if let Some(json) = find_json(model, FILE)? {
            let config: Option<TokenizerConfig> = find_json(model, CONFIG)?;
            let mut config = config.unwrap_or_default();
            config.add_special_tokens(find_json(model, SPECIAL_TOKENS)?.unwrap_or_default());
            return Ok(Self {
                json,
                config,
                file: FILE.to_owned(),
                config_file: CONFIG.to_owned(),
            });
        }
        let Some(gguf) = model.files().find(|path| path.ends_with(".gguf")) else {
            return Err(LoadError::Missing(format!(
                "the model in {} has no {FILE}: load its tokenizer with transformers' AutoTokenizer, \
                 and write the file with save_pretrained",
                model.place()
            )));
        };
        let checkpoint = Checkpoint::open(model).map_err(LoadError::read)?;
        let Some(facts) = Facts::of(&checkpoint) else {
            // Safetensors files take precedence, and do not contain the vocabulary.
            let (place, gguf) = (model.place(), quote(gguf));
            let what = format!("{place} has no {FILE}, and no vocabulary is read from {gguf}");
            return Err(LoadError::Missing(what));
        };
        Self::of_gguf(model, &facts)
    }

    fn of_gguf(model: &Model, facts: &Facts<'_>) -> Result<Self, LoadError> {
        let gguf::Files { tokenizer, mut config } = gguf::files(facts)?;
        let file = facts.file().to_owned();
        let beside: Option<Map<String, Value>> = find_json(model, CONFIG)?;
        let config_file = if beside.is_some() { CONFIG.to_owned() } else { file.clone() };
        config.extend(beside.unwrap_or_default());
        let config = serde_json::from_value(Value::Object(config));
        let config = config.map_err(LoadError::parse(within(model, &config_file)))?;
        Ok(Self { json: tokenizer, config, file, config_file })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::UNIX_EPOCH;

    use nsbridge_handler::{ChatMessage, Model, TextInput};
    use serde_json::{Value, json};

    use crate::tokenizer::template;

    /// Renders "Hi" by the template of a folder, with these tools.
    fn rendered(dir: &Path, tools: &[Value]) -> String {
        let template = template(&Model::in_dir(dir)).unwrap().unwrap();
        let messages = vec![ChatMessage::new("user", "Hi")];
        let input = TextInput { messages, tools: tools.to_vec(), ..TextInput::default() };
        template.render(&template.chat(&input).unwrap(), UNIX_EPOCH, 1000).unwrap()
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        for (name, content) in [("tokenizer.json", "{}")].iter().chain(files) {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    #[test]
    fn tools_have_the_template_in_the_file_of_that_name() {
        let dir = folder(&[
            ("chat_template.jinja", "D{{ messages[0].content }}"),
            (
                "additional_chat_templates/tool_use.jinja",
                "T{{ tools | length }}{{ messages[0].content }}",
            ),
        ]);
        assert_eq!(rendered(dir.path(), &[]), "DHi");
        let tool = json!({ "type": "function", "function": { "name": "f" } });
        assert_eq!(rendered(dir.path(), &[tool]), "T1Hi");
    }

    #[test]
    fn special_tokens_come_from_their_map_where_the_configuration_names_none() {
        let template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}";
        let config = json!({ "chat_template": template, "eos_token": "<end>" }).to_string();
        let map = json!({ "bos_token": { "content": "<s>" }, "eos_token": "</s>" }).to_string();
        let dir = folder(&[("tokenizer_config.json", &config), ("special_tokens_map.json", &map)]);
        assert_eq!(rendered(dir.path(), &[]), "<s>Hi<end>");
    }
}
