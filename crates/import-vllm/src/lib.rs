//! Configuration of a worker for a model that vLLM serves, from the command line of its server.
//!
//! [`import`] reads a [`Request`]. An [`Imported`] has the text of a worker.toml, and a report with a line for
//! each argument. The command is `nsbridge import-vllm`.

mod arguments;
mod command;
mod context;
mod files;
mod flags;
mod rules;
mod settings;
mod shell;
mod value;
mod yaml;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use nsbridge::worker::Config;
use nsbridge_import::{
    Draft, Imported, Report, Source, Written, base_name, plain_name, without_secrets,
};
use nsbridge_protocol::ModelName;
use toml::Value;

use arguments::Arguments;
use command::Command;
use context::Import;
use settings::Settings;
use value::has_variable;

/// Comment at the beginning of the file.
const HEAD: &str = "Made by `nsbridge import-vllm`. The comment above a field names the argument of vLLM that it comes \
                    from.";

/// Variables that hold a token, or that vLLM's HTTP server alone reads.
const NOT_FOR_A_WORKER: [&str; 5] =
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "VLLM_API_KEY", "VLLM_PORT"];

/// Command of vLLM's server, as it is given.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Words of a command line, with `vllm serve` or without.
    pub words: Vec<String>,
    /// File with a command line, with a list of arguments, or of a container, in place of the words.
    pub file: Option<PathBuf>,
    /// vLLM's own YAML file of arguments, over which the command's flags have precedence.
    pub config: Option<PathBuf>,
    /// Name of the model, in place of the one that the command has.
    pub name: Option<ModelName>,
}

/// Makes the configuration of a worker from the arguments of vLLM's server.
///
/// # Errors
///
/// Returns an error if a file cannot be read, if no model is named, or if a worker would refuse the
/// configuration.
pub fn import(request: &Request) -> Result<Imported> {
    let folder = std::env::current_dir().context("finding the current folder")?;
    import_in(request, &folder)
}

/// Makes the configuration. Relative paths begin at the folder.
fn import_in(request: &Request, folder: &Path) -> Result<Imported> {
    let arguments = Arguments::read()?;
    let (mut command, place) = read_command(request, folder)?;
    let named = take_config(&mut command.arguments)?;
    ensure!(
        named.is_none() || request.config.is_none(),
        "both the command and this program have a --config: give one of them"
    );
    let mut settings = Settings::default();
    if let Some(config) = request.config.clone().or(named) {
        let words = with_file(&config, folder, |text| files::config(&arguments, text))?;
        flags::read(&arguments, &words, &file_name(&config), &mut settings);
    }
    flags::read(&arguments, &command.arguments, &place, &mut settings);
    let imported = convert(&arguments, &settings, &command, request.name.as_ref(), folder)?;
    check(&imported.draft)?;
    Ok(imported)
}

/// Returns the command, and the name of its place.
fn read_command(request: &Request, folder: &Path) -> Result<(Command, String)> {
    let Some(file) = &request.file else {
        let command = Command::find(&request.words).map_err(|why| anyhow!(why))?;
        return Ok((command, "command line".to_owned()));
    };
    let is_yaml =
        file.extension().is_some_and(|it| ["yaml", "yml", "json"].iter().any(|own| it == *own));
    let command = with_file(file, folder, |text| files::command(text, is_yaml))?;
    Ok((command, file_name(file)))
}

fn with_file<T>(
    file: &Path,
    folder: &Path,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T> {
    let shown = file.display();
    let text =
        fs::read_to_string(folder.join(file)).with_context(|| format!("cannot read {shown}"))?;
    read(&text).map_err(|why| anyhow!("cannot use {shown}: {why}"))
}

fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

/// Takes `--config FILE` out of vLLM's arguments.
fn take_config(words: &mut Vec<String>) -> Result<Option<PathBuf>> {
    let Some(at) =
        words.iter().position(|word| word == "--config" || word.starts_with("--config="))
    else {
        return Ok(None);
    };
    let word = words.remove(at);
    if let Some((_, file)) = word.split_once('=') {
        return Ok(Some(file.into()));
    }
    ensure!(at < words.len(), "--config names no file");
    Ok(Some(words.remove(at).into()))
}

/// Makes the configuration of a worker from the settings.
fn convert(
    arguments: &Arguments,
    settings: &Settings<'_>,
    command: &Command,
    name: Option<&ModelName>,
    folder: &Path,
) -> Result<Imported> {
    let model = settings.get("model").filter(|model| !model.is_empty());
    let model = model.context("the command names no model: give it as in `vllm serve MODEL`")?;
    let served = settings.find("served_model_name").and_then(|setting| setting.values().first());
    let served = served.filter(|name| !has_variable(name));
    let (name, origin) = match (name, served) {
        (Some(name), _) => (name.as_str().to_owned(), "--name"),
        (None, Some(served)) => (plain_name(served).unwrap_or_default(), "--served-model-name"),
        (None, None) => {
            (base_name(&without_secrets(model)).unwrap_or_default(), "name of the model")
        }
    };
    let name = if name.is_empty() { "model".to_owned() } else { name };
    let mut draft = Draft::new(HEAD);
    draft.set_text("worker", "model", &name, origin);
    draft.set_broker_and_keys("vLLM");
    draft.set_text("handler", "engine", "vllm", "vLLM's engine, which the worker starts");
    let source = Source::read(model, &folder.join(model));
    let mut import = Import { settings, folder, source, name, draft, steps: Vec::new() };
    set_python(&mut import, command);
    let mut report = Report::default();
    for setting in settings.iter() {
        let fate = rules::apply(&mut import, arguments, setting);
        report.add(&setting.name, setting.places(), fate);
    }
    if served.is_none() && *model != import.name {
        let alias = Value::Array(vec![Value::String(without_secrets(model))]);
        let field = import.gateway_model("aliases", &alias);
        report.remarks.push(format!("{field} keeps the name that vLLM's clients use"));
    }
    let variables =
        command.variables.iter().filter(|name| !NOT_FOR_A_WORKER.contains(&name.as_str()));
    let variables: Vec<_> = variables.map(String::as_str).collect();
    if !variables.is_empty() {
        report.remarks.push(format!(
            "the worker needs the variables of the command: {}",
            variables.join(", ")
        ));
    }
    report.steps = import.steps;
    Ok(Imported::new(import.draft, report))
}

/// Sets the interpreter of the environment that has vLLM, if the command tells it by an absolute path.
fn set_python(import: &mut Import<'_>, command: &Command) {
    let program = command.program.as_ref().map(Path::new).filter(|program| program.is_absolute());
    let Some(program) = program else {
        let hint = "python = \"venv/bin/python\"   # if vLLM is in an environment of its own";
        import.draft.hint("handler", hint);
        return;
    };
    let is_vllm = program.file_name().is_some_and(|name| name == "vllm");
    let python = if is_vllm { program.with_file_name("python") } else { program.to_owned() };
    // The field is absent.
    let _ = import.draft.set("handler", "python", Written::Path(python), "program of the command");
}

/// Holds the configuration against the worker's own types.
fn check(draft: &Draft) -> Result<()> {
    let (_folder, file) = draft.write_to_check()?;
    Config::read(&file, []).context("a worker would refuse the configuration")?;
    Ok(())
}

#[cfg(test)]
mod tests;
