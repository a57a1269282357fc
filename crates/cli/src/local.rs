//! Worker in this process, on a queue in memory: what `nsbridge demo` and `nsbridge dev` run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use nsbridge::worker::{Drain, Worker};
use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_handler::source::LoadProgress;
use nsbridge_handler::{AsyncHandler, Model, Models};
use nsbridge_llama::{ChatFormats, Llama};
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_python::{Engine, EngineOptions, Python};
use nsbridge_queue::MemoryBroker;
use nsbridge_store::Location;
use tokio::task::JoinHandle;

use crate::bundled::{DRAFT, TARGET, bundled};
use crate::failure::note;
use crate::progress::{Display, Shown};

const ENDED: &str = "the worker in this process has ended, and the command with it; start it again";

/// Name of the model that an engine runs, among the models of a worker.
pub(crate) const ENGINE_TARGET: &str = "target";

/// Default temperature of a model whose authors recommend none: at 1, the default of OpenAI's API, small
/// models lose the thread.
const MILD_TEMPERATURE: f32 = 0.7;

/// Default top-p of such a model.
const MILD_TOP_P: f32 = 0.9;

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
    /// Device that computes: cpu, cuda or cuda:N [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

impl Pair {
    /// Returns the target's file or folder.
    fn target(&self) -> Result<PathBuf> {
        self.model.clone().map_or_else(|| bundled(TARGET), Ok)
    }

    /// Returns true if no model is named.
    pub(crate) fn is_bundled(&self) -> bool {
        self.model.is_none()
    }

    /// Returns the formats that the target's chat template shows. A file that cannot be read fails with its
    /// own sentence when it is loaded.
    pub(crate) fn formats(&self) -> ChatFormats {
        let target = self.target().ok();
        target.and_then(|target| ChatFormats::read(&Model::at(target)).ok()).unwrap_or_default()
    }
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
    /// Loads the model, whose progress is shown so, and starts the worker.
    pub(crate) async fn start(pair: &Pair, display: Display) -> Result<Self> {
        // The process will hold keys and prompts, which the message of a panic may quote.
        nsbridge::confine()?;
        let target = pair.target()?;
        check(&target, "--model")?;
        let name = target.file_stem().map_or("demo".into(), |name| name.to_string_lossy());
        let name = name.into_owned();
        // The bundled draft model would have another vocabulary than a model of the user.
        let own = || pair.model.is_none().then(|| bundled(DRAFT)).transpose();
        let draft = pair.draft.clone().map_or_else(own, |draft| Ok(Some(draft)))?;
        draft.as_deref().map_or(Ok(()), |draft| check(draft, "--draft"))?;
        let progress = LoadProgress::default();
        let named = [("target", Some(target)), ("draft", draft)];
        let models: Models = named
            .into_iter()
            .filter_map(|(name, path)| Some((name.to_owned(), Model::at(path?).tracked(&progress))))
            .collect();
        let mut options = nsbridge_llama::Options::default();
        options.device.clone_from(&pair.device);
        if let Some(model) = models.get("target") {
            // A file that cannot be read fails with its own sentence when it is loaded.
            let read = nsbridge_llama::Config::read(model);
            if read.is_ok_and(|config| !config.recommends_sampling()) {
                options.temperature = Some(MILD_TEMPERATURE);
                options.top_p = Some(MILD_TOP_P);
            }
        }
        let _shown = Shown::of_load(format!("loading {name}"), display, progress);
        Self::serve::<Llama>(name, options, models).await
    }

    /// Loads a model in Python and starts the worker.
    pub(crate) async fn start_python(
        options: nsbridge_python::Options,
        models: Models,
    ) -> Result<Self> {
        nsbridge::confine()?;
        let name =
            options.entry_point.file_stem().map_or("demo".into(), |name| name.to_string_lossy());
        let name = name.split('.').next().unwrap_or_default().to_owned();
        // Lines, since what the model prints meanwhile is logged.
        let _shown = Shown::of_unknown(format!("loading {name}"), Display::Lines);
        Self::serve::<Python>(name, options, models).await
    }

