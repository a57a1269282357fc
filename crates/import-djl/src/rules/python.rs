//! Options of a model in Python.

use std::path::{Path, PathBuf};

use nsbridge_import::{Fate, Source, Written};
use toml::Value;

use super::super::context::Import;
use super::super::kind::Kind;
use super::super::settings::Setting;
use super::{Apply, Rule, common, models, number};

/// Calls at a time of an asynchronous model whose options set no number: the default of DJLServing's
/// `max_rolling_batch_size`.
const TASKS: i64 = 32;

/// Maximum number of processes, of calls at a time and of crashes.
const MAX_COUNT: u64 = 1024;

/// Parts of names of secrets, without what separates their words.
const SECRETS: [&str; 16] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "accesstoken",
    "apitoken",
    "authtoken",
    "hftoken",
    "hubtoken",
    "sessiontoken",
    "bearer",
];

/// Words before `token` or `key` in names that are none of a secret: special tokens, numbers of tokens
/// and names of fields.
const PLAIN: [&str; 31] = [
    "additionalspecial",
    "audio",
    "begin",
    "bos",
    "cls",
    "decoderstart",
    "end",
    "eos",
    "image",
    "imageplaceholder",
    "input",
    "mask",
    "max",
    "maxnew",
    "min",
    "minnew",
    "num",
    "output",
    "pad",
    "per",
    "placeholder",
    "prompt",
    "sep",
    "special",
    "start",
    "stop",
    "text",
    "think",
    "unk",
    "video",
    "vision",
];

/// Fate of a hub's token, with which a model's own code may download. It is a secret.
const TOKEN: &str = "set it for the worker: a model's process inherits it";

pub(super) const RULES: &[Rule] = &[
    Rule { names: &["option.entryPoint"], apply: Apply::By(entry_point) },
    Rule { names: &["option.modelName"], apply: Apply::By(model_name) },
    Rule {
        names: &["option.handler"],
        apply: Apply::Unless(
            &["handle"],
            "it is the default",
            "nsbridge calls the function `handle`: add `handle = ..` with its name to the file",
        ),
    },
    Rule {
        names: &["option.enable_venv"],
        apply: Apply::Unless(
            &["false"],
            "it is off",
            "nsbridge installs nothing: make the environment once (`python3 -m venv env`, `env/bin/pip install -r \
             requirements.txt`) and set [handler] python to its interpreter",
        ),
    },
    Rule { names: &["option.model_id", "option.s3url"], apply: Apply::By(model_id) },
    Rule { names: &["option.served_model_name"], apply: Apply::By(models::served_name) },
    Rule { names: &["option.async_mode"], apply: Apply::By(async_mode) },
    Rule { names: &["option.max_rolling_batch_size"], apply: Apply::By(tasks) },
    Rule {
        names: &["option.rolling_batch"],
        apply: Apply::Unless(
            &["disable", ""],
            "it is off",
            "nsbridge does not call a model step by step: `handle` gets a whole request",
        ),
    },
    Rule {
        names: &["option.mpi_mode"],
        apply: Apply::Unless(&["false"], "it is off", common::MPI),
    },
    Rule {
        names: &["option.predict_timeout"],
        apply: Apply::NotCarried(
            "a call in Python has no limit of its own: it ends at its caller's deadline",
        ),
    },
    Rule {
        names: &["option.parallel_loading"],
        apply: Apply::Unless(
            &["true"],
            "all processes load at the same time",
            "all processes load at the same time, which takes the memory of all of them at once",
        ),
    },
    Rule {
        names: &["option.env"],
        apply: Apply::NotCarried(
            "set its variables for the worker: a model's process inherits them",
        ),
    },
    Rule {
        names: &["option.max_output_size"],
        apply: Apply::NotCarried("a reply has at most 8 MiB, and a piece 64 KiB"),
    },
    Rule {
        names: &["option.enable_lora"],
        apply: Apply::Unless(
            &["false"],
            "it is off",
            "nsbridge calls no register_adapter: load the adapters in `load`, and select one by the input",
        ),
    },
    Rule { names: &["batch_size", "max_dynamic_batch_size"], apply: Apply::By(batch_size) },
    Rule { names: &["max_batch_delay"], apply: Apply::By(batch_delay) },
];

