//! `nsbridge gateway`: the OpenAI-compatible API, and its keys.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use nsbridge::worker::{LogConfig, LogFormat, ServiceManager, ServiceState};
use nsbridge_gateway::access::{self, ApiKey, ApiKeyId, Entry};
use nsbridge_gateway::{Config, Gateway, GatewayHealth};
use nsbridge_protocol::{ModelName, Tenant};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::failure::{note, status};
use crate::place::{Signals, signals, wait_for};
use crate::terminal::{counted, print_line};

/// Time in which a drain without replies ends without a word.
const SHORT_DRAIN: Duration = Duration::from_secs(1);

/// Serves the OpenAI-compatible API until SIGTERM or Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: nsbridge gateway --config gateway.toml\n\n\
    deploy/gateway.example.toml documents the configuration. The environment overrides each field:\n\
    NSBRIDGE_BROKER__URL sets url in [broker]."
)]
pub(crate) struct Arguments {
    /// Configuration file of the gateway.
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
    /// Format of the log: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = log_format)]
    log: LogFormat,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Adds, lists and disables API keys.
    #[command(subcommand)]
    Keys(Keys),
}

#[derive(Debug, Subcommand)]
enum Keys {
    /// Adds a key and prints it. The file keeps only a hash of it.
    Add {
        /// File of API keys; created if it does not exist.
        #[arg(default_value = "api-keys.json")]
        file: PathBuf,
        /// Tenant of the key.
        #[arg(long)]
        tenant: Tenant,
        /// Model that the key may use, by the name of its queue; repeatable. All models if absent.
        #[arg(long = "model", value_name = "QUEUE")]
        models: Vec<ModelName>,
        /// Maximum number of requests per minute.
        #[arg(long, value_name = "N")]
        requests_per_minute: Option<u64>,
        /// Maximum number of tokens per minute, prompts included.
        #[arg(long, value_name = "N")]
        tokens_per_minute: Option<u64>,
        /// Maximum number of concurrent requests.
        #[arg(long, value_name = "N")]
        concurrent: Option<u64>,
        /// Makes all requests of the key bulk requests: workers take them into slots that no other
        /// request needs.
        #[arg(long)]
        bulk: bool,
    },
    /// Lists the keys, without the hashes.
    List {
        /// File of API keys.
        #[arg(default_value = "api-keys.json")]
        file: PathBuf,
    },
    /// Disables a key. Running gateways refuse it within 5 seconds.
    Disable {
        /// Id of the key: the part between the first two underscores.
        id: ApiKeyId,
        /// File of API keys.
        #[arg(default_value = "api-keys.json")]
        file: PathBuf,
    },
}

pub(crate) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("the format must be text or json".to_owned()),
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        None => serve(&arguments.config, arguments.log),
        Some(Command::Keys(Keys::List { file })) => list(&file),
        Some(Command::Keys(Keys::Disable { id, file })) => {
            access::disable(&file, id)?;
            note(&format!("the key {id} is disabled"));
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Keys(Keys::Add {
            file,
            tenant,
            models,
            requests_per_minute,
            tokens_per_minute,
            concurrent,
            bulk,
        })) => {
            let key = ApiKey::generate()?;
            let mut entry = Entry::new(&key, tenant);
            entry.models = (!models.is_empty()).then_some(models);
            entry.limits.requests_per_minute = requests_per_minute;
            entry.limits.tokens_per_minute = tokens_per_minute;
            entry.limits.concurrent = concurrent;
            if bulk {
                entry.priority = access::Priority::Bulk;
            }
            access::add(&file, entry)?;
            note("the key is shown once: the file has only its hash");
            print_line(key.reveal())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn serve(config: &Path, log: LogFormat) -> Result<ExitCode> {
    nsbridge::log_to_stderr(&LogConfig::new("info,lapin=off", log))?;
    nsbridge::confine()?;
    let config = Config::read(config, nsbridge_base::config::variables())?;
    wait_for(async {
        let gateway = Gateway::connect(config).await?;
        status(&format!("listening at {}", gateway.address()));
        run_until_signals(gateway).await
    })
}

/// Serves until the drain that a signal begins is over. A second signal ends it at once.
pub(crate) async fn run_until_signals(gateway: Gateway) -> Result<ExitCode> {
    let mut signals = signals()?;
    let (drain, health, address) = (gateway.drain(), gateway.health(), gateway.address());
    let again = CancellationToken::new();
    let (second, limit) = (again.clone(), gateway.drain_limit());
    let (begin, running) = (drain.clone(), health.clone());
    tokio::spawn(async move {
        signals.next().await;
        begin.cancel();
        tell_drain(&running, &mut signals).await;
        second.cancel();
    });
    let manager = ServiceManager::new(std::env::vars_os());
    let stopping = async {
        drain.cancelled().await;
        limit
    };
    tokio::select! {
        // Before the gateway, whose end would leave no time for a notice.
        biased;
        never = manager.follow(|| state(&health, &drain, address), stopping) => match never {},
        () = gateway.run() => Ok(ExitCode::SUCCESS),
        () = again.cancelled() => {
            status("a second signal came: leaving at once");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Says what a drain waits for, unless it ends at once, and waits for the second signal.
async fn tell_drain(gateway: &GatewayHealth, signals: &mut Signals) {
    let replies = gateway.replies();
    if replies > 0 {
        status(&format!(
            "finishing {}; Ctrl-C again leaves at once",
            counted(replies, "reply", "replies")
        ));
    } else if timeout(SHORT_DRAIN, signals.next()).await.is_ok() {
        return;
    } else {
        status("closing connections; Ctrl-C again leaves at once");
    }
    signals.next().await;
}

/// Returns the state of a gateway for the service manager. A gateway that can answer is alive.
fn state(gateway: &GatewayHealth, drain: &CancellationToken, address: SocketAddr) -> ServiceState {
    let is_ready = gateway.is_ready();
    let status = match gateway.replies() {
        replies if drain.is_cancelled() => {
            format!("draining {}", counted(replies, "reply", "replies"))
        }
        _ if is_ready => format!("serving at {address}"),
        _ => "not ready: no reply can be stored, or a start goes on".to_owned(),
    };
    ServiceState::new(true, is_ready, status)
}

fn list(file: &Path) -> Result<ExitCode> {
    for entry in access::list(file)? {
        let state = if entry.disabled { "disabled" } else { "active" };
        let models = match &entry.models {
            None => "all models".to_owned(),
            Some(models) => models.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let class = if entry.priority == access::Priority::Bulk { "  bulk" } else { "" };
        print_line(&format!("{}  {state:<8}  {}  {models}{class}", entry.id, entry.tenant))?;
    }
    Ok(ExitCode::SUCCESS)
}
