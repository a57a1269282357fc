//! `nsbridge ask`: one request through the broker.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nsbridge::{LogConfig, LogFormat};
use nsbridge_client::{Ask, Client};
use nsbridge_crypto::Keyring;
use nsbridge_protocol::{ModelName, Tenant};
use nsbridge_queue::AmqpBroker;

use crate::prompt::Sampling;
use crate::{prompt, stream};

/// Sends one sealed request to a model's queue and streams the reply.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge ask --model tale-7m --keyring keys.json \"Once a bear\"")]
pub(crate) struct Arguments {
    /// The prompt; `-` reads standard input.
    prompt: String,
    /// The model that is to answer.
    #[arg(long, short)]
    model: ModelName,
    /// Who the request is for.
    #[arg(long, default_value = "default")]
    tenant: Tenant,
    /// The broker: amqp://user:password@host:5672/%2f
    #[arg(
        long,
        value_name = "URL",
        env = "NSBRIDGE_BROKER__URL",
        hide_env_values = true,
        default_value = "amqp://localhost"
    )]
    broker: String,
    /// The keyring file.
    #[arg(long, value_name = "FILE", env = "NSBRIDGE_KEYS__KEYRING", default_value = "keys.json")]
    keyring: PathBuf,
    #[command(flatten)]
    sampling: Sampling,
    /// Seconds until the answer must be complete.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// One JSON object per line: `piece` for each token, then `summary`.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    nsbridge::log_to_stderr(&LogConfig { filter: "warn,lapin=error".into(), format: LogFormat::Text })?;
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    runtime.block_on(ask(arguments))
}

async fn ask(arguments: Arguments) -> Result<ExitCode> {
    let keys = Arc::new(Keyring::load(&arguments.keyring)?);
    let broker = Arc::new(AmqpBroker::new(&arguments.broker)?);
    let client = Client::connect(broker, keys, "nsbridge ask").await?;
    let input = arguments.sampling.input(prompt::read(arguments.prompt)?);
    let mut ask = Ask::new(arguments.model, arguments.tenant, input);
    ask.seed = arguments.sampling.seed;
    ask.timeout = Duration::from_secs(arguments.timeout);
    let reply = client.submit(ask).await?;
    stream::show(reply, arguments.json).await
}
