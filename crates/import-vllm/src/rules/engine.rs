//! Arguments of vLLM's engine that are no option of the handler, or not as they are.

use nsbridge_import::{Fate, Revision, Source, Written, fate_of_revision, key};
use serde_json::Value as Json;
use toml::Value;

use super::{Apply, Rule, carry};
use crate::arguments::Argument;
use crate::context::Import;
use crate::settings::Setting;
use crate::value::count;

/// Rules for arguments that are not carried over as they are.
pub(super) const RULES: &[Rule] = &[
    Rule { names: &["model"], apply: Apply::By(model) },
    Rule { names: &["served_model_name"], apply: Apply::By(served_names) },
    Rule { names: &["revision"], apply: Apply::By(revision) },
    Rule { names: &["max_model_len"], apply: Apply::By(context) },
    Rule { names: &["load_format"], apply: Apply::By(load_format) },
    Rule { names: &["download_dir"], apply: Apply::By(download_folder) },
    Rule { names: &["reasoning_parser"], apply: Apply::By(reasoning) },
    Rule { names: &["shutdown_timeout"], apply: Apply::By(grace) },
    Rule {
        names: &["hf_token"],
        apply: Apply::NotNeeded(
            "a worker downloads nothing from a hub: give the token to `hf download`",
        ),
    },
    Rule {
        names: &["reasoning_parser_plugin"],
        apply: Apply::NotCarried("the gateway finds reasoning between <think> and </think> alone"),
    },
    Rule { names: &["runner"], apply: Apply::By(runner) },
    Rule { names: &["convert"], apply: Apply::By(task) },
    Rule {
        names: &["io_processor_plugin"],
        apply: Apply::NotCarried("a worker with vLLM makes texts, vectors and scores alone"),
    },
    Rule {
        names: &["logprobs_mode"],
        apply: Apply::Unless(
            &["raw_logprobs"],
            "log-probabilities are those of the model",
            "log-probabilities are those of the model, before the sampling parameters",
        ),
    },
    Rule {
        names: &["skip_tokenizer_init"],
        apply: Apply::NotCarried("a worker needs the tokenizer: its requests are texts"),
    },
    Rule {
        names: &["disable_log_stats"],
        apply: Apply::NotNeeded("the /metrics of a worker are made of these statistics"),
    },
    Rule {
        names: &["enable_log_requests"],
        apply: Apply::NotCarried(
            "no request is logged: a worker logs a line for the end of each, without text",
        ),
    },
    Rule {
        names: &["logging_config", "log_level", "log_config_file", "aggregate_engine_logging"],
        apply: Apply::NotCarried(
            "a worker logs what vLLM prints while it loads; while requests run, it goes to [handler] output",
        ),
    },
];

/// Parsers of models that reason between `<think>` and `</think>`.
const THINK: [&str; 9] = [
    "deepseek_r1",
    "deepseek_v3",
    "ernie45",
    "glm45",
    "holo2",
    "minimax_m2",
    "olmo3",
    "qwen3",
    "step3",
];

fn model(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    let revision = import.settings.get("revision").filter(|name| !name.is_empty());
    let revision = revision.map(|name| Revision { option: "--revision", name });
    let (fate, step) = import.draft.place("target", &import.source, revision, &setting.origin());
    import.steps.extend(step);
    fate
}

fn revision(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    let name = setting.value().unwrap_or_default();
    fate_of_revision(Some(&import.source), Revision { option: "--revision", name })
}

/// Names the model of the worker by the first name, and gives the others to the gateway.
fn served_names(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    let mut names = setting.values().to_vec();
    names.retain(|name| *name != import.name);
    let more = (!names.is_empty()).then(|| {
        let names = names.into_iter().map(Value::String).collect();
        format!("; {}", import.gateway_model("aliases", &Value::Array(names)))
    });
    Fate::Carried(format!("[worker] model = \"{}\"{}", import.name, more.unwrap_or_default()))
}

/// Names the adapters in `[models]` and `[handler]`. vLLM has them as `NAME=PATH` or as JSON objects.
pub(super) fn adapters(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    let read: Option<Vec<_>> = setting.values().iter().map(|text| adapter(text)).collect();
    let Some(read) = read else {
        return Fate::NotCarried(
            "each value must be NAME=PATH, or a JSON object with `name` and `path`".to_owned(),
        );
    };
    for (name, path) in &read {
        let source = Source::read(path, &import.folder.join(path));
        let (fate, step) = import.draft.place(name, &source, None, &setting.origin());
        import.steps.extend(step);
        if fate.is_loss() {
            return fate;
        }
    }
    let names = read.iter().map(|(name, _)| Value::String(name.clone())).collect();
    match import.draft.carry("handler", "adapters", Value::Array(names), &setting.origin()) {
        Fate::Carried(to) => {
            let queue = Value::String(import.name.clone());
            let tables = read.iter().map(|(name, _)| {
                let adapter = Value::String(name.clone());
                format!("[models.{}] queue = {queue}, adapter = {adapter}", key(name))
            });
            let tables: Vec<_> = tables.collect();
            Fate::Carried(format!("{to}; gateway.toml: {}", tables.join("; ")))
        }
        other => other,
    }
}

