//! `nsbridge init`: the files of a worker, its keys and its broker.

mod worker_toml;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nsbridge_protocol::ModelName;
use nsbridge_store::Location;

use crate::bundled::{DRAFT, TARGET, bundled};
use crate::failure::note;
use crate::keys;
use crate::place::has_password;

use worker_toml::Files;

/// Text of the compose.yaml: RabbitMQ alone.
const COMPOSE: &str = include_str!("init/compose.yaml");

/// URL of the broker of that file.
const LOCAL_BROKER: &str = "amqp://localhost";

/// Keyring of the worker, relative to its configuration.
const KEYRING: &str = "keys.json";

/// Writes worker.toml, keys.json and compose.yaml into a folder: what a worker of one model needs.
///
/// compose.yaml has a RabbitMQ for this machine; it is not written with --broker. No file is
/// overwritten: if one exists, nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nsbridge init --out tale\n  \
    nsbridge init --model SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2 --out smollm2\n  \
    nsbridge init --python model.py --broker amqps://mq.example/%2f")]
pub(crate) struct Arguments {
    /// Model: a GGUF file, a folder in Hugging Face format, or s3://bucket/prefix [default: the
    /// bundled pair of models, or no files with --python]
    #[arg(long, value_name = "PATH_OR_S3")]
    model: Option<Location>,
    /// Name of the model for clients [default: that of its files]
    #[arg(long)]
    name: Option<ModelName>,
    /// Model in Python: the file, or FILE:CLASS. --model has its files then.
    #[arg(long, value_name = "FILE")]
    python: Option<String>,
    /// Folder to write to; it is created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// URL of a broker, instead of one on this machine. A URL with a password is not accepted: set
    /// it in NSBRIDGE_BROKER__URL.
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { model, name, python, out, broker } = arguments;
    ensure!(
        !has_password(broker.iter().cloned()),
        "--broker has a password, which does not belong into worker.toml: leave it out here, and set \
         the whole URL in NSBRIDGE_BROKER__URL where the worker starts"
    );
    if let Some(model) = &model {
        model.check_exists().map_err(|why| anyhow!("--model: {why}"))?;
    }
    let name = name.map_or_else(|| own_name(model.as_ref(), python.as_deref()), Ok)?;
    let input = match (&python, &model) {
        (Some(_), _) => "--input '\"hello\"'",
        (None, Some(_)) => "--chat \"Say hi\"",
        (None, None) => "\"Once a bear\"",
    };
    let url = broker.as_deref().unwrap_or(LOCAL_BROKER);
    let text = worker_toml::text(&name, url, KEYRING, files(model, python, &out)?);
    let at = |file: &str| if out == Path::new(".") { file.into() } else { out.join(file) };
    let written = Written {
        config: at("worker.toml"),
        keyring: at(KEYRING),
        compose: broker.is_none().then(|| at("compose.yaml")),
    };
    written.write(&out, &text)?;
    let server = broker.map_or_else(String::new, |url| format!(" --broker {}", word(&url)));
    note(&written.next(&format!("--model {name}{server} {input}")));
    Ok(ExitCode::SUCCESS)
}

/// Files that the command writes.
struct Written {
    config: PathBuf,
    keyring: PathBuf,
    compose: Option<PathBuf>,
}

impl Written {
    /// Writes the files into the folder `out`, unless one of them exists.
    fn write(&self, out: &Path, text: &str) -> Result<()> {
        for path in
            [Some(&self.config), Some(&self.keyring), self.compose.as_ref()].into_iter().flatten()
        {
            let exists = path.symlink_metadata().is_ok();
            ensure!(!exists, "{} exists: nothing was written; name another --out", path.display());
        }
        fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
        create(&self.config, text)?;
        if let Some(compose) = &self.compose {
            create(compose, COMPOSE)?;
        }
        keys::generate(&self.keyring, None, false)
    }

    /// Returns the commands that come next, with these arguments of `ask`.
    fn next(&self, ask: &str) -> String {
        let [config, keyring] =
            [&self.config, &self.keyring].map(|path| word(&path.to_string_lossy()));
        let compose = self.compose.as_ref().map(|path| word(&path.to_string_lossy()));
        let broker = compose.map(|file| format!("docker compose -f {file} up --wait"));
        let worker = format!("nsbridge worker --config {config}");
        let ask = format!("nsbridge ask --keyring {keyring} {ask}");
        let lines = broker.into_iter().chain([worker, ask]);
        lines.fold("\nNext, the last one in a second terminal:".to_owned(), |text, line| {
            format!("{text}\n  {line}")
        })
    }
}

/// Returns a text as one word of a shell.
fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-:@%".contains(letter);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Returns the name of the files of a model.
fn own_name(model: Option<&Location>, python: Option<&str>) -> Result<ModelName> {
    let path = match (python, model) {
        (Some(python), _) => python_file(python).to_owned(),
        (None, Some(Location::S3 { bucket, prefix, .. })) => Path::new(bucket).join(prefix),
        (None, Some(Location::Folder(path))) => absolute(path).context("finding the model")?,
        _ => PathBuf::from(TARGET),
    };
    let is_file = python.is_some() || path.extension().is_some_and(|ending| ending == "gguf");
    let name = if is_file { path.file_stem() } else { path.file_name() };
    let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse().map_err(|error| anyhow!("{error}: give the model a name with --name"))
}

/// Returns the places of the files, as a configuration in the folder `out` names them.
fn files(model: Option<Location>, python: Option<String>, out: &Path) -> Result<Files> {
    let python = match python {
        Some(python) => {
            let file = python_file(&python);
            ensure!(file.is_file(), "--python: there is no file {}", file.display());
            Some(within(&python, out)?)
        }
        None => None,
    };
    let target = match model {
        Some(Location::Folder(path)) => Some(within(&path, out)?),
        Some(s3) => Some(s3.to_string()),
        None if python.is_some() => None,
        None => {
            let [target, draft] = [TARGET, DRAFT].map(|name| within(bundled(name)?, out));
            return Ok(Files { target: Some(target?), draft: Some(draft?), python });
        }
    };
    Ok(Files { target, draft: None, python })
}

/// Returns the file of a model in Python that may name its class.
fn python_file(python: &str) -> &Path {
    Path::new(match python.rsplit_once(':') {
        Some((file, class)) if !class.contains('/') => file,
        _ => python,
    })
}

/// Returns a path as a file in the folder `out` can name it: relative if it is below that folder, else
/// absolute.
fn within(path: impl AsRef<Path>, out: &Path) -> Result<String> {
    let whole = absolute(path).context("finding the current folder")?;
    let below = whole.strip_prefix(absolute(out).context("finding the current folder")?);
    let path = below.unwrap_or(&whole);
    let Some(text) = path.to_str() else {
        bail!("the path {} is not UTF-8, so worker.toml cannot name it", path.display());
    };
    Ok(if text.is_empty() { ".".to_owned() } else { text.to_owned() })
}

/// Creates a file.
fn create(path: &Path, text: &str) -> Result<()> {
    let writing = || format!("writing {}", path.display());
    let mut file = fs::File::create_new(path).with_context(writing)?;
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // Half a file would be in the way of the next try.
        let _ = fs::remove_file(path);
    }
    written.with_context(writing)?;
    note(&format!("{}: written", path.display()));
    Ok(())
}
