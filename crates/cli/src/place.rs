//! Arguments, signals and the runtime, shared by the commands.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nsbridge::worker::{LogConfig, LogFormat};
use nsbridge_base::broker_urls;
use nsbridge_protocol::ModelName;
use nsbridge_store::Location;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Address of the broker.
#[derive(Debug, clap::Args)]
pub(crate) struct Broker {
    /// URL of the broker, such as amqps://host/%2f. A URL with a password belongs into
    /// NSBRIDGE_BROKER__URL: every user of this machine can read arguments.
    #[arg(
        long = "broker",
        value_name = "URL",
        env = "NSBRIDGE_BROKER__URL",
        hide_env_values = true,
        default_value = "amqp://localhost"
    )]
    pub(crate) url: String,
}

/// Location of the keys.
#[derive(Debug, clap::Args)]
pub(crate) struct Keys {
    /// Keyring file.
    #[arg(long, value_name = "FILE", env = "NSBRIDGE_KEYS__KEYRING", default_value = "keys.json")]
    pub(crate) keyring: PathBuf,
}

/// Parses the name of a model, and its queue if it has another name.
pub(crate) fn model(text: &str) -> Result<(String, ModelName), String> {
    let (name, queue) = text.split_once('=').unwrap_or((text, text));
    if name.is_empty() {
        return Err("the model needs a name before `=`".to_owned());
    }
    let queue = queue.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), queue))
}

/// Parses the name and the place of a model's files.
pub(crate) fn weights(text: &str) -> Result<(String, Location), String> {
    let (name, place) = text.split_once('=').unwrap_or(("target", text));
    let place = place.parse()?;
    Ok((name.to_owned(), place))
}

/// Parses JSON. Clap's default parser would accept any text as a JSON string.
pub(crate) fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))
}

/// Parses an address and port of this machine, or a port alone.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let address: SocketAddr =
        text.parse().map_err(|_| "an address has a port, such as 127.0.0.1:8080".to_owned())?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("no key is asked for, so it must be an address of this machine, such as 127.0.0.1:8080"
        .to_owned())
}

/// Signals that end a command: SIGTERM and Ctrl-C. None is lost between two waits.
pub(crate) struct Signals([Signal; 2]);

impl Signals {
    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Begins to listen for signals.
pub(crate) fn signals() -> Result<Signals> {
    let listen = |kind| signal(kind).context("listening for signals");
    Ok(Signals([listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?]))
}

/// Ends the process at once, without a word: stderr may be a pipe that is not read.
#[expect(
    clippy::exit,
    reason = "the main thread may be blocked by a terminal that takes no output"
)]
pub(crate) fn leave_now(code: u8) -> ! {
    std::process::exit(code.into())
}

/// Returns true if an argument is a broker URL with a password.
///
/// RabbitMQ's default password is no secret, since the broker accepts it only from the local
/// machine.
pub(crate) fn has_password(mut arguments: impl Iterator<Item = String>) -> bool {
    arguments.any(|argument| {
        let url = argument.strip_prefix("--broker=").unwrap_or(&argument);
        let mut passwords = broker_urls(url).filter_map(nsbridge::worker::password_of);
        url.starts_with("amqp") && passwords.any(|password| password != "guest")
    })
}

/// Runs an asynchronous command and logs warnings to stderr, and what a model in Python prints.
pub(crate) fn block_on(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let log =
        LogConfig::new("warn,nsbridge_python=info,lapin=off,aws_config=error", LogFormat::Text);
    nsbridge::log_to_stderr(&log)?;
    wait_for(command)
}

/// Runs a future to its end without waiting for its blocking threads, which end with the process.
pub(crate) fn wait_for<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use super::{has_password, loopback, model};

    #[test]
    fn a_model_may_have_a_queue_of_another_name() {
        let queue = |text| model(text).map(|(name, queue)| (name, queue.to_string()));
        assert_eq!(queue("tale-7m"), Ok(("tale-7m".to_owned(), "tale-7m".to_owned())));
        assert_eq!(queue("gpt=tale-7m"), Ok(("gpt".to_owned(), "tale-7m".to_owned())));
        for odd in ["", "=tale-7m", "a=", "a=.dead"] {
            assert!(queue(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn an_address_without_keys_is_one_of_this_machine() {
        assert_eq!(loopback("127.0.0.1:80").map(|address| address.port()), Ok(80));
        assert_eq!(loopback("[::1]:0").map(|address| address.port()), Ok(0));
        assert_eq!(
            loopback("9000").map(|address| address.to_string()),
            Ok("127.0.0.1:9000".into())
        );
        assert!(loopback("0.0.0.0:80").unwrap_err().contains("no key"));
        assert!(loopback("localhost").unwrap_err().contains("a port"));
    }

    #[test]
    fn l7_a_password_among_the_arguments_is_noticed() {
        let has = |argument: &str| {
            has_password(["nsbridge", "ask", argument].map(str::to_owned).into_iter())
        };
        assert!(has("amqps://me:secret@mq/%2f"));
        assert!(has("amqp://guest:guest@localhost,amqps://me:secret@mq/%2f"));
        assert!(has("--broker=amqp://me:secret@localhost"));
        assert!(!has("amqp://guest:guest@localhost:5672/%2f"));
        assert!(!has("amqps://mq/%2f"));
        assert!(!has("amqps://me@mq/%2f"));
        assert!(!has("Read https://me:secret@example.com"));
    }
}