/// Rules that also hold for a model in Python that is still to be written.
pub(super) const SERVER: &[Rule] = &[
    Rule { names: &["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"], apply: Apply::NotCarried(TOKEN) },
    Rule { names: &["option.pythonExecutable"], apply: Apply::By(python) },
    Rule {
        names: &["option.model_loading_timeout"],
        apply: Apply::Count("load_timeout_s", 1, 1 << 31),
    },
    Rule { names: &["load_on_devices"], apply: Apply::By(devices) },
    Rule { names: &["retry_threshold"], apply: Apply::By(crashes) },
    Rule { names: &["minWorkers"], apply: Apply::By(fewest) },
    Rule { names: &["maxWorkers"], apply: Apply::By(processes) },
    Rule {
        names: &["gpu.minWorkers", "gpu.maxWorkers", "cpu.minWorkers", "cpu.maxWorkers"],
        apply: Apply::By(by_device),
    },
];

/// Passes an option to the model, as DJLServing does, in the options of its `load`.
pub(super) fn property(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let name = setting.option().unwrap_or(&setting.key).to_owned();
    if is_secret(&name) {
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let how = if name.chars().all(is_word) {
            format!("set NSBRIDGE_HANDLER__OPTIONS__{} for the worker", name.to_uppercase())
        } else {
            "set it by hand".to_owned()
        };
        return Fate::NotCarried(format!(
            "it reads like a secret, which worker.toml should not hold: {how}"
        ));
    }
    // The model gets the value as it is, with its white space.
    let value = Written::Plain(Value::String(setting.value.clone()));
    import.write("handler.options", &name, value, setting)
}

/// Returns true if an option of this name may hold a secret.
fn is_secret(name: &str) -> bool {
    let lower = name.to_lowercase();
    let separates = |c: char| !c.is_alphanumeric();
    let letters = lower.replace(separates, "");
    if SECRETS.iter().any(|part| letters.contains(part)) {
        return true;
    }
    let Some(whole) = stem(&letters) else { return false };
    let words = stem(&lower).unwrap_or_default();
    let last = words.trim_end_matches(separates).rsplit(separates).next().unwrap_or_default();
    !PLAIN.contains(&whole) && !PLAIN.contains(&last)
}

fn stem(name: &str) -> Option<&str> {
    name.strip_suffix("token").or_else(|| name.strip_suffix("key"))
}

fn entry_point(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let Kind::Python(file) = import.kind.clone() else { return property(import, setting) };
    let fate = import.write("handler", "entry_point", Written::Path(file.clone()), setting);
    if !file.exists() {
        import.step(format!("[handler] entry_point: there is no file {}", file.display()));
    }
    fate
}

fn model_name(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match &import.kind {
        Kind::Python(file) if file.file_stem().is_some_and(|stem| stem == setting.value()) => {
            Fate::Carried("[handler] entry_point".to_owned())
        }
        _ => property(import, setting),
    }
}

fn python(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let value = setting.value();
    // A lone name is looked up in PATH.
    let python = if value.contains('/') {
        Written::Path(import.folder.0.join(value))
    } else {
        Written::Plain(Value::String(value.to_owned()))
    };
    if let Written::Path(path) = &python
        && !path.exists()
    {
        import.step(format!("[handler] python: there is no {}", path.display()));
    }
    import.write("handler", "python", python, setting)
}

