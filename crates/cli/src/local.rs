//! Worker in this process, on a queue in memory: what `nsbridge demo` and `nsbridge dev` run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use nsbridge::worker::{Drain, Worker};
use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_handler::{Model, Models};
use nsbridge_llama::Llama;
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_queue::MemoryBroker;
use nsbridge_store::Location;
use tokio::task::JoinHandle;

use crate::failure::note;

/// Model of the worker; the bundled pair if none is named.
#[derive(Debug, clap::Args)]
pub(crate) struct Pair {
    /// Model: a GGUF file, or a folder in Hugging Face format.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Smaller model of the same vocabulary, used as the draft model: a GGUF file or a folder. The
    /// bundled model has one.
    #[arg(long, value_name = "PATH")]
    draft: Option<PathBuf>,
}

/// Running worker, its queue and its keys.
#[derive(Debug)]
pub(crate) struct Local {
    /// Name of the model's files, for people.
    pub(crate) name: String,
    /// Name of the queue.
    pub(crate) model: ModelName,
    pub(crate) tenant: Tenant,
    pub(crate) broker: Arc<MemoryBroker>,
    pub(crate) keys: Arc<Keyring>,
    drain: Drain,
    worker: JoinHandle<Result<(), nsbridge::worker::Error>>,
}

impl Local {
    /// Loads the model and starts the worker.
    pub(crate) async fn start(pair: &Pair) -> Result<Self> {
        let target = pair.model.clone().unwrap_or_else(|| bundled("tale-7m"));
        check(&target, "--model")?;
        let name = target.file_stem().map_or("demo".into(), |name| name.to_string_lossy());
        let name = name.into_owned();
        // The bundled draft model would have another vocabulary than a model of the user.
        let own = || pair.model.is_none().then(|| bundled("tale-1m"));
        let draft = pair.draft.clone().or_else(own);
        draft.as_deref().map_or(Ok(()), |draft| check(draft, "--draft"))?;
        let (model, tenant): (ModelName, Tenant) = ("demo".parse()?, "demo".parse()?);
        let broker = Arc::new(MemoryBroker::new());
        let key = Entry::new("demo".parse()?, Key::generate()?, State::Primary);
        let keys = Arc::new(Keyring::of(vec![key])?);
        let named = [("target", Some(target)), ("draft", draft)];
        let models: Models = named
            .into_iter()
            .filter_map(|(name, path)| Some((name.to_owned(), Model::at(path?))))
            .collect();
        let worker = Worker::builder(model.clone(), broker.clone(), keys.clone())
            .name("demo")
            .drain(Drain::new(Duration::ZERO))
            .start_async::<Llama>(nsbridge_llama::Options::default(), models)
            .await?;
        let drain = worker.drain();
        let worker = tokio::spawn(worker.run());
        Ok(Self { name, model, tenant, broker, keys, drain, worker })
    }

    /// Ends the worker.
    pub(crate) async fn end(self) -> Result<()> {
        self.drain.begin();
        if let Err(error) = self.worker.await? {
            note(&format!("the worker ended badly: {error}"));
        }
        Ok(())
    }
}

/// Checks that there is a folder or a GGUF file, so that a wrong path is an error of one sentence.
fn check(path: &Path, option: &str) -> Result<()> {
    let there = Location::Folder(path.to_owned()).check_exists();
    there.map_err(|why| anyhow!("{option}: {why}"))
}

/// Returns the folder of a bundled model: in the source tree, or under `/models` in a container
/// image.
fn bundled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models").join(name);
    let here = ["examples/models", "/models"].map(|folder| Path::new(folder).join(name));
    here.into_iter().find(|dir| dir.is_dir()).unwrap_or(source)
}
