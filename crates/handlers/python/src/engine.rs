//! Handler of an engine in Python, vLLM or SGLang, whose adapter is part of this crate.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs};

use nsbridge_handler::{
    AsyncHandler, AsyncJob, Error, Fingerprint, Finish, Health, Measure, Models, MultimodalInput,
    Result, TextPiece,
};
use nsbridge_protocol::{EmbeddingInput, EmbeddingPiece, JudgeInput, JudgeScores};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::model::Model;
use crate::options::Options;
use crate::plan::{EnginePlan, Plan};

/// Time after a stop at which the process of an engine is killed. Its loop may be busy with the
/// prompts of other requests, and it takes long to load again.
const KILL_AFTER: Duration = Duration::from_secs(20);

/// Modules of the adapters, which the processes import.
const MODULES: [(&str, &str); 31] = [
    ("engine_chat.py", include_str!("../engines/engine_chat.py")),
    ("engine_detokenize.py", include_str!("../engines/engine_detokenize.py")),
    ("engine_format.py", include_str!("../engines/engine_format.py")),
    ("engine_guard.py", include_str!("../engines/engine_guard.py")),
    ("engine_images.py", include_str!("../engines/engine_images.py")),
    ("engine_measures.py", include_str!("../engines/engine_measures.py")),
    ("engine_pooling.py", include_str!("../engines/engine_pooling.py")),
    ("engine_prompt.py", include_str!("../engines/engine_prompt.py")),
    ("engine_reply.py", include_str!("../engines/engine_reply.py")),
    ("engine_request.py", include_str!("../engines/engine_request.py")),
    ("engine_text.py", include_str!("../engines/engine_text.py")),
    ("engine_words.py", include_str!("../engines/engine_words.py")),
    ("sglang_api.py", include_str!("../engines/sglang_api.py")),
    ("sglang_engine.py", include_str!("../engines/sglang_engine.py")),
    ("sglang_forced.py", include_str!("../engines/sglang_forced.py")),
    ("sglang_measures.py", include_str!("../engines/sglang_measures.py")),
    ("sglang_options.py", include_str!("../engines/sglang_options.py")),
    ("sglang_reply.py", include_str!("../engines/sglang_reply.py")),
    ("sglang_request.py", include_str!("../engines/sglang_request.py")),
    ("sglang_running.py", include_str!("../engines/sglang_running.py")),
    ("sglang_signals.py", include_str!("../engines/sglang_signals.py")),
    ("sglang_start.py", include_str!("../engines/sglang_start.py")),
    ("vllm_adapters.py", include_str!("../engines/vllm_adapters.py")),
    ("vllm_engine.py", include_str!("../engines/vllm_engine.py")),
    ("vllm_forced.py", include_str!("../engines/vllm_forced.py")),
    ("vllm_images.py", include_str!("../engines/vllm_images.py")),
    ("vllm_measures.py", include_str!("../engines/vllm_measures.py")),
    ("vllm_options.py", include_str!("../engines/vllm_options.py")),
    ("vllm_pooling.py", include_str!("../engines/vllm_pooling.py")),
    ("vllm_request.py", include_str!("../engines/vllm_request.py")),
    ("vllm_start.py", include_str!("../engines/vllm_start.py")),
];

/// Engine that an adapter is part of this crate for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineName {
    /// SGLang's `Engine`.
    Sglang,
    /// vLLM's `AsyncLLM`.
    Vllm,
}

impl EngineName {
    /// Returns the name of the adapter's file.
    const fn module(self) -> &'static str {
        match self {
            Self::Sglang => "sglang_engine.py",
            Self::Vllm => "vllm_engine.py",
        }
    }
}

/// Options of a worker with an engine: the `[handler]` table of the worker's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Engine that runs the model `target`.
    pub engine: EngineName,
    /// Python interpreter of the environment with the engine: a path, or a name in `PATH`.
    #[serde(default = "crate::options::python3")]
    pub python: PathBuf,
    /// Number of calls that run at the same time; if absent, as many as the engine runs.
    #[serde(default)]
    pub slots: Option<usize>,
    /// File for everything that the engine prints while requests run. It may then hold plaintext of
    /// requests. Without it the output is dropped.
    #[serde(default)]
    pub output: Option<PathBuf>,
    /// Logs what the engine prints while requests run, for development: it may hold plaintext of
    /// requests.
    #[serde(default)]
    pub show_output: bool,
    /// Maximum time to load the model, in seconds.
    #[serde(default = "crate::options::half_an_hour")]
    pub load_timeout_s: u64,
    /// Names of the models that are adapters (LoRA) of the model `target`. Requests may choose these.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// Options of the engine by its own names, such as `tensor_parallel_size`.
    #[serde(default)]
    pub options: Map<String, Value>,
}

