//! Everything that a Python process is started with.

use std::path::{self, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nsbridge_handler::{Error, Fingerprint, Model, Models, Result};
use serde_json::{Map, Value};

use crate::messages::Ready;
use crate::options::Options;
use crate::sources;

/// Code that reads the runner's code from standard input.
const BOOT: &str = include_str!("../runner/boot.py");

/// Code of the runner: one module in several files.
const RUNNER: &str = concat!(
    include_str!("../runner/api.py"),
    include_str!("../runner/job.py"),
    include_str!("../runner/slots.py"),
    include_str!("../runner/batch.py"),
    include_str!("../runner/hints.py"),
    include_str!("../runner/kinds.py"),
    include_str!("../runner/djl.py"),
    include_str!("../runner/serving.py"),
    include_str!("../runner/model.py"),
    include_str!("../runner/main.py")
);

/// Time after a stop at which a process is killed.
const KILL_AFTER: Duration = Duration::from_millis(1900);

/// Model, its files and its options, as each process gets them.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) options: Options,
    /// Absolute path of the model's file.
    pub(crate) file: String,
    pub(crate) class: Option<String>,
    folder: PathBuf,
    /// Folders of the models by name.
    pub(crate) models: Map<String, Value>,
    /// False if only the schema of the inputs is wanted.
    pub(crate) load: bool,
    /// Time after a stop at which a process is killed.
    pub(crate) kill_after: Duration,
    /// `Some` if the model is an engine.
    pub(crate) engine: Option<EnginePlan>,
    /// Digest of sources, models and options.
    digest: blake3::Hasher,
}

/// Part of a plan that an engine alone has.
#[derive(Clone, Debug)]
pub(crate) struct EnginePlan {
    /// True if it has as many slots as it has room for calls.
    pub(crate) own_slots: bool,
    /// Names of the models that are adapters.
    pub(crate) adapters: Vec<String>,
}

impl Plan {
    /// Resolves the paths and provides the models' files. May take minutes.
    pub(crate) fn new(mut options: Options, models: &Models) -> Result<Self> {
        options.check()?;
        // The process runs in the model's folder.
        if options.python.components().count() > 1 {
            options.python = path::absolute(&options.python)?;
        }
        if let Some(output) = &mut options.output {
            *output = path::absolute(&*output)?;
        }
        let (file, class) = options.entry();
        let shown = file.display();
        let missing =
            |error| Error::fatal(format!("cannot read the model's file {shown}: {error}"));
        let file = file.canonicalize().map_err(missing)?;
        let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
        let mut digest = blake3::Hasher::new();
        digest.update(b"nsbridge-python/1");
        sources::digest(&folder, &mut digest).map_err(missing)?;
        // Not the folder: that of an engine's adapter is a temporary one.
        sources::add(&mut digest, file.file_name().unwrap_or_default().as_encoded_bytes());
        sources::add(&mut digest, class.unwrap_or_default().as_bytes());
        sources::add(&mut digest, Value::from(options.options.clone()).to_string().as_bytes());
        let mut folders = Map::new();
        for (name, model) in models.iter() {
            sources::add(&mut digest, name.as_bytes());
            add_model(&mut digest, model)?;
            // The processes run in the folder of the model's file.
            let folder = std::path::absolute(model.dir()?).map_err(Error::fatal)?;
            folders.insert(name.to_owned(), text(&folder)?.into());
        }
        let (file, class) = (text(&file)?, class.map(str::to_owned));
        Ok(Self {
            options,
            file,
            class,
            folder,
            models: folders,
            load: true,
            kill_after: KILL_AFTER,
            engine: None,
            digest,
        })
    }

    /// Returns the command of a process, and the code that it reads from standard input first.
    pub(crate) fn command(&self) -> (Command, &'static str) {
        let mut command = Command::new(&self.options.python);
        command.args(["-u", "-c", BOOT]).current_dir(&self.folder);
        (command, RUNNER)
    }

    /// Returns a digest of the source files as they are now; `None` if they cannot be read.
    pub(crate) fn sources(&self) -> Option<blake3::Hash> {
        let mut digest = blake3::Hasher::new();
        sources::digest(&self.folder, &mut digest).ok()?;
        Some(digest.finalize())
    }

    /// Returns the id of everything besides the request that determines the pieces.
    pub(crate) fn fingerprint(&self, ready: &Ready) -> Fingerprint {
        let mut digest = self.digest.clone();
        ready.made_by.iter().for_each(|part| sources::add(&mut digest, part.as_bytes()));
        let mut id = [0; 16];
        digest.finalize_xof().fill(&mut id);
        Fingerprint(id)
    }
}

/// Adds a model to the digest: its revision, or the content of its files if it has none.
fn add_model(digest: &mut blake3::Hasher, model: &Model) -> Result<()> {
    if let Some(revision) = model.revision() {
        sources::add(digest, model.place().as_bytes());
        sources::add(digest, revision.as_bytes());
        return Ok(());
    }
    for file in model.files() {
        sources::add(digest, file.as_bytes());
        sources::add(digest, &model.digest(file)?);
    }
    Ok(())
}

fn text(path: &Path) -> Result<String> {
    let odd = || Error::fatal(format!("{} is not UTF-8: rename it", path.display()));
    path.to_str().map(str::to_owned).ok_or_else(odd)
}
