//! Options of a worker in front of a server.

use std::fmt;
use std::path::{self, PathBuf};
use std::time::Duration;

use nsbridge_handler::{Error, Models, Result};
use serde::Deserialize;

/// Maximum number of calls of one worker at a time.
const MOST_SLOTS: usize = 1024;

/// Part of an argument of the command that stands for the folder of the model.
const FOLDER: &str = "{target}";

/// Name of the model whose files the server reads.
const TARGET: &str = "target";

/// Options of [`OpenAi`](crate::OpenAi) and [`OpenAiEmbedder`](crate::OpenAiEmbedder): the `[handler]` table of the worker's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Options {
    /// Address of the server, such as `http://127.0.0.1:8000`, with or without `/v1`.
    pub url: String,
    /// Program and arguments that start the server. Without it the server runs on its own. `{target}` in
    /// an argument stands for the folder of the model `target`.
    #[serde(default)]
    pub command: Vec<String>,
    /// File for everything that the command prints. It may hold plaintext of requests. Without it the
    /// output is logged until the server is ready, and then dropped.
    #[serde(default)]
    pub output: Option<PathBuf>,
    /// Name of the model at the server. Without it, the server must have exactly one.
    #[serde(default)]
    pub served_model: Option<String>,
    /// Names of adapters (LoRA) that the server has beside the model. Requests may choose these.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// File with the API key of the server, which only this user may read.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// Maximum number of requests at the server at the same time.
    #[serde(default = "slots")]
    pub slots: usize,
    /// Maximum time until the server is ready, in seconds.
    #[serde(default = "half_an_hour")]
    pub load_timeout_s: u64,
    /// Kind of the server. Without it, the worker finds it out.
    #[serde(default)]
    pub flavor: Option<Flavor>,
    /// Shares llama-server's prefix cache among all tenants. A tenant can then learn from response times
    /// which prompts another one has sent. vLLM and SGLang keep tenants apart by themselves.
    #[serde(default)]
    pub share_prefix_cache: bool,
    /// Passes images on: the model takes them. A server whose model takes none may drop them.
    #[serde(default)]
    pub takes_images: bool,
}

/// Kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Flavor {
    /// vLLM's `vllm serve`.
    Vllm,
    /// SGLang's server.
    Sglang,
    /// llama.cpp's `llama-server`.
    LlamaServer,
    /// Any other server of OpenAI's API.
    Generic,
}

impl fmt::Display for Flavor {
    /// Writes the server's name for a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::LlamaServer => "llama-server",
            Self::Generic => "this kind of server",
        })
    }
}

fn slots() -> usize {
    64
}

fn half_an_hour() -> u64 {
    1800
}

impl Options {
    /// Creates the options of a server at an address; all others have their defaults.
    ///
    /// ```
    /// let options = nsbridge_openai::Options::new("http://127.0.0.1:8000");
    /// assert_eq!((options.slots, options.load_timeout_s), (64, 1800));
    /// ```
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            command: Vec::new(),
            output: None,
            served_model: None,
            adapters: Vec::new(),
            api_key_file: None,
            slots: slots(),
            load_timeout_s: half_an_hour(),
            flavor: None,
            share_prefix_cache: false,
            takes_images: false,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MOST_SLOTS).contains(&self.slots) {
            let why = format!("[handler] slots must lie between 1 and {MOST_SLOTS}");
            return Err(Error::fatal(why));
        }
        if self.output.is_some() && self.command.is_empty() {
            return Err(Error::fatal("[handler] output needs a command, whose output it takes"));
        }
        Ok(())
    }

    /// Puts the folder of the model `target` into the command. Downloads the model first if needed.
    pub(crate) fn with_folder(mut self, models: &Models) -> Result<Self> {
        let named = self.command.iter().any(|argument| argument.contains(FOLDER));
        let unused = models.iter().map(|(name, _)| name).find(|name| !named || *name != TARGET);
        if let Some(name) = unused {
            return Err(Error::fatal(format!(
                "[models] {name} has no effect: the server gets the folder of {TARGET} alone, where an \
                 argument of [handler] command has {FOLDER}"
            )));
        }
        if named {
            let folder = path::absolute(models.require(TARGET)?.dir()?).map_err(Error::fatal)?;
            let odd = || Error::fatal(format!("{} is not UTF-8: rename it", folder.display()));
            let folder = folder.to_str().ok_or_else(odd)?;
            for argument in &mut self.command {
                *argument = argument.replace(FOLDER, folder);
            }
        }
        Ok(self)
    }

    pub(crate) fn load_timeout(&self) -> Duration {
        Duration::from_secs(self.load_timeout_s)
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{Model, Models};
    use serde_json::json;

    use super::{Flavor, Options};

    #[test]
    fn options_go_by_their_names_and_unknown_ones_are_refused() {
        let read = |json| serde_json::from_value::<Options>(json);
        let options = json!({ "url": "http://a", "flavor": "llama-server", "slots": 8 });
        let options = read(options).unwrap();
        assert_eq!((options.flavor, options.slots), (Some(Flavor::LlamaServer), 8));
        let error = read(json!({ "url": "http://a", "sluts": 8 })).unwrap_err().to_string();
        assert!(error.contains("`sluts`"), "{error}");
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut Options), says: &str) {
        let mut options = Options::new("http://a");
        change(&mut options);
        assert_eq!(options.check().unwrap_err().to_string(), says);
    }

    #[test]
    fn the_folder_of_the_target_is_put_into_the_command() {
        let models =
            |name: &str| [(name.to_owned(), Model::in_dir("/m"))].into_iter().collect::<Models>();
        let mut options = Options::new("http://a");
        let refused = options.clone().with_folder(&models("target")).unwrap_err().to_string();
        assert!(refused.starts_with("[models] target has no effect"), "{refused}");
        options.command = ["serve", "--model={target}/x"].map(str::to_owned).to_vec();
        let with = options.clone().with_folder(&models("target")).unwrap();
        assert_eq!(with.command, ["serve", "--model=/m/x"]);
        let refused = options.clone().with_folder(&models("draft")).unwrap_err().to_string();
        assert!(refused.starts_with("[models] draft has no effect"), "{refused}");
        let refused = options.with_folder(&Models::default()).unwrap_err().to_string();
        assert!(refused.contains("target"), "{refused}");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let slots = "[handler] slots must lie between 1 and 1024";
        check_refused(|options| options.slots = 0, slots);
        check_refused(|options| options.slots = 1025, slots);
        let output = "[handler] output needs a command, whose output it takes";
        check_refused(|options| options.output = Some("a".into()), output);
    }
}
