//! `nsbridge worker`: a worker with the Llama handler, with that for embeddings, with a judge, or with a
//! model in Python.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nsbridge::worker::{BrokerConfig, Config, KeysConfig, WorkerConfig};
use nsbridge_handler::Batched;
use nsbridge_judged::{Judged, Rules, Scoring};
use nsbridge_llama::{Embedder, Llama};
use nsbridge_protocol::ModelName;
use nsbridge_python::Python;
use nsbridge_store::{Location, Wanted};
use toml::Value;

use crate::place::weights;

/// Takes requests from a model's queue and answers them until SIGTERM or Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nsbridge worker --config examples/worker.toml\n  \
    nsbridge worker --python model.py --model parrot --keyring keys.json\n\n\
    Each field of the configuration can be set by NSBRIDGE_<SECTION>__<FIELD> in the environment.\n\
    deploy/worker.example.toml documents them all. With a table [judge], prompts and replies are\n\
    judged: docs/handlers.md, \"Judged replies\".")]
pub(crate) struct Arguments {
    /// Configuration file of the worker.
    #[arg(long, value_name = "FILE", default_value = "worker.toml", conflicts_with = "model")]
    config: PathBuf,
    /// Model in Python: the file, or FILE:CLASS. Sets `entry_point` in [handler].
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Loads the model in Python again when its sources change, for development.
    #[arg(long, requires = "python")]
    reload: bool,
    #[command(flatten)]
    without_file: WithoutFile,
}

/// Configuration of a worker with a model in Python that needs no file.
#[derive(Debug, clap::Args)]
struct WithoutFile {
    /// Name of the model in Python. No configuration file is read then.
    #[arg(long, value_name = "NAME", requires = "python")]
    model: Option<ModelName>,
    /// URL of the broker [default: NSBRIDGE_BROKER__URL, or amqp://localhost]
    #[arg(long, value_name = "URL", requires = "model")]
    broker: Option<String>,
    /// Keyring file [default: NSBRIDGE_KEYS__KEYRING, or keys.json]
    #[arg(long, value_name = "FILE", requires = "model")]
    keyring: Option<PathBuf>,
    /// Files of a model, by the name under which `load` finds them; repeatable. A folder or
    /// s3://bucket/prefix.
    #[arg(long, value_name = "NAME=PLACE", requires = "model", value_parser = weights)]
    weights: Vec<(String, Location)>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    serve(arguments)?;
    Ok(ExitCode::SUCCESS)
}

fn serve(arguments: Arguments) -> Result<()> {
    let Arguments { config: file, python, reload, without_file } = arguments;
    let mut config = match without_file.model {
        Some(model) => WithoutFile { model: None, ..without_file }.config(model),
        None => Config::read(&file, nsbridge_base::config::variables())?,
    };
    if let Some(python) = python {
        let python = std::path::absolute(python).context("finding the current folder")?;
        let python = python.to_str().context("the path of --python must be UTF-8")?;
        config.handler.insert(ENTRY_POINT.to_owned(), Value::String(python.to_owned()));
    }
    if reload {
        config.handler.insert("reload".to_owned(), Value::Boolean(true));
    }
    match Kind::of(&config) {
        Kind::Python => {
            within(&mut config, file.parent().unwrap_or(Path::new("")));
            nsbridge::run_async::<Python>(config)?;
        }
        Kind::Embeddings => nsbridge::run_async::<Embedder>(config)?,
        Kind::Judge => nsbridge::run_async::<Batched<Scoring<Rules>>>(as_judge(config))?,
        Kind::JudgedText => nsbridge::run_async::<Judged<Llama>>(config)?,
        Kind::Text => nsbridge::run_async::<Llama>(config)?,
    }
    Ok(())
}

impl WithoutFile {
    fn config(self, model: ModelName) -> Config {
        let set = |name: &str| {
            nsbridge_base::config::variables().find(|(set, _)| set == name).map(|(_, value)| value)
        };
        let broker = self.broker.or_else(|| set("NSBRIDGE_BROKER__URL"));
        let keyring = self.keyring.or_else(|| set("NSBRIDGE_KEYS__KEYRING").map(PathBuf::from));
        let broker =
            BrokerConfig::from_url(broker.unwrap_or_else(|| "amqp://localhost".to_owned()));
        let keys = KeysConfig::from_keyring(keyring.unwrap_or_else(|| "keys.json".into()));
        let mut config = Config::new(WorkerConfig::new(model), broker, keys);
        let weights = self.weights.into_iter();
        config.models =
            weights.map(|(name, location)| (name, Wanted::from(location).into())).collect();
        config
    }
}

/// Field of `[handler]` that names a model in Python.
const ENTRY_POINT: &str = "entry_point";

/// Makes the paths of a model in Python relative to the folder of the configuration.
pub(crate) fn within(config: &mut Config, folder: &Path) {
    for field in [ENTRY_POINT, "output", "python"] {
        let Some(Value::String(path)) = config.handler.get_mut(field) else { continue };
        // A lone name of an interpreter is looked up in PATH.
        if field == "python" && !path.contains('/') {
            continue;
        }
        if let Some(joined) = folder.join(&*path).to_str() {
            *path = joined.to_owned();
        }
    }
}

/// Kind of worker that a configuration describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text of a language model.
    Text,
    /// Text of a language model, with a judge around it.
    JudgedText,
    /// Vectors of texts.
    Embeddings,
    /// Scores of texts by rules.
    Judge,
    /// Replies of a model in Python.
    Python,
}

impl Kind {
    /// Returns the kind by `entry_point` and `task` in `[handler]` and by the table `[judge]`. Another
    /// task is refused with the options.
    pub(crate) fn of(config: &Config) -> Self {
        if config.handler.contains_key(ENTRY_POINT) {
            return Self::Python;
        }
        match config.handler.get("task").and_then(|task| task.as_str()) {
            Some("embed") => Self::Embeddings,
            Some("judge") => Self::Judge,
            _ if config.judge.is_some() => Self::JudgedText,
            _ => Self::Text,
        }
    }
}

/// Makes the rules of `[judge]` the options of the handler.
fn as_judge(mut config: Config) -> Config {
    let rules = config.judge.take().unwrap_or_default();
    config.handler.remove("task");
    config.handler.extend(rules);
    config
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nsbridge::worker::{BrokerConfig, Config, KeysConfig, WorkerConfig};

    use super::{Kind, within};

    #[test]
    fn paths_of_a_model_in_python_are_relative_to_the_file() {
        let worker = WorkerConfig::new("m".parse().unwrap());
        let broker = BrokerConfig::from_url("amqp://localhost");
        let mut config = Config::new(worker, broker, KeysConfig::from_keyring("keys.json"));
        assert_eq!(Kind::of(&config), Kind::Text);
        let text = "entry_point = \"model.py:A\"\npython = \"env/bin/python\"\noutput = \"/o\"\n";
        config.handler = toml::from_str(text).unwrap();
        assert_eq!(Kind::of(&config), Kind::Python);
        within(&mut config, Path::new("/etc/w"));
        let field = |config: &Config, name: &str| config.handler[name].as_str().unwrap().to_owned();
        assert_eq!(field(&config, "entry_point"), "/etc/w/model.py:A");
        assert_eq!(field(&config, "python"), "/etc/w/env/bin/python");
        assert_eq!(field(&config, "output"), "/o");
        config.handler =
            toml::from_str("entry_point = \"/m.py\"\npython = \"python3.12\"").unwrap();
        within(&mut config, Path::new("/etc/w"));
        assert_eq!(field(&config, "python"), "python3.12");
    }
}
