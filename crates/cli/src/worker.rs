//! `nsbridge worker`: a worker with the Llama handler, with that for embeddings, with a judge, with an
//! engine such as vLLM, in front of a server of OpenAI's API, or with a model in Python.

pub(crate) mod images;
mod kind;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use nsbridge::worker::Config;
use nsbridge_base::config::Environment;
use nsbridge_handler::Batched;
use nsbridge_judged::{Judged, Rules, Scoring};
use nsbridge_llama::{Embedder, Llama};
use nsbridge_openai::{OpenAi, OpenAiEmbedder};
use nsbridge_protocol::ModelName;
use nsbridge_python::{EmbeddingTask, Engine, EngineOptions, JudgeTask, Python};
use nsbridge_store::{Location, Wanted};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Value;

use self::images::WithImages;
use self::kind::{ENGINE, ENTRY_POINT, SERVER, TASK};
pub(crate) use self::kind::{Kind, Task, engine_options, server_options, within};
use crate::place::{json, weights};

/// Takes requests from a model's queue and answers them until SIGTERM or Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("code").args(["python", "engine"])))]
#[command(after_help = "Examples:\n  nsbridge worker --config examples/worker.toml\n  \
    nsbridge worker --python model.py --model parrot --keyring keys.json\n  \
    nsbridge worker --engine vllm --model qwen --weights ./Qwen3-8B --keyring keys.json\n  \
    nsbridge worker --engine openai --url http://127.0.0.1:8000 --model qwen --keyring keys.json\n\n\
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
    /// Engine that runs the model, vllm or sglang; openai is any server of OpenAI's API. Sets `engine` in
    /// [handler].
    #[arg(long, value_name = "NAME", conflicts_with = "python")]
    engine: Option<String>,
    /// Address of the server, for the engine openai. Sets `url` in [handler].
    #[arg(long, value_name = "URL", requires = "engine")]
    url: Option<String>,
    /// Loads the model in Python again when its sources change, and logs what it prints and the
    /// tracebacks of its exceptions, for development. Both may hold plaintext of requests.
    #[arg(long, requires = "python")]
    reload: bool,
    #[command(flatten)]
    settings: PythonSettings,
    #[command(flatten)]
    without_file: WithoutFile,
}

/// Settings of a model in Python. Each sets a field of [handler].
#[derive(Debug, clap::Args)]
pub(crate) struct PythonSettings {
    /// Number of calls that run at the same time in a process [default: 1, or those of the engine]
    #[arg(long, value_name = "N", requires = "code")]
    pub(crate) slots: Option<u16>,
    /// Maximum number of inputs in a batch, for a model with `run` [default: 8]
    #[arg(long, value_name = "N", requires = "python")]
    pub(crate) batch_size: Option<u16>,
    /// Options of the model, a JSON object: the second argument of `load`, or options of the engine.
    #[arg(long, value_name = "JSON", requires = "code", value_parser = json)]
    pub(crate) options: Option<serde_json::Value>,
}

/// Table of the configuration that the variables `NSBRIDGE_HANDLER__…` fill.
#[derive(Debug, Default, Deserialize)]
struct HandlerTable {
    #[serde(default)]
    handler: toml::Table,
}

impl PythonSettings {
    /// Returns the options of the model in a file: these flags, the variables `NSBRIDGE_HANDLER__…`, and
    /// defaults, in this order.
    ///
    /// # Errors
    ///
    /// Returns an error that names a variable that fits no option.
    pub(crate) fn of_model(self, file: &Path) -> Result<nsbridge_python::Options> {
        let file = file.to_str().context("the path of the model must be UTF-8")?;
        self.of_handler(ENTRY_POINT, file.to_owned())
    }

    /// Returns the options of an engine, in the same order.
    ///
    /// # Errors
    ///
    /// Returns an error that names an unknown engine, or a variable that fits no option.
    pub(crate) fn of_engine(self, engine: String) -> Result<EngineOptions> {
        self.of_handler(ENGINE, engine)
    }

    fn of_handler<T: DeserializeOwned>(self, field: &str, value: String) -> Result<T> {
        let variables = nsbridge_base::config::variables();
        let of_handler = variables.filter(|(name, _)| name.starts_with("NSBRIDGE_HANDLER__"));
        let environment = Environment::new(of_handler);
        let HandlerTable { mut handler } = nsbridge_base::config::parse("", &environment)?;
        handler.insert(field.to_owned(), Value::String(value));
        self.set(&mut handler)?;
        let of_flags = "the flags and the variables NSBRIDGE_HANDLER__…";
        handler.try_into().map_err(|error| anyhow!("{of_flags}: {}", error.message()))
    }

    fn set(self, handler: &mut toml::Table) -> Result<()> {
        for (name, number) in [("slots", self.slots), ("batch_size", self.batch_size)] {
            if let Some(number) = number {
                handler.insert(name.to_owned(), Value::Integer(number.into()));
            }
        }
        if let Some(options) = self.options {
            let options = Value::try_from(options).context("--options must be an object")?;
            handler.insert("options".to_owned(), options);
        }
        Ok(())
    }
}

