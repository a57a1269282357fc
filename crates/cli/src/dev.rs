//! `nsbridge dev`: a gateway with the chat page, and a worker, in one process.

use std::io::{IsTerminal as _, stderr};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use nsbridge_gateway::{Config, Gateway, Model, StoreConfig};

use crate::failure::status;
use crate::gateway::run_until_signals;
use crate::local::{Local, Pair};
use crate::place::{self, loopback};

/// Serves the chat page and OpenAI's API on this machine, with gateway, queue and worker in one
/// process.
///
/// All users of this machine may ask, without a key. Replies, files and batches are encrypted in a
/// temporary folder, which is removed when the command ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nsbridge dev\n  \
    nsbridge dev --model SmolLM2-135M-Instruct.Q4_1.gguf --listen 127.0.0.1:8090")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pair: Pair,
    /// Address and port to listen at.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = loopback)]
    listen: SocketAddr,
    /// Does not open a browser. A terminal is needed for one to open.
    #[arg(long)]
    no_open: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { pair, listen, no_open } = arguments;
    let local = Local::start(&pair).await?;
    let served = Model { queue: Some(local.model.clone()), ..Model::default() };
    let models = [(local.name.clone(), served)].into();
    let mut config = Config::local(listen, local.tenant.clone(), models);
    config.server.default_model = Some(local.name.clone());
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    config.store = Some(StoreConfig::local(folder.path()));
    let gateway = Gateway::on(config, local.broker.clone(), local.keys.clone()).await?;
    let page = format!("http://{}", gateway.address());
    status(&format!(
        "{page} has the chat page, and {page}/v1 answers clients of OpenAI's API. For example:\n  \
         curl {page}/v1/completions -H 'content-type: application/json' -d '{{\"prompt\": \"Once a \
         bear\", \"max_tokens\": 40}}'\nCtrl-C ends it."
    ));
    if !no_open && stderr().is_terminal() && open::that_detached(&page).is_err() {
        status("no browser could be opened");
    }
    local.beside(run_until_signals(gateway)).await
}
