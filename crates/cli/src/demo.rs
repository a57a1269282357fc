//! `nsbridge demo`: queue, keys, model and worker in one process.

mod chat;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use nsbridge::store::Location;
use nsbridge::worker::{Drain, Worker};
use nsbridge_client::{Client, Request};
use nsbridge_crypto::{Entry, Key, Keyring, State};
use nsbridge_gateway::{Config, Gateway, Model as ServedModel};
use nsbridge_handler::{Model, Models};
use nsbridge_llama::Llama;
use nsbridge_protocol::{ModelName, Tenant, TextInput};
use nsbridge_queue::MemoryBroker;

use crate::failure::note;
use crate::prompt::Sampling;
use crate::terminal::{is_interactive, print};
use crate::{place, prompt, stream};

/// Streams a story from the bundled pair of models, with queue, keys and worker in one process.
///
/// Everything is real except the queue, which is in memory. The client seals the request, a worker
/// takes and opens it, the model answers token by token, and the worker seals each reply frame.
///
/// With `--chat` in a terminal the lines that you type are a conversation. With `--serve` the model
/// answers the clients of OpenAI's API.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nsbridge demo --seed 7 --max-tokens 80 \"クマが海辺に行って\"\n  \
    nsbridge demo --chat --model SmolLM2-135M-Instruct.Q4_1.gguf\n  \
    nsbridge demo --serve"
)]
pub(crate) struct Arguments {
    /// Beginning of the story; `-` reads standard input [default: クマが海辺に行って]. With
    /// `--chat`, the first message.
    prompt: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
    /// Model: a GGUF file, or a folder in Hugging Face format.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Smaller model of the same vocabulary, used as the draft model: a GGUF file or a folder. The
    /// bundled model has one.
    #[arg(long, value_name = "PATH")]
    draft: Option<PathBuf>,
    /// Prints one JSON object per line: a `piece` for each token, then a `summary`.
    #[arg(long)]
    json: bool,
    /// Serves OpenAI's API at this address until Ctrl-C, to all users of this machine without a key.
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:8080",
        conflicts_with_all = ["prompt", "chat", "json"]
    )]
    serve: Option<SocketAddr>,
}

/// Prompt if the command line has none.
const BEGINNING: &str = "クマが海辺に行って";

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(tell(arguments))
}

async fn tell(arguments: Arguments) -> Result<ExitCode> {
    let target = arguments.model.clone().unwrap_or_else(|| bundled("tale-7m"));
    check(&target, "--model")?;
    let name = target.file_stem().map_or("demo".into(), |name| name.to_string_lossy().into_owned());
    // The bundled draft model would have another vocabulary than a model of the user.
    let own = || arguments.model.is_none().then(|| bundled("tale-1m"));
    let draft = arguments.draft.clone().or_else(own);
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
    if let Some(address) = arguments.serve {
        serve(address, &name, &model, broker, keys).await?;
        drain.begin();
        worker.await?.ok();
        return Ok(ExitCode::SUCCESS);
    }
    let client = Client::builder().broker(broker).keys(keys).name("demo").connect().await?;
    let sampling = &arguments.sampling;
    let request = |input: TextInput| {
        let mut request = Request::new(model.clone(), tenant.clone()).input(input);
        request.seed = sampling.seed;
        request
    };
    let code = if sampling.chat && !arguments.json && is_interactive() {
        chat::converse(&client, sampling, request, arguments.prompt).await?
    } else {
        let prompt = prompt::read(arguments.prompt.unwrap_or_else(|| BEGINNING.to_owned()))?;
        if !arguments.json && !sampling.chat {
            // The model continues the prompt, so prompt and reply together are the story.
            print(&prompt)?;
        }
        let reply = client.submit(request(sampling.input(prompt)?)).await?;
        stream::show(reply, arguments.json).await?
    };
    drain.begin();
    if let Err(error) = worker.await? {
        note(&format!("the worker ended badly: {error}"));
    }
    Ok(code)
}

/// Serves OpenAI's API until Ctrl-C. `name` is the name of the model for clients.
async fn serve(
    address: SocketAddr,
    name: &str,
    model: &ModelName,
    broker: Arc<MemoryBroker>,
    keys: Arc<Keyring>,
) -> Result<()> {
    let served = ServedModel { queue: Some(model.clone()), ..ServedModel::default() };
    let config = Config::local(address, "demo".parse()?, [(name.to_owned(), served)].into());
    let gateway = Gateway::on(config, broker, keys).await?;
    let url = format!("http://{}/v1", gateway.address());
    note(&format!(
        "{url} answers; Ctrl-C ends. For example:\n  curl {url}/completions -H 'content-type: \
         application/json' -d '{{\"model\": \"{name}\", \"prompt\": \"Once a bear\", \
         \"max_tokens\": 40}}'"
    ));
    let drain = gateway.drain();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        drain.cancel();
    });
    gateway.run().await;
    Ok(())
}

/// Checks that there is a folder or a GGUF file, so that a wrong path is an error of one sentence.
fn check(path: &Path, option: &str) -> Result<()> {
    ensure!(
        Location::Folder(path.to_owned()).may_exist(),
        "there is no model in {}: name a folder or a .gguf file with {option} PATH",
        path.display()
    );
    Ok(())
}

/// Returns the folder of a bundled model: in the source tree, or under `/models` in a container
/// image.
fn bundled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models").join(name);
    let here = ["examples/models", "/models"].map(|folder| Path::new(folder).join(name));
    here.into_iter().find(|dir| dir.is_dir()).unwrap_or(source)
}