/// Configuration of a worker with a model in Python, or with an engine, that needs no file.
#[derive(Debug, clap::Args)]
struct WithoutFile {
    /// Name of the model, whose queue the worker takes requests from. No configuration file is read then.
    #[arg(long, value_name = "NAME", requires = "code")]
    model: Option<ModelName>,
    /// URL of the broker [default: NSBRIDGE_BROKER__URL, or amqp://localhost]
    #[arg(long, value_name = "URL", requires = "model")]
    broker: Option<String>,
    /// Keyring file [default: NSBRIDGE_KEYS__KEYRING, or keys.json]
    #[arg(long, value_name = "FILE", requires = "model")]
    keyring: Option<PathBuf>,
    /// Files of a model, by the name under which `load` finds them, `target` if there is none; repeatable.
    /// A folder or s3://bucket/prefix.
    #[arg(long, value_name = "[NAME=]PLACE", requires = "model", value_parser = weights)]
    weights: Vec<(String, Location)>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    serve(arguments)?;
    Ok(ExitCode::SUCCESS)
}

fn serve(arguments: Arguments) -> Result<()> {
    let Arguments { config: file, python, engine, url, reload, settings, without_file } = arguments;
    let mut config = match without_file.model {
        Some(model) => WithoutFile { model: None, ..without_file }.config(&model)?,
        None if (python.is_some() || engine.is_some()) && !file.exists() => bail!(
            "{} is not here: name the model with --model, or the configuration with --config",
            file.display()
        ),
        None => Config::read(&file, nsbridge_base::config::variables())?,
    };
    if let Some(python) = python {
        let python = std::path::absolute(python).context("finding the current folder")?;
        let python = python.to_str().context("the path of --python must be UTF-8")?;
        config.handler.insert(ENTRY_POINT.to_owned(), Value::String(python.to_owned()));
    }
    if let (Some(engine), Some(url)) = (&engine, url) {
        if engine != SERVER {
            bail!("--url is the address of a server: it needs --engine {SERVER}, not {engine}");
        }
        config.handler.insert("url".to_owned(), Value::String(url));
    }
    if let Some(engine) = engine {
        config.handler.insert(ENGINE.to_owned(), Value::String(engine));
    }
    if reload {
        config.handler.insert("reload".to_owned(), Value::Boolean(true));
        config.handler.entry("show_output").or_insert(Value::Boolean(true));
    }
    settings.set(&mut config.handler)?;
    let kind = Kind::of(&config);
    if matches!(kind, Kind::Python | Kind::Engine(_) | Kind::Server(_)) {
        within(&mut config, file.parent().unwrap_or(Path::new("")));
    }
    match kind {
        Kind::Python => nsbridge::run_async::<Python>(config)?,
        Kind::Engine(task) => engine_worker(config, task)?,
        Kind::Server(task) => server_worker(config, task)?,
        Kind::Embeddings => nsbridge::run_async::<Embedder>(config)?,
        Kind::Judge => nsbridge::run_async::<Batched<Scoring<Rules>>>(as_judge(config))?,
        Kind::JudgedText => nsbridge::run_async::<Judged<Llama>>(config)?,
        Kind::Text => nsbridge::run_async::<Llama>(config)?,
    }
    Ok(())
}

impl WithoutFile {
    /// Returns the configuration of these flags, of the environment, and of defaults, in this order.
    fn config(self, model: &ModelName) -> Result<Config> {
        let keyring = self.keyring.map(|path| path.into_os_string().into_string());
        let keyring = keyring.transpose().map_err(|_| anyhow!("--keyring must be UTF-8"))?;
        let flags = [
            ("NSBRIDGE_WORKER__MODEL", Some(model.to_string())),
            ("NSBRIDGE_BROKER__URL", self.broker),
            ("NSBRIDGE_KEYS__KEYRING", keyring),
        ];
        let mut variables: BTreeMap<String, String> = nsbridge_base::config::variables().collect();
        for (name, value) in flags {
            variables.extend(value.map(|value| (name.to_owned(), value)));
        }
        for (table, name, value) in [
            ("NSBRIDGE_BROKER__", "NSBRIDGE_BROKER__URL", "amqp://localhost"),
            ("NSBRIDGE_KEYS__", "NSBRIDGE_KEYS__KEYRING", "keys.json"),
        ] {
            if !variables.keys().any(|set| set.starts_with(table)) {
                variables.insert(name.to_owned(), value.to_owned());
            }
        }
        let mut config = Config::from_text("", variables)?;
        let weights = self.weights.into_iter();
        let weights = weights.map(|(name, location)| (name, Wanted::from(location).into()));
        config.models.extend(weights);
        Ok(config)
    }
}

fn server_worker(mut config: Config, task: Task) -> Result<()> {
    config.handler = server_options(&config, task)?;
    match task {
        Task::JudgedText => nsbridge::run_async::<Judged<WithImages<OpenAi>>>(config)?,
        Task::Embeddings => nsbridge::run_async::<OpenAiEmbedder>(config)?,
        Task::Text | Task::Judge => nsbridge::run_async::<WithImages<OpenAi>>(config)?,
    }
    Ok(())
}

fn engine_worker(mut config: Config, task: Task) -> Result<()> {
    config.handler = engine_options(&config, task)?;
    match task {
        Task::Text => nsbridge::run_async::<WithImages<Engine>>(config)?,
        Task::JudgedText => nsbridge::run_async::<Judged<WithImages<Engine>>>(config)?,
        Task::Embeddings => nsbridge::run_async::<Engine<EmbeddingTask>>(config)?,
        Task::Judge => nsbridge::run_async::<Engine<JudgeTask>>(config)?,
    }
    Ok(())
}

/// Makes the rules of `[judge]` the options of the handler.
fn as_judge(mut config: Config) -> Config {
    let rules = config.judge.take().unwrap_or_default();
    config.handler.remove(TASK);
    config.handler.extend(rules);
    config
}