/// Returns name and path of an adapter.
fn adapter(text: &str) -> Option<(String, String)> {
    if text.trim_start().starts_with('{') {
        let fields: Json = serde_json::from_str(text).ok()?;
        let field = |name: &str| Some(fields.get(name)?.as_str()?.to_owned());
        return Some((field("name")?, field("path")?));
    }
    let (name, path) = text.split_once('=')?;
    (!name.is_empty() && !path.is_empty()).then(|| (name.to_owned(), path.to_owned()))
}

/// Returns the fate of the kind of the model, which `--convert` names more exactly.
fn runner(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    match (setting.value(), import.settings.get("convert")) {
        (Some("auto" | "generate"), _) => {
            Fate::NotNeeded("a worker with vLLM generates text".to_owned())
        }
        (_, Some("embed" | "classify")) => Fate::NotNeeded("`--convert` names the task".to_owned()),
        _ => Fate::NotCarried(
            "write [handler] task = \"embed\" for a model of vectors, \"judge\" for one of scores"
                .to_owned(),
        ),
    }
}

/// Sets the task of the worker.
fn task(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    let task = match setting.value() {
        Some("embed") => "embed",
        Some("classify") => "judge",
        _ => return Fate::NotNeeded("a worker with vLLM generates text".to_owned()),
    };
    let value = Value::String(task.to_owned());
    match import.draft.carry("handler", "task", value.clone(), &setting.origin()) {
        Fate::Carried(to) => {
            Fate::Carried(format!("{to}; {}", import.gateway_model("task", &value)))
        }
        other => other,
    }
}

fn context(import: &mut Import<'_>, argument: &Argument, setting: &Setting<'_>) -> Fate {
    let fate = carry(import, argument, setting);
    match (&fate, count(setting.value().unwrap_or_default())) {
        (Fate::Carried(to), Some(tokens)) if tokens > 0 => {
            let context = import.gateway_model("context", &Value::Integer(tokens));
            Fate::Carried(format!("{to}; {context} tells clients"))
        }
        _ => fate,
    }
}

fn load_format(import: &mut Import<'_>, argument: &Argument, setting: &Setting<'_>) -> Fate {
    let streams = ["runai_streamer", "runai_streamer_sharded", "tensorizer"];
    match (&import.source, setting.value()) {
        (Source::Bucket(_), Some(format)) if streams.contains(&format) => {
            Fate::NotNeeded("a worker loads a model of a bucket by itself ([store])".to_owned())
        }
        _ => carry(import, argument, setting),
    }
}

fn download_folder(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    match (&import.source, setting.value()) {
        (Source::Bucket(_), Some(folder)) => {
            let folder = Written::Path(import.folder.join(folder));
            import.draft.write("store", "cache", folder, &setting.origin())
        }
        _ => Fate::NotNeeded("nothing is downloaded".to_owned()),
    }
}

fn reasoning(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    match setting.value() {
        None | Some("") => Fate::NotNeeded("it is empty".to_owned()),
        Some(parser) if THINK.contains(&parser) => {
            let field = import.gateway_model("reasoning", &Value::String("think".to_owned()));
            Fate::AtGateway(format!(
                "{field}, or \"think_begun\" if the chat template writes the first tag (`nsbridge model inspect`)"
            ))
        }
        Some(_) => Fate::NotCarried(
            "the gateway finds reasoning between <think> and </think> alone: for such a model, [models.NAME] \
             reasoning = \"think\" of gateway.toml"
                .to_owned(),
        ),
    }
}

fn grace(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    match setting.value().and_then(|seconds| seconds.parse::<u32>().ok()) {
        Some(0) => Fate::NotNeeded(
            "requests that a worker ends with are answered by another one; [worker] grace_s is the time for \
             them to finish"
                .to_owned(),
        ),
        Some(seconds) => {
            import.draft.carry("worker", "grace_s", Value::Integer(seconds.into()), &setting.origin())
        }
        None => Fate::NotCarried("it must be a whole number".to_owned()),
    }
}
