//! Options that name the model, its draft and its handler.

use std::path::PathBuf;

use nsbridge_import::{Fate, Revision, Source, Written, fate_of_revision};
use serde_json::Value as Json;
use toml::Value;

use super::super::context::Import;
use super::super::kind::Kind;
use super::super::settings::Setting;
use super::{Apply, Rule, origin};

/// Rules for the Llama handler.
pub(super) const LLAMA: &[Rule] = &[
    Rule { names: &["option.model_id", "option.s3url"], apply: Apply::By(target) },
    Rule { names: &["option.model_dir"], apply: Apply::NotNeeded(BESIDE) },
    Rule { names: &["option.revision"], apply: Apply::By(revision) },
    Rule {
        names: &[
            "option.draft_model_id",
            "option.speculative_draft_model",
            "option.speculative_model",
        ],
        apply: Apply::By(draft),
    },
    Rule { names: &["option.speculative_config"], apply: Apply::By(speculation) },
    Rule { names: &["option.entryPoint"], apply: Apply::NotNeeded(BUILT_IN) },
    Rule { names: &["option.modelName"], apply: Apply::NotNeeded(BESIDE) },
    Rule { names: &["option.served_model_name"], apply: Apply::By(served_name) },
    Rule { names: &["option.handler"], apply: Apply::NotNeeded(BUILT_IN) },
    Rule { names: &["option.pythonExecutable"], apply: Apply::NotNeeded(NO_PYTHON) },
    Rule { names: &["option.enable_venv"], apply: Apply::NotNeeded(NO_PYTHON) },
];

/// Rules for a model without a handler.
pub(super) const NOTHING: &[Rule] = &[
    Rule { names: &["option.model_id", "option.s3url"], apply: Apply::By(target) },
    Rule { names: &["option.revision"], apply: Apply::By(revision) },
    Rule { names: &["option.served_model_name"], apply: Apply::By(served_name) },
    Rule { names: &["option.entryPoint", "option.task"], apply: Apply::By(no_handler) },
];

const BESIDE: &str = "the model is found by its folder";
const BUILT_IN: &str = "the Llama handler of nsbridge serves the model";
const NO_PYTHON: &str = "the Llama handler runs no Python";

fn no_handler(import: &mut Import<'_>, _: &Setting) -> Fate {
    let Kind::Nothing(why) = &import.kind else { return Fate::NotNeeded(BUILT_IN.to_owned()) };
    Fate::NotCarried(why.clone())
}

fn target(import: &mut Import<'_>, setting: &Setting) -> Fate {
    place(import, "target", setting.value(), setting)
}

fn draft(import: &mut Import<'_>, setting: &Setting) -> Fate {
    place(import, "draft", setting.value(), setting)
}

/// Sets a model of `[models]` to the place that an option names.
pub(super) fn place(import: &mut Import<'_>, model: &str, id: &str, setting: &Setting) -> Fate {
    if id.is_empty() {
        return Fate::NotNeeded("it is empty".to_owned());
    }
    let source = import.folder.source(id);
    let revision = import.settings.get(REVISION).filter(|_| model == "target");
    let revision = revision.map(|name| Revision { option: REVISION, name });
    let (fate, step) = import.draft.place(model, &source, revision, &origin(setting));
    if let Some(step) = step {
        import.step(step);
    }
    fate
}

/// Option that names the revision of a model.
const REVISION: &str = "option.revision";

/// Sets `[models] target` for a model without `option.model_id`.
pub(super) fn beside(import: &mut Import<'_>) {
    if let Some(Source::Folder(path)) = import.folder.model(import.settings) {
        // The field is absent, or this function is not called.
        let _ = import.draft.set(
            "models",
            "target",
            Written::Path(path),
            "folder of serving.properties",
        );
        return;
    }
    let step = "[models] target: no option names the model, and its config.json is not beside \
                serving.properties: write its folder or its place in a bucket";
    import.draft.place_missing("target", step);
    import.step(step);
}

fn revision(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let source = import.folder.model(import.settings);
    fate_of_revision(source.as_ref(), Revision { option: REVISION, name: setting.value() })
}

pub(super) fn served_name(import: &mut Import<'_>, setting: &Setting) -> Fate {
    if setting.value().parse::<nsbridge_protocol::ModelName>().is_err() {
        return Fate::NotCarried(
            "it cannot be a part of a queue's name: see [worker] model".to_owned(),
        );
    }
    // An argument of the command has precedence.
    match import.carry("worker", "model", Value::String(setting.value().to_owned()), setting) {
        Fate::NotCarried(_) => Fate::NotNeeded("--model names the model".to_owned()),
        carried => carried,
    }
}

/// Carries vLLM's object of the settings of drafts.
fn speculation(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let Ok(Json::Object(mut fields)) = serde_json::from_str(setting.value()) else {
        return Fate::NotCarried("it is no JSON object".to_owned());
    };
    let method = fields.remove("method");
    let method = method.as_ref().and_then(Json::as_str).unwrap_or("draft_model").to_owned();
    let mut carried = Vec::new();
    let mut lost = Vec::new();
    if !["draft_model", "ngram"].contains(&&*method) {
        return Fate::NotCarried(format!(
            "the Llama handler has drafts by a smaller model or by n-grams, and none by {method}"
        ));
    }
    for (name, value) in fields {
        let fate = match (&*name, &value) {
            ("model", Json::String(id)) if method == "draft_model" => {
                place(import, "draft", id, setting)
            }
            ("num_speculative_tokens", _) => {
                count(import, "speculative_length", &value, (0, 16), setting)
            }
            ("prompt_lookup_max", _) if method == "ngram" => {
                count(import, "speculative_ngram", &value, (2, 64), setting)
            }
            ("draft_tensor_parallel_size", _) => {
                count(import, "draft_model_tp_size", &value, (1, 8), setting)
            }
            _ => Fate::Unknown("its field is not known".to_owned()),
        };
        match fate {
            Fate::Carried(to) => carried.push(to),
            other => lost.push(format!("`{name}`: {}", other.text())),
        }
    }
    if lost.is_empty() {
        return Fate::Carried(carried.join("; "));
    }
    let also = if carried.is_empty() {
        String::new()
    } else {
        format!("; carried over: {}", carried.join("; "))
    };
    Fate::NotCarried(format!("{}{also}", lost.join("; ")))
}

fn count(
    import: &mut Import<'_>,
    field: &str,
    value: &Json,
    (least, most): (i64, i64),
    setting: &Setting,
) -> Fate {
    match value.as_i64().filter(|count| (least..=most).contains(count)) {
        Some(count) => import.carry("handler", field, Value::Integer(count), setting),
        None => Fate::NotCarried(format!("it must be a whole number from {least} to {most}")),
    }
}

/// Sets the task of a model for embeddings that no option names.
pub(super) fn embed(import: &mut Import<'_>) {
    let embed = Written::Plain(Value::String("embed".to_owned()));
    let _ = import.draft.set("handler", "task", embed, "engine = Rust is for embeddings");
}

/// Sets the placeholder for the file of a model without a handler.
pub(super) fn no_file(import: &mut Import<'_>, why: &str) {
    let file: PathBuf = import.folder.0.join("not-written-yet.py");
    let _ = import.draft.set("handler", "entry_point", Written::Path(file), why);
    import.step(why);
}
