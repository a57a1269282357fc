//! Definition of a model's tokenizer: `tokenizer.json`, or else the metadata of its GGUF file.

use nsbridge_checkpoint::Checkpoint;
use nsbridge_handler::{Model, quote};
use serde_json::{Map, Value};

use super::gguf;
use crate::config::{find_json, within};
use crate::error::LoadError;
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
