//! Choice of the handler, by the rules by which DJLServing chooses its engine and its entry point.

use std::path::{Path, PathBuf};

use nsbridge_handler::Model;
use nsbridge_import::{Source, without_secrets};
use nsbridge_llama::Config;

use super::folder::Folder;
use super::settings::Settings;

/// Handler that serves the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Llama handler: text.
    Text,
    /// Llama handler: vectors.
    Embeddings,
    /// Handler of models in Python, with the file and the option that names it.
    Python(PathBuf),
    /// None of the handlers, with the reason.
    Nothing(String),
}

/// Remedy for a model without a handler.
const WRITE: &str = "write a model.py that loads it (docs/python.md), and name it in [handler] \
                     entry_point";

/// Modules of `djl_python` that serve language models.
const LANGUAGE: [&str; 11] = [
    "deepspeed",
    "fastertransformer",
    "huggingface",
    "lmi_dist",
    "lmi_trtllm.trtllm_async_service",
    "lmi_vllm.vllm_async_service",
    "tensorrt_llm",
    "transformers-neuronx",
    "transformers_neuronx",
    "trtllm",
    "vllm",
];

/// Engines whose models are served by Python or by the language model handlers of DJLServing.
const ENGINES: [&str; 5] = ["Python", "MPI", "DeepSpeed", "FasterTransformer", "Rust"];

/// Formats of models of scikit-learn.
const SKLEARN: [&str; 5] = ["skops", "joblib", "pkl", "pickle", "cloudpkl"];

impl Kind {
    pub(super) fn is_llama(&self) -> bool {
        matches!(self, Self::Text | Self::Embeddings)
    }

    pub(super) fn of(settings: &Settings, folder: &Folder) -> Self {
        let engine = settings.get("engine");
        if let Some(engine) = engine.filter(|engine| !ENGINES.contains(engine)) {
            return Self::Nothing(format!(
                "no handler of nsbridge has the engine {engine}: {WRITE}"
            ));
        }
        if let Some(entry) = settings.get("option.entryPoint") {
            return Self::of_entry(entry, settings, folder);
        }
        if let Some(file) = own_file(settings, folder) {
            return Self::Python(file);
        }
        if folder.has("MAR-INF/MANIFEST.json") {
            return Self::Nothing(format!("this is a model of TorchServe: {WRITE}"));
        }
        let has_model = folder.model(settings).is_some();
        if !has_model && folder.has_extension(&SKLEARN) {
            return Self::Nothing(format!("this is a model of scikit-learn: {WRITE}"));
        }
        if engine.is_none() && !has_model && folder.has_extension(&["pt", "onnx", "xgb", "bst"]) {
            return Self::Nothing(format!(
                "no handler of nsbridge has the format of this model: {WRITE}"
            ));
        }
        Self::built_in(settings, folder)
    }

    fn of_entry(entry: &str, settings: &Settings, folder: &Folder) -> Self {
        // Its other schemes are those of pip, such as `git+https`. An address may hold a password.
        if entry.contains("://") {
            let what = "nsbridge downloads no code: download the file of option.entryPoint, review it, and \
                        name it in [handler] entry_point";
            return Self::Nothing(what.to_owned());
        }
        if let Some(module) = entry.strip_prefix("djl_python.") {
            if LANGUAGE.contains(&module) {
                return Self::built_in(settings, folder);
            }
            return Self::Nothing(format!("djl_python.{module} is a part of DJLServing: {WRITE}"));
        }
        let file =
            if is_python(entry) { entry.to_owned() } else { entry.replace('.', "/") + ".py" };
        if !is_python(entry) && !folder.has(&file) {
            return Self::Nothing(format!(
                "option.entryPoint is a module, and {file} is not beside it: name a file in [handler] \
                 entry_point"
            ));
        }
        Self::Python(folder.file(&file))
    }

    /// Chooses the handler for a model of DJLServing's own handlers.
    fn built_in(settings: &Settings, folder: &Folder) -> Self {
        let rust = settings.get("engine") == Some("Rust");
        let kind = match settings.get("option.task").unwrap_or("auto") {
            "auto" | "generate" | "text-generation" if !rust => Self::Text,
            "auto" | "embed" | "embedding" | "feature-extraction" | "text-embedding" => {
                Self::Embeddings
            }
            task => {
                return Self::Nothing(format!(
                    "no handler of nsbridge has the task {task}: {WRITE}"
                ));
            }
        };
        match folder.model(settings) {
            Some(Source::Folder(path)) if path.exists() => match Config::read(&Model::at(&path)) {
                Ok(_) => kind,
                Err(error) => Self::Nothing(format!("{}: {WRITE}", nsbridge_base::chain(&error))),
            },
            Some(Source::Other(id)) if id.starts_with("djl://") => {
                let id = without_secrets(&id);
                Self::Nothing(format!("{id} is a model of DJL's model zoo: {WRITE}"))
            }
            _ => kind,
        }
    }
}

fn is_python(entry: &str) -> bool {
    Path::new(entry).extension().is_some_and(|extension| extension == "py")
}

/// Returns the file of Python that DJLServing finds without `option.entryPoint`.
fn own_file(settings: &Settings, folder: &Folder) -> Option<PathBuf> {
    let name = settings.get("option.modelName").map(|name| format!("{name}.py"));
    let files = ["model.py".to_owned()].into_iter().chain(name);
    let mut files = files.filter(|file| folder.has(file) && !folder.has_formatters_alone(file));
    files.next().map(|file| folder.0.join(file))
}
