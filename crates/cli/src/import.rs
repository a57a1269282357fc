//! `nsbridge import-djl`: the configuration of a worker for a model of DJLServing.

mod context;
mod draft;
mod environment;
mod folder;
mod kind;
mod properties;
mod report;
mod rules;
mod settings;

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nsbridge::worker::Config;
use nsbridge_protocol::ModelName;
use serde::de::DeserializeOwned;
use toml::Value;

use crate::failure::note;
use crate::terminal::print;
use crate::worker::Kind as Worker;
use context::Import;
use draft::{Draft, Written};
use folder::{Folder, without_secrets};
use kind::Kind;
use report::{Fate, Report};
use settings::{Settings, Variable};

const FILE: &str = "serving.properties";

/// Writes the worker.toml of a model of DJLServing, and reports what becomes of each option.
///
/// The report goes to stderr: one line for each option, and what is left to do before the worker
/// starts.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nsbridge import-djl llama/serving.properties --out worker.toml\n  \
    nsbridge import-djl --env container.env --model llama > worker.toml\n\n\
    docs/from-djl.md has each option and what becomes of it."
)]
pub(crate) struct Arguments {
    /// File serving.properties, or the folder of the model.
    #[arg(value_name = "FILE", required_unless_present_any = ["env", "environment"])]
    file: Option<PathBuf>,
    /// File with the container's variables, such as OPTION_DTYPE=fp16, one on a line.
    #[arg(long, value_name = "FILE")]
    env: Option<PathBuf>,
    /// Reads the variables of DJLServing from this command's environment too.
    #[arg(long)]
    environment: bool,
    /// Name of the model [default: `option.served_model_name`, or that of the model or of its folder]
    #[arg(long, value_name = "NAME")]
    model: Option<ModelName>,
    /// File to write instead of stdout; an existing file is not overwritten.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrites the file of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Writes nothing, and exits with code 1, if an option is not carried over or not known.
    #[arg(long)]
    strict: bool,
}

/// Configuration with the report of its making.
#[derive(Debug)]
struct Imported {
    draft: Draft,
    report: Report,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let (folder, properties) = read_file(arguments.file.as_deref(), arguments.env.is_some())?;
    let mut variables = match arguments.environment {
        true => {
            // A variable that is no UTF-8 is none of DJLServing's.
            let read = |(name, value): (OsString, OsString)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            };
            environment::of_process(std::env::vars_os().filter_map(read))
        }
        false => Vec::new(),
    };
    if let Some(file) = &arguments.env {
        variables.extend(read_variables(file)?);
    }
    let settings = Settings::new(properties, variables);
    if settings.is_empty() && !folder.has("model.py") && !folder.has("config.json") {
        let shown = arguments.file.as_deref().or(arguments.env.as_deref());
        let shown = shown.map_or("the environment".to_owned(), |path| path.display().to_string());
        bail!("{shown} sets no option, and there is no model.py and no config.json beside it");
    }
    let imported = import(&settings, &folder, arguments.model);
    check(&imported.draft)?;
    imported.report.lines().iter().for_each(|line| note(line));
    let losses = imported.report.losses();
    if arguments.strict && losses > 0 {
        bail!(
            "{losses} options are not carried over, and --strict allows none: nothing was written"
        );
    }
    match &arguments.out {
        Some(out) => write(&imported.draft, out, arguments.force)?,
        None => print(&imported.draft.text(&std::env::current_dir()?))?,
    }
    Ok(ExitCode::SUCCESS)
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
fn import(settings: &Settings, folder: &Folder, model: Option<ModelName>) -> Imported {
    let kind = Kind::of(settings, folder);
    let mut import = Import { settings, folder, kind, draft: Draft::default(), steps: Vec::new() };
    if let Some(model) = model {
        set_text(&mut import.draft, "worker", "model", model.as_str(), "--model");
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
        report.add(setting, fate);
    }
    rules::complete(&mut import);
    let (name, origin) = name_of(settings, folder);
    set_text(&mut import.draft, "worker", "model", &name, &origin);
    set_text(
        &mut import.draft,
        "broker",
        "url",
        "amqp://localhost",
        "DJLServing has no broker. NSBRIDGE_BROKER__URL overrides it",
    );
    let keys = "DJLServing has no keys: `nsbridge keys generate --out keys.json` beside this file";
    set_text(&mut import.draft, "keys", "keyring", "keys.json", keys);
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
    let lost: Vec<_> = report.entries.iter().filter(|entry| entry.fate.is_loss()).collect();
    if !lost.is_empty() {
        draft.end("Not carried over:");
        lost.iter().for_each(|entry| draft.end(format!("{}: {}", entry.name, entry.fate.text())));
    }
    Imported { draft, report }
}

/// Sets a field that no option has set.
fn set_text(draft: &mut Draft, section: &'static str, name: &str, value: &str, comment: &str) {
    // A value of an option stays.
    let _ = draft.set(section, name, Written::Plain(Value::String(value.to_owned())), comment);
}

/// Returns a name for the model, and its origin.
fn name_of(settings: &Settings, folder: &Folder) -> (String, String) {
    let id = settings.find("option.model_id").or_else(|| settings.find("option.s3url"));
    let last = |text: &str| text.trim_end_matches('/').rsplit('/').next().and_then(plain_name);
    if let Some(setting) = id
        && let Some(name) = last(&without_secrets(setting.value()))
    {
        return (name, format!("{} ({})", setting.name, setting.place));
    }
    let name = folder.0.file_name().and_then(|name| plain_name(&name.to_string_lossy()));
    (name.unwrap_or_else(|| "model".to_owned()), "folder of serving.properties".to_owned())
}

/// Returns the text as the name of a model; `None` if little of it could stay.
fn plain_name(text: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(plain).take(100).collect();
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    name.parse::<ModelName>().ok().map(|name| name.as_str().to_owned())
}

/// Holds the configuration against the worker's own types.
fn check(draft: &Draft) -> Result<()> {
    let dir = tempfile::tempdir().context("making a folder for the check")?;
    let file = dir.path().join("worker.toml");
    fs::write(&file, draft.text_to_check(dir.path())).context("writing the file for the check")?;
    let refused = "a worker would refuse the configuration";
    let config = Config::read(&file, []).context(refused)?;
    let options = match Worker::of(&config) {
        Worker::Python => read::<nsbridge_python::Options>(config.handler),
        _ => read::<nsbridge_llama::Options>(config.handler),
    };
    options.context(refused)
}

fn read<T: DeserializeOwned>(table: toml::Table) -> Result<()> {
    match table.try_into::<T>() {
        Ok(_) => Ok(()),
        Err(error) => bail!("[handler] {}", error.message()),
    }
}

/// Writes the file at once, readable by its owner alone: a person will add the broker's password.
fn write(draft: &Draft, out: &Path, force: bool) -> Result<()> {
    let absolute = std::path::absolute(out).context("finding the current folder")?;
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    let shown = out.display();
    let failed = || format!("cannot write {shown}");
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    file.write_all(draft.text(folder).as_bytes()).with_context(failed)?;
    let kept = if force { file.persist(&absolute) } else { file.persist_noclobber(&absolute) };
    match kept {
        Ok(_) => {
            note(&format!("{shown}: written"));
            Ok(())
        }
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{shown} is there already: --force overwrites it")
        }
        Err(error) => Err(error.error).with_context(failed),
    }
}

#[cfg(test)]
mod tests;
