//! `nsbridge proxy`: the OpenAI-compatible API on this machine, sealed with its keyring, through a
//! gateway that cannot read it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use nsbridge::worker::{LogConfig, LogFormat};
use nsbridge_client::Keyring;
use nsbridge_gateway::{Config, Gateway, GatewayBroker, Model};
use nsbridge_protocol::{ModelName, Tenant};

use crate::failure::status;
use crate::gateway::run_until_signals;
use crate::place::{Keys, loopback, model, wait_for};

/// Serves the OpenAI-compatible API on this machine, through a gateway that cannot read it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge proxy --gateway https://gateway.example --api-key-file \
                  api-key --tenant acme --model tale-7m\n\n\
    The gateway needs `sealed = true` in [server]. Clients of this machine need no key.")]
pub(crate) struct Arguments {
    /// Address of the gateway: https://host, or http://127.0.0.1:8080 for one on this machine.
    #[arg(long, value_name = "URL")]
    gateway: String,
    /// File with the API key of the gateway. Only its owner may read it.
    #[arg(long, value_name = "FILE")]
    api_key_file: PathBuf,
    #[command(flatten)]
    keys: Keys,
    /// Tenant of the API key.
    #[arg(long)]
    tenant: Tenant,
    /// Model that is served, as NAME or NAME=QUEUE; repeatable.
    #[arg(long = "model", value_name = "MODEL", required = true, value_parser = model)]
    models: Vec<(String, ModelName)>,
    /// Address and port to listen at, on this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = loopback)]
    listen: SocketAddr,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    nsbridge::log_to_stderr(&LogConfig::new("info", LogFormat::Text))?;
    nsbridge::confine()?;
    let Arguments { gateway, api_key_file, keys, tenant, models, listen } = arguments;
    let key = GatewayBroker::read_key(&api_key_file)?;
    let broker = GatewayBroker::new(&gateway, &key)?;
    let keyring = keys.keyring;
    let keys = Keyring::load(&keyring);
    let keys = keys.with_context(|| format!("reading {}", keyring.display()))?;
    let models = models.into_iter().map(|(name, queue)| {
        let queue = Some(queue);
        (name, Model { queue, ..Model::default() })
    });
    let config = Config::local(listen, tenant, models.collect());
    wait_for(async {
        let proxy = Gateway::on(config, Arc::new(broker), Arc::new(keys)).await?;
        status(&format!("listening at {}", proxy.address()));
        run_until_signals(proxy).await
    })
}