impl EngineOptions {
    /// Creates the options of an engine; all others have their defaults.
    ///
    /// ```
    /// use nsbridge_python::{EngineName, EngineOptions};
    ///
    /// let options = EngineOptions::new(EngineName::Vllm);
    /// assert_eq!(options.slots, None);
    /// ```
    pub fn new(engine: EngineName) -> Self {
        Self {
            engine,
            python: crate::options::python3(),
            slots: None,
            output: None,
            show_output: false,
            load_timeout_s: crate::options::half_an_hour(),
            adapters: Vec::new(),
            options: Map::new(),
        }
    }

    /// Returns the options of a model in Python that is a class of the adapter in this folder.
    fn of_model(self, folder: &TempDir, class: &str) -> Options {
        let module = folder.path().join(self.engine.module());
        let mut options = Options::new(format!("{}:{class}", module.display()));
        options.python = self.python;
        options.slots = self.slots.unwrap_or(1);
        options.output = self.output;
        options.show_output = self.show_output;
        options.load_timeout_s = self.load_timeout_s;
        options.options = self.options;
        // Another worker may have a device that works.
        options.crashes = 1;
        options
    }
}

/// Kind of reply that an engine makes. This trait is sealed.
pub trait EngineTask: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// Input of a request.
    type Input: Serialize + DeserializeOwned + Send + Sync;
    /// Piece of a reply.
    type Output: Serialize + DeserializeOwned + Send + 'static;
    /// Class of the adapter.
    #[doc(hidden)]
    const CLASS: &'static str;
    /// Returns the adapter that a request names.
    #[doc(hidden)]
    fn adapter(_input: &Self::Input) -> Option<&str> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Text of a language model.
#[derive(Debug)]
pub enum TextTask {}

/// Vectors of texts.
#[derive(Debug)]
pub enum EmbeddingTask {}

/// Scores of texts by a classifier.
#[derive(Debug)]
pub enum JudgeTask {}

impl sealed::Sealed for TextTask {}
impl sealed::Sealed for EmbeddingTask {}
impl sealed::Sealed for JudgeTask {}

impl EngineTask for TextTask {
    type Input = MultimodalInput;
    type Output = TextPiece;
    const CLASS: &'static str = "Engine";

    fn adapter(MultimodalInput(input): &MultimodalInput) -> Option<&str> {
        input.adapter.as_deref()
    }
}

impl EngineTask for EmbeddingTask {
    type Input = EmbeddingInput;
    type Output = EmbeddingPiece;
    const CLASS: &'static str = "Embedder";
}

impl EngineTask for JudgeTask {
    type Input = JudgeInput;
    type Output = JudgeScores;
    const CLASS: &'static str = "Judge";
}

/// Handler of an engine in Python. The engine has one process, and all that it starts are of the
/// process group.
///
/// ```no_run
/// use nsbridge_handler::AsyncHandler as _;
/// use nsbridge_python::{Engine, EngineName, EngineOptions};
///
/// # async fn load(models: nsbridge_handler::Models) -> nsbridge_handler::Result<()> {
/// // The model `target` by vLLM, in the environment of the first `python3` in PATH.
/// let engine = <Engine>::load(EngineOptions::new(EngineName::Vllm), models).await?;
/// # Ok(())
/// # }
/// ```
pub struct Engine<T = TextTask> {
    model: Model,
    adapters: Vec<String>,
    /// Modules of the adapters.
    _folder: TempDir,
    task: PhantomData<T>,
}

impl<T: EngineTask> AsyncHandler for Engine<T> {
    type Options = EngineOptions;
    type Input = T::Input;
    type Output = T::Output;

    async fn load(options: EngineOptions, models: Models) -> Result<Self> {
        let own_slots = options.slots.is_none();
        let adapters = options.adapters.clone();
        adapters.iter().try_for_each(|name| models.require(name).map(drop))?;
        let folder = modules()?;
        let mut plan = Plan::new(options.of_model(&folder, T::CLASS), &models)?;
        plan.kill_after = KILL_AFTER;
        plan.engine = Some(EnginePlan { own_slots, adapters: adapters.clone() });
        Ok(Self { model: Model::load(plan).await?, adapters, _folder: folder, task: PhantomData })
    }

