//! `nsbridge demo`: queue, keys, model and worker in one process.

mod chat;

use std::process::ExitCode;

use anyhow::Result;
use nsbridge_client::{Client, Request};
use nsbridge_protocol::TextInput;

use crate::local::{Local, Pair};
use crate::progress::Display;
use crate::prompt::Sampling;
use crate::terminal::{is_interactive, print};
use crate::{place, prompt, stream};

/// Streams a story from the bundled pair of models, with queue, keys and worker in one process.
///
/// Everything is real except the queue, which is in memory. The client seals the request, a worker
/// takes and opens it, the model answers token by token, and the worker seals each reply frame.
///
/// With `--chat` in a terminal the lines that you type are a conversation. `nsbridge dev` serves
/// the same model to browsers and to clients of OpenAI's API.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nsbridge demo --seed 7 --max-tokens 80 \"クマが海辺に行って\"\n  \
    nsbridge demo --chat --model SmolLM2-135M-Instruct.Q4_1.gguf\n "
)]
pub(crate) struct Arguments {
    /// Beginning of the story; `-` reads standard input [default: クマが海辺に行って]. With
    /// `--chat`, the first message.
    prompt: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    pair: Pair,
    /// Prints one JSON object per line: a `piece` for each token, then a `summary`.
    #[arg(long)]
    json: bool,
}

/// Prompt if the command line has none.
const BEGINNING: &str = "クマが海辺に行って";

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(tell(arguments))
}

async fn tell(arguments: Arguments) -> Result<ExitCode> {
    let local = Local::start(&arguments.pair, Display::unless(arguments.json)).await?;
    let (broker, keys) = (local.broker.clone(), local.keys.clone());
    let client = Client::builder().broker(broker).keys(keys).name("demo").connect().await?;
    let sampling = &arguments.sampling;
    let (model, tenant) = (local.model.clone(), local.tenant.clone());
    let request = |input: TextInput| {
        let mut request = Request::new(model.clone(), tenant.clone()).input(input);
        request.seed = sampling.seed;
        request
    };
    let told = async {
        if sampling.chat && !arguments.json && is_interactive() {
            return chat::converse(&client, sampling, request, arguments.prompt.clone()).await;
        }
        let prompt = arguments.prompt.clone().unwrap_or_else(|| BEGINNING.to_owned());
        let prompt = prompt::read(Some(prompt))?;
        if !arguments.json && !sampling.chat {
            // The model continues the prompt, so prompt and reply together are the story.
            print(&prompt)?;
        }
        let reply = client.submit(request(sampling.input(prompt)?)).await?;
        stream::show(reply, arguments.json).await
    };
    local.beside(told).await
}
