//! Configuration of a worker for a model of DJLServing, from its `serving.properties` and variables.
//!
//! [`import`] reads them. An [`Imported`] has the text of a worker.toml, and a report with a line for each option.
//! The command is `nsbridge import-djl`.

mod context;
mod environment;
mod folder;
mod kind;
mod properties;
mod rules;
mod settings;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nsbridge::worker::Config;
use nsbridge_import::{Draft, Fate, Imported, Report, base_name, plain_name, without_secrets};
use nsbridge_protocol::ModelName;
use serde::de::DeserializeOwned;

use context::Import;
use folder::Folder;
use kind::Kind;
use settings::{Settings, Variable};

const FILE: &str = "serving.properties";

/// Comment at the beginning of the file.
const HEAD: &str = "Made by `nsbridge import-djl`. The comment above a field names the option of DJLServing that it \
                    comes from.";

/// Makes the configuration of a worker from the options of a model.
///
/// `file` is `serving.properties` or the model's folder, `env` a file with the container's variables, and
/// `process` has variables of this process. `model` names the model.
///
/// # Errors
///
/// Returns an error if a file cannot be read, if there is no option, or if a worker would refuse the
/// configuration.
pub fn import(
    file: Option<&Path>,
    env: Option<&Path>,
    process: impl IntoIterator<Item = (String, String)>,
    model: Option<ModelName>,
) -> Result<Imported> {
    let (folder, properties) = read_file(file, env.is_some())?;
    let mut variables = environment::of_process(process.into_iter());
    if let Some(file) = env {
        variables.extend(read_variables(file)?);
    }
    let settings = Settings::new(properties, variables);
    if settings.is_empty() && !folder.has("model.py") && !folder.has("config.json") {
        let shown = file.or(env);
        let shown = shown.map_or("the environment".to_owned(), |path| path.display().to_string());
        bail!("{shown} sets no option, and there is no model.py and no config.json beside it");
    }
    let imported = convert(&settings, &folder, model);
    check(&imported.draft)?;
    Ok(imported)
}

/// Reads `serving.properties`, and returns it with its folder.
fn read_file(file: Option<&Path>, more: bool) -> Result<(Folder, Vec<properties::Property>)> {
    let here = || std::env::current_dir().context("finding the current folder");
    let Some(file) = file else { return Ok((Folder(here()?), Vec::new())) };
    let absolute = std::path::absolute(file).context("finding the current folder")?;
    let (folder, path) = if absolute.is_dir() {
        let path = absolute.join(FILE);
        if !path.exists() && more {
            return Ok((Folder(absolute), Vec::new()));
        }
        ensure!(path.exists(), "{} is a folder without {FILE}", file.display());
        (absolute, path)
    } else {
        (absolute.parent().map(Path::to_owned).unwrap_or_default(), absolute)
    };
    let shown = path.display();
    let bytes = fs::read(&path).with_context(|| format!("cannot read {shown}"))?;
    let text = properties::decode(&bytes).with_context(|| format!("cannot use {shown}"))?;
    let properties = properties::parse(&text).with_context(|| format!("cannot use {shown}"))?;
    Ok((Folder(folder), properties))
}

fn read_variables(file: &Path) -> Result<Vec<Variable>> {
    let shown = file.display();
    let bytes = fs::read(file).with_context(|| format!("cannot read {shown}"))?;
    let text = properties::decode(&bytes).with_context(|| format!("cannot use {shown}"))?;
    environment::variables(&text)
        .map_err(|line| anyhow!("cannot use {shown}: line {line} is not NAME=VALUE"))
}

/// Makes the configuration of a worker from the options.
fn convert(settings: &Settings, folder: &Folder, model: Option<ModelName>) -> Imported {
    let kind = Kind::of(settings, folder);
    let mut import = Import { settings, folder, kind, draft: Draft::new(HEAD), steps: Vec::new() };
    if let Some(model) = model {
        import.draft.set_text("worker", "model", model.as_str(), "--model");
    }
    let mut report = Report::default();
    for setting in settings.iter() {
        let fate = match settings.winner_over(setting) {
            _ if setting.is_ignored() => Fate::NotNeeded("it is empty".to_owned()),
            Some(winner) => {
                Fate::NotNeeded(format!("{} ({}) has precedence", winner.name, winner.place))
            }
            None => rules::apply(&mut import, setting),
        };
        report.add(&setting.name, setting.places(), fate);
    }
    rules::complete(&mut import);
    let (name, origin) = name_of(settings, folder);
    import.draft.set_text("worker", "model", &name, &origin);
    import.draft.set_broker_and_keys("DJLServing");
    let Import { kind, mut draft, steps, .. } = import;
    report.steps = steps;
    if kind.is_llama() {
        let gpu =
            "device = \"cuda\"   # computes on GPUs, as DJLServing's containers do (docs/gpu.md)";
        draft.hint("handler", gpu);
        let adapters = folder.adapters();
        if !adapters.is_empty() {
            report.remarks.push(format!(
                "the adapters {} are not served: merge each into the model, and serve it as a model of its own",
                adapters.join(", ")
            ));
        }
        if folder.has_formatters_alone("model.py") {
            let what = "the formatters in model.py are not called: format what the client receives";
            report.remarks.push(what.to_owned());
        }
    }
    if matches!(kind, Kind::Python(_)) && folder.has("requirements.txt") {
        let what = "nsbridge does not install requirements.txt: install it for [handler] python";
        report.remarks.push(what.to_owned());
    }
    Imported::new(draft, report)
}

/// Returns a name for the model, and its origin.
fn name_of(settings: &Settings, folder: &Folder) -> (String, String) {
    let id = settings.find("option.model_id").or_else(|| settings.find("option.s3url"));
    if let Some(setting) = id
        && let Some(name) = base_name(&without_secrets(setting.value()))
    {
        return (name, format!("{} ({})", setting.name, setting.place));
    }
    let name = folder.0.file_name().and_then(|name| plain_name(&name.to_string_lossy()));
    (name.unwrap_or_else(|| "model".to_owned()), "folder of serving.properties".to_owned())
}

/// Holds the configuration against the worker's own types.
fn check(draft: &Draft) -> Result<()> {
    let (_dir, file) = draft.write_to_check()?;
    let refused = "a worker would refuse the configuration";
    let config = Config::read(&file, []).context(refused)?;
    let options = match config.handler.contains_key("entry_point") {
        true => read::<nsbridge_python::Options>(config.handler),
        false => read::<nsbridge_llama::Options>(config.handler),
    };
    options.context(refused)
}

fn read<T: DeserializeOwned>(table: toml::Table) -> Result<()> {
    match table.try_into::<T>() {
        Ok(_) => Ok(()),
        Err(error) => bail!("[handler] {}", error.message()),
    }
}

#[cfg(test)]
mod tests;