    async fn handle(&self, input: T::Input, job: &mut AsyncJob<T::Output>) -> Result<Finish> {
        if let Some(name) = T::adapter(&input)
            && !self.adapters.iter().any(|known| known == name)
        {
            return Err(unknown_adapter(name, &self.adapters));
        }
        let input = to_raw_value(&input)?;
        self.model.handle(&input, job).await
    }

    fn tasks(&self) -> usize {
        self.model.tasks
    }

    fn health(&self) -> Health {
        self.model.health()
    }

    fn measures(&self) -> Vec<Measure> {
        let values = self.model.host.values.lock();
        let mut measures = self.model.host.measures();
        measures.extend(METRICS.iter().filter_map(|metric| metric.of(&values)));
        measures
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Some(self.model.fingerprint)
    }
}

impl<T> fmt::Debug for Engine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Returns the error of a request that names an adapter that the worker does not have.
fn unknown_adapter(name: &str, known: &[String]) -> Error {
    let name: String = name.chars().take(100).collect();
    Error::bad_input(if known.is_empty() {
        format!("`adapter` is `{name}`, and this worker has no adapters")
    } else {
        format!("`adapter` is `{name}`: this worker has `{}`", known.join("`, `"))
    })
}

/// Writes the modules of the adapters to a folder that only this user can read.
fn modules() -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("nsbridge-engine-").tempdir();
    let write = folder.and_then(|folder| {
        for (name, text) in MODULES {
            fs::write(folder.path().join(name), text)?;
        }
        Ok(folder)
    });
    let temporary = std::env::temp_dir();
    write.map_err(|error| {
        let place = temporary.display();
        Error::fatal(format!(
            "cannot write the engine's adapter below {place}: {error}; TMPDIR names a folder"
        ))
    })
}

/// Metric of an engine.
struct Metric {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
}

impl Metric {
    const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, is_counter: true }
    }

    const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, is_counter: false }
    }

    /// Returns the measure, if the engine has told a value.
    fn of(&self, values: &BTreeMap<String, f64>) -> Option<Measure> {
        let value = *values.get(self.name)?;
        let make = if self.is_counter { Measure::counter } else { Measure::gauge };
        Some(make(self.name, self.help, value))
    }
}

/// Metrics of engines. An engine tells those that it has.
const METRICS: [Metric; 9] = [
    Metric::gauge("engine_requests_running", "Requests that the engine runs"),
    Metric::gauge("engine_requests_waiting", "Requests that wait in the engine"),
    Metric::gauge("engine_kv_cache_usage_ratio", "Part of the KV cache that is in use, 0 to 1"),
    Metric::counter("engine_prefix_cache_queries", "Tokens looked up in the prefix cache"),
    Metric::counter("engine_prefix_cache_hits", "Tokens found in the prefix cache"),
    Metric::counter("engine_draft_tokens", "Tokens that a draft proposed"),
    Metric::counter("engine_accepted_tokens", "Tokens of a draft that the target accepted"),
    Metric::counter("engine_prompt_tokens", "Tokens of prompts"),
    Metric::counter("engine_generation_tokens", "Tokens generated"),
];

#[cfg(test)]
mod tests {
    use super::{EngineName, EngineOptions, MODULES, modules};

    #[test]
    fn an_engine_without_an_adapter_is_refused_by_the_names_of_the_others() {
        let refused =
            |text: &str| serde_json::from_str::<EngineOptions>(text).unwrap_err().to_string();
        let error = refused(r#"{"engine": "vlm"}"#);
        for name in ["`vlm`", "`vllm`", "`sglang`"] {
            assert!(error.contains(name), "{error}");
        }
        let error = refused(r#"{"engine": "vllm", "slot": 4}"#);
        assert!(error.contains("`slot`") && error.contains("`slots`"), "{error}");
    }

    #[test]
    fn each_engine_has_its_module_in_the_folder() {
        let folder = modules().unwrap();
        for engine in [EngineName::Sglang, EngineName::Vllm] {
            assert!(folder.path().join(engine.module()).is_file());
        }
        // The folder of the modules comes first in the path of imports.
        assert!(MODULES.iter().all(|(name, _)| !["sglang.py", "vllm.py"].contains(name)));
    }
}
