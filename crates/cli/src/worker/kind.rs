//! Kind of worker that a configuration describes, and the options of its handler.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use nsbridge::worker::Config;
use toml::Value;

use super::images;

/// Field of `[handler]` that names a model in Python.
pub(super) const ENTRY_POINT: &str = "entry_point";

/// Field of `[handler]` with a table of the own engine's options, or with the name of another engine.
pub(super) const ENGINE: &str = "engine";

/// Name of the engine that is a server of OpenAI's API.
pub(super) const SERVER: &str = "openai";

/// Names of all engines.
const ENGINES: [&str; 3] = [SERVER, "sglang", "vllm"];

/// Field of `[handler]` that names what the model makes.
pub(super) const TASK: &str = "task";

/// Makes the paths of a model in Python, of an engine, or of a server relative to the folder of the
/// configuration.
pub(crate) fn within(config: &mut Config, folder: &Path) {
    for field in [ENTRY_POINT, "images", "output", "api_key_file", "python", "command"] {
        let path = match config.handler.get_mut(field) {
            Some(Value::Array(command)) => command.first_mut(),
            other => other,
        };
        let Some(Value::String(path)) = path else { continue };
        // A lone name of a program is looked up in PATH.
        let in_path = matches!(field, "python" | "command") && !path.contains('/');
        if in_path || path.contains("://") || path.starts_with("{target}") {
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
    /// Replies of an engine in Python.
    Engine(Task),
    /// Replies of a server of OpenAI's API.
    Server(Task),
}

/// Kind of reply that an engine or a server makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Text of a language model.
    Text,
    /// Text of a language model, with a judge around it.
    JudgedText,
    /// Vectors of texts.
    Embeddings,
    /// Scores of texts.
    Judge,
}

impl Kind {
    /// Returns the kind by `entry_point`, `engine` and `task` in `[handler]` and by the table `[judge]`. Another
    /// task is refused with the options.
    pub(crate) fn of(config: &Config) -> Self {
        if config.handler.contains_key(ENTRY_POINT) {
            return Self::Python;
        }
        let task = match config.handler.get(TASK).and_then(Value::as_str) {
            Some("embed") => Task::Embeddings,
            Some("judge") => Task::Judge,
            _ if config.judge.is_some() => Task::JudgedText,
            _ => Task::Text,
        };
        match config.handler.get(ENGINE).and_then(Value::as_str) {
            Some(SERVER) => return Self::Server(task),
            Some(_) => return Self::Engine(task),
            None => {}
        }
        match task {
            Task::Text => Self::Text,
            Task::JudgedText => Self::JudgedText,
            Task::Embeddings => Self::Embeddings,
            Task::Judge => Self::Judge,
        }
    }
}

/// Returns the options of an engine: `[handler]` without a task that has chosen the handler, and with the
/// access to the place of the images.
///
/// # Errors
///
/// Returns an error if there is no engine of this name, or if the place of the images is none.
pub(crate) fn engine_options(config: &Config, task: Task) -> Result<toml::Table> {
    let mut handler = config.handler.clone();
    if let Some(Value::String(engine)) = handler.get(ENGINE) {
        ensure!(
            ENGINES.contains(&&**engine),
            "there is no engine `{engine}`: the engines are {}, and a worker without `engine` runs nsbridge's own",
            ENGINES.join(", ")
        );
    }
    match task {
        Task::Embeddings | Task::Judge => drop(handler.remove(TASK)),
        Task::Text | Task::JudgedText => images::place(&mut handler, &config.store)?,
    }
    Ok(handler)
}

/// Returns the options of a server: those of an engine without its name.
///
/// # Errors
///
/// Returns an error if the task is none of a server, or if the place of the images is none.
pub(crate) fn server_options(config: &Config, task: Task) -> Result<toml::Table> {
    if task == Task::Judge {
        bail!(
            "[handler] task is judge, and a server of OpenAI's API has no scores: leave task out for text, or \
             set it to embed for vectors"
        );
    }
    let mut handler = engine_options(config, task)?;
    handler.remove(ENGINE);
    Ok(handler)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nsbridge::worker::{BrokerConfig, Config, KeysConfig, WorkerConfig};

    use super::{Kind, Task, engine_options, server_options, within};

    fn config() -> Config {
        let worker = WorkerConfig::new("m".parse().unwrap());
        let broker = BrokerConfig::from_url("amqp://localhost");
        Config::new(worker, broker, KeysConfig::from_keyring("keys.json"))
    }

    #[test]
    fn paths_of_a_model_in_python_are_relative_to_the_file() {
        let mut config = config();
        assert_eq!(Kind::of(&config), Kind::Text);
        let text = "entry_point = \"model.py:A\"\npython = \"env/bin/python\"\noutput = \"/o\"\n";
        config.handler = toml::from_str(text).unwrap();
        assert_eq!(Kind::of(&config), Kind::Python);
        within(&mut config, Path::new("/etc/w"));
        let field = |config: &Config, name: &str| config.handler[name].as_str().unwrap().to_owned();
        assert_eq!(field(&config, "entry_point"), "/etc/w/model.py:A");
        assert_eq!(field(&config, "python"), "/etc/w/env/bin/python");
        assert_eq!(field(&config, "output"), "/o");
        for (given, resolved) in [("seen", "/etc/w/seen"), ("s3://b/seen", "s3://b/seen")] {
            let text = format!("engine = \"vllm\"\nimages = \"{given}\"");
            config.handler = toml::from_str(&text).unwrap();
            within(&mut config, Path::new("/etc/w"));
            assert_eq!(field(&config, "images"), resolved);
        }
        config.handler = toml::from_str("engine = \"vllm\"").unwrap();
        assert_eq!(Kind::of(&config), Kind::Engine(Task::Text));
        config.handler = toml::from_str("engine = \"vllm\"\ntask = \"embed\"").unwrap();
        assert_eq!(Kind::of(&config), Kind::Engine(Task::Embeddings));
        let server =
            "engine = \"openai\"\ncommand = [\"bin/vllm\", \"a/b\"]\napi_key_file = \"key\"";
        config.handler = toml::from_str(server).unwrap();
        assert_eq!(Kind::of(&config), Kind::Server(Task::Text));
        within(&mut config, Path::new("/etc/w"));
        assert_eq!(field(&config, "api_key_file"), "/etc/w/key");
        let command = toml::Value::from(vec!["/etc/w/bin/vllm", "a/b"]);
        assert_eq!(config.handler["command"], command);
        // The own engine's options are a table of this name.
        config.handler = toml::from_str("engine = { tensor_parallel_degree = 2 }").unwrap();
        assert_eq!(Kind::of(&config), Kind::Text);
        config.handler =
            toml::from_str("entry_point = \"/m.py\"\npython = \"python3.12\"").unwrap();
        within(&mut config, Path::new("/etc/w"));
        assert_eq!(field(&config, "python"), "python3.12");
    }

    #[test]
    fn an_unknown_engine_is_told_with_the_known_ones() {
        let mut config = config();
        config.handler = toml::from_str("engine = \"vlm\"").unwrap();
        let error = engine_options(&config, Task::Text).unwrap_err().to_string();
        assert!(
            error.starts_with("there is no engine `vlm`: the engines are openai, sglang, vllm")
        );
    }

    #[test]
    fn a_server_has_no_scores() {
        let mut config = config();
        config.handler = toml::from_str("engine = \"openai\"\ntask = \"judge\"").unwrap();
        let error = server_options(&config, Task::Judge).unwrap_err().to_string();
        assert!(error.starts_with("[handler] task is judge, and a server"), "{error}");
        assert!(server_options(&config, Task::Embeddings).unwrap().is_empty());
    }
}