fn model_id(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match import.folder.source(setting.value()) {
        // DJLServing downloads a bucket, and hands other names to the model.
        Source::Bucket(_) => target(import, setting),
        // A folder is a part of the fingerprint only in [models]. A file other than GGUF cannot be there.
        Source::Folder(path) if !path.is_file() || is_gguf(&path) => target(import, setting),
        Source::Hub(_) => {
            let fate = property(import, setting);
            let what = "the model downloads it at each start; to pin it, `nsbridge model push` it and write its place \
                        into [models]";
            match fate {
                Fate::Carried(to) => Fate::Carried(format!("{to}: {what}")),
                other => other,
            }
        }
        _ => property(import, setting),
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

fn target(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match models::place(import, "target", setting.value(), setting) {
        Fate::Carried(to) => Fate::Carried(format!(
            "{to}: it is the property model_id, and models[\"target\"] of `load`"
        )),
        other => other,
    }
}

fn async_mode(import: &mut Import<'_>, setting: &Setting) -> Fate {
    if !setting.value().eq_ignore_ascii_case("true") {
        return Fate::NotNeeded("it is off".to_owned());
    }
    if import.settings.get("option.max_rolling_batch_size").is_some() {
        return Fate::Carried("[handler] slots, from option.max_rolling_batch_size".to_owned());
    }
    import.carry("handler", "slots", Value::Integer(TASKS), setting)
}

fn tasks(import: &mut Import<'_>, setting: &Setting) -> Fate {
    if !import.settings.is_true("option.async_mode") {
        return property(import, setting);
    }
    match number(setting, 1, MAX_COUNT) {
        Ok(tasks) => import.carry("handler", "slots", Value::Integer(tasks), setting),
        Err(fate) => fate,
    }
}

fn devices(_: &mut Import<'_>, setting: &Setting) -> Fate {
    match setting.value() {
        "*" | "cpu" => Fate::NotNeeded("the model selects its device".to_owned()),
        _ => Fate::NotCarried(
            "the model selects its device: set CUDA_VISIBLE_DEVICES for the worker, or start one for each".to_owned(),
        ),
    }
}

/// Returns true if the model's file has a `run` for batches.
fn has_run(import: &Import<'_>) -> bool {
    matches!(&import.kind, Kind::Python(file) if import.folder.has_run(file))
}

const NO_RUN: &str = "`handle` gets one request at a time: a function `run(inputs)` gets a batch, with [handler] \
                      batch_size and max_batch_delay (docs/python.md)";

fn batch_size(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match number(setting, 1, MAX_COUNT / 2) {
        Ok(size) if has_run(import) => {
            import.carry("handler", "batch_size", Value::Integer(size), setting)
        }
        Ok(1) => Fate::NotNeeded("it is the default".to_owned()),
        Ok(_) => Fate::NotCarried(NO_RUN.to_owned()),
        Err(fate) => fate,
    }
}

fn batch_delay(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match number(setting, 0, 3_600_000) {
        Ok(delay) if has_run(import) => {
            import.carry("handler", "max_batch_delay", Value::Integer(delay), setting)
        }
        Ok(_) if import.settings.get("batch_size").unwrap_or("1") == "1" => {
            Fate::NotNeeded("there are no batches".to_owned())
        }
        Ok(_) => Fate::NotCarried(NO_RUN.to_owned()),
        Err(fate) => fate,
    }
}

/// DJLServing gives a model up at one failure more than this number, and a worker leaves at the last of
/// its `crashes`.
fn crashes(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match number(setting, 0, MAX_COUNT - 1) {
        Ok(failures) => import.carry("handler", "crashes", Value::Integer(failures + 1), setting),
        Err(fate) => fate,
    }
}

fn processes(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match number(setting, 1, MAX_COUNT) {
        Ok(count) => import.carry("handler", "processes", Value::Integer(count), setting),
        Err(fate) => fate,
    }
}

fn fewest(import: &mut Import<'_>, setting: &Setting) -> Fate {
    less_than_most(import, setting, "maxWorkers")
}

/// Carries a minimum if there is no maximum. The number of processes does not change.
fn less_than_most(import: &mut Import<'_>, setting: &Setting, most: &str) -> Fate {
    match import.settings.get(most) {
        None => processes(import, setting),
        Some(most) if most == setting.value() => Fate::Carried("[handler] processes".to_owned()),
        Some(_) => Fate::NotCarried(
            "the number of processes does not change: [handler] processes is the maximum"
                .to_owned(),
        ),
    }
}

/// Carries the numbers for GPUs, which have precedence in DJLServing where there are some, or else those
/// for CPUs.
fn by_device(import: &mut Import<'_>, setting: &Setting) -> Fate {
    let (device, name) = setting.key.split_once('.').unwrap_or(("", &setting.key));
    let name = name.to_owned();
    let settings = import.settings;
    let has = |name: &str| settings.get(name).is_some();
    let general = ["minWorkers", "maxWorkers"].iter().any(|name| has(name));
    let gpus = ["gpu.minWorkers", "gpu.maxWorkers"].iter().any(|name| has(name));
    if general || device == "cpu" && gpus {
        return Fate::NotCarried(format!(
            "[handler] processes is one number: write this one on a machine with {}",
            if device == "cpu" { "CPUs alone" } else { "GPUs" },
        ));
    }
    if name == "minWorkers" {
        return less_than_most(import, setting, &format!("{device}.maxWorkers"));
    }
    processes(import, setting)
}

/// Sets the file of a model that no option names.
pub(super) fn own_file(import: &mut Import<'_>, file: &Path) {
    let file: PathBuf = file.to_owned();
    let _ = import.draft.set(
        "handler",
        "entry_point",
        Written::Path(file),
        "beside serving.properties",
    );
}
