//! `nsbridge demo`: queue, keys, model and worker in one process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use nsbridge::worker::{Drain, Worker};
use nsbridge_client::{Client, Request};
use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_handler::{Model, Models};
use nsbridge_llama::Llama;
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_queue::MemoryBroker;

use crate::failure::note;
use crate::prompt::Sampling;
use crate::terminal::print;
use crate::{place, prompt, stream};

/// Streams a story from the bundled pair of models, with queue, keys and worker in one process.
///
/// Everything is real except the queue, which is in memory. The client seals the request, a worker
/// takes and opens it, the model answers token by token, and the worker seals each reply frame.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge demo --seed 7 --max-tokens 80 \"クマが海辺に行って\"")]
pub(crate) struct Arguments {
    /// Beginning of the story; `-` reads standard input.
    #[arg(default_value = "クマが海辺に行って")]
    prompt: String,
    #[command(flatten)]
    sampling: Sampling,
    /// Folder with a Llama model in Hugging Face format.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Folder with a smaller model of the same vocabulary, used as the draft model. The bundled
    /// model has one.
    #[arg(long, value_name = "DIR")]
    draft: Option<PathBuf>,
    /// Prints one JSON object per line: a `piece` for each token, then a `summary`.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(tell(arguments))
}

async fn tell(arguments: Arguments) -> Result<ExitCode> {
    let dir = arguments.model.clone().unwrap_or_else(|| bundled("tale-7m"));
    ensure!(dir.is_dir(), "there is no model in {}: name one with --model DIR", dir.display());
    // The bundled draft model would have another vocabulary than a model of the user.
    let own = || arguments.model.is_none().then(|| bundled("tale-1m"));
    let draft = arguments.draft.clone().or_else(own);
    if let Some(draft) = &draft {
        ensure!(
            draft.is_dir(),
            "there is no model in {}: name one with --draft DIR",
            draft.display()
        );
    }
    let (model, tenant): (ModelName, Tenant) = ("demo".parse()?, "demo".parse()?);
    let broker = Arc::new(MemoryBroker::new());
    let key = Entry::new("demo".parse()?, Key::generate()?, State::Primary);
    let keys = Arc::new(Keyring::of(vec![key])?);
    let named = [("target", Some(dir)), ("draft", draft)];
    let models: Models = named
        .into_iter()
        .filter_map(|(name, dir)| Some((name.to_owned(), Model::in_dir(dir?))))
        .collect();
    let worker = Worker::builder(model.clone(), broker.clone(), keys.clone())
        .name("demo")
        .drain(Drain::new(Duration::ZERO))
        .start_async::<Llama>(nsbridge_llama::Options::default(), models)
        .await?;
    let drain = worker.drain();
    let worker = tokio::spawn(worker.run());
    let client = Client::builder().broker(broker).keys(keys).name("demo").connect().await?;
    let prompt = prompt::read(arguments.prompt)?;
    if !arguments.json && !arguments.sampling.chat {
        // The model continues the prompt, so prompt and reply together are the story.
        print(&prompt)?;
    }
    let mut ask = Request::new(model, tenant).input(arguments.sampling.input(prompt)?);
    ask.seed = arguments.sampling.seed;
    let reply = client.submit(ask).await?;
    let code = stream::show(reply, arguments.json).await?;
    drain.begin();
    if let Err(error) = worker.await? {
        note(&format!("the worker ended badly: {error}"));
    }
    Ok(code)
}

/// Returns the folder of a bundled model: in the source tree, or under `/models` in a container
/// image.
fn bundled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models").join(name);
    let here = ["examples/models", "/models"].map(|folder| Path::new(folder).join(name));
    here.into_iter().find(|dir| dir.is_dir()).unwrap_or(source)
}