    /// Loads the text model of an engine, and starts the worker.
    pub(crate) async fn start_engine(options: EngineOptions, models: Models) -> Result<Self> {
        nsbridge::confine()?;
        let place = models.get(ENGINE_TARGET).map(Model::place).unwrap_or_default();
        let name =
            Path::new(&place).file_name().map_or("demo".into(), |name| name.to_string_lossy());
        let name = name.into_owned();
        // Lines, since what the engine prints meanwhile is logged.
        let _shown = Shown::of_unknown(format!("loading {name}"), Display::Lines);
        Self::serve::<Engine>(name, options, models).await
    }

    /// Starts a worker of this handler. `name` is that of the model's files.
    async fn serve<H: AsyncHandler>(
        name: String,
        options: H::Options,
        models: Models,
    ) -> Result<Self> {
        let (model, tenant): (ModelName, Tenant) = ("demo".parse()?, "demo".parse()?);
        let broker = Arc::new(MemoryBroker::new());
        let key = Entry::new("demo".parse()?, Key::generate()?, State::Primary);
        let keys = Arc::new(Keyring::of(vec![key])?);
        let worker = Worker::builder(model.clone(), broker.clone(), keys.clone())
            .name("demo")
            .drain(Drain::new(Duration::ZERO))
            .start_async::<H>(options, models)
            .await?;
        let drain = worker.drain();
        let worker = tokio::spawn(worker.run());
        Ok(Self { name, model, tenant, broker, keys, drain, worker })
    }

    /// Runs the rest of a command beside the worker, and then ends the worker.
    ///
    /// # Errors
    ///
    /// Returns the error of the command. The end of the worker is the end of the command, which
    /// would otherwise wait for replies that no worker makes.
    pub(crate) async fn beside<T>(self, command: impl Future<Output = Result<T>>) -> Result<T> {
        let Self { drain, mut worker, .. } = self;
        let done = tokio::select! {
            biased;
            done = command => done?,
            ended = &mut worker => {
                ended.context(ENDED)?.context(ENDED)?;
                bail!(ENDED);
            }
        };
        drain.begin();
        if let Err(error) = worker.await? {
            note(&format!("the worker ended badly: {}", nsbridge_base::chain(&error)));
        }
        Ok(done)
    }
}

/// Checks that there is a folder or a GGUF file, so that a wrong path is an error of one sentence.
fn check(path: &Path, option: &str) -> Result<()> {
    let there = Location::Folder(path.to_owned()).check_exists();
    there.map_err(|why| anyhow!("{option}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use nsbridge_client::{Client, Request};
    use nsbridge_handler::{AsyncHandler, AsyncJob, Error, Finish, Models, Result};
    use tokio::time::timeout;

    use super::Local;

    /// Handler that breaks on the input `true`.
    struct Breaking;

    impl AsyncHandler for Breaking {
        type Options = ();
        type Input = bool;
        type Output = ();

        async fn load((): (), _: Models) -> Result<Self> {
            Ok(Self)
        }

        async fn handle(&self, breaks: bool, _: &mut AsyncJob<()>) -> Result<Finish> {
            if breaks { Err(Error::fatal("a rank was lost")) } else { Ok(Finish::STOP) }
        }

        fn tasks(&self) -> usize {
            1
        }
    }

    async fn local() -> Local {
        Local::serve::<Breaking>("breaking".to_owned(), (), Models::default()).await.unwrap()
    }

    #[tokio::test]
    async fn the_end_of_the_worker_is_the_end_of_the_command() {
        let local = local().await;
        let (broker, keys) = (local.broker.clone(), local.keys.clone());
        let client = Client::builder().broker(broker).keys(keys).connect().await.unwrap();
        let ask = Request::new(local.model.clone(), local.tenant.clone()).input(true);
        let _reply = client.submit::<()>(ask).await.unwrap();
        let ended = timeout(Duration::from_secs(30), local.beside(pending::<anyhow::Result<()>>()));
        let error = ended.await.expect("the command must end").unwrap_err();
        let said = nsbridge_base::chain(error.as_ref());
        assert!(said.starts_with("the worker in this process has ended"), "{said}");
        assert!(said.contains("a fatal error") && said.lines().count() == 1, "{said}");
    }

    #[tokio::test]
    async fn the_end_of_the_command_is_the_end_of_the_worker() {
        assert_eq!(local().await.beside(ready(Ok(5))).await.unwrap(), 5);
        let failed = local().await.beside(ready(Err::<(), _>(anyhow::anyhow!("no")))).await;
        assert_eq!(failed.unwrap_err().to_string(), "no");
    }
}
