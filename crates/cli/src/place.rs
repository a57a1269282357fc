//! Arguments for the broker and the keyring, shared by all commands that use a queue.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nsbridge::worker::{LogConfig, LogFormat};

/// Address of the broker.
#[derive(Debug, clap::Args)]
pub(crate) struct Broker {
    /// URL of the broker: amqp://user:password@host:5672/%2f
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

/// Returns true if an argument is a broker URL with a password.
///
/// RabbitMQ's default password is no secret, since the broker accepts it only from the local
/// machine.
pub(crate) fn has_password(mut arguments: impl Iterator<Item = String>) -> bool {
    arguments.any(|argument| {
        let url = argument.strip_prefix("--broker=").unwrap_or(&argument);
        let password = nsbridge::worker::password_of(url).filter(|_| url.starts_with("amqp"));
        password.is_some_and(|password| password != "guest")
    })
}

/// Runs an asynchronous command and logs warnings to stderr.
pub(crate) fn block_on(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let log = LogConfig::new("warn,lapin=off,aws_config=error", LogFormat::Text);
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
    use super::has_password;

    #[test]
    fn l7_a_password_among_the_arguments_is_noticed() {
        let has = |argument: &str| {
            has_password(["nsbridge", "ask", argument].map(str::to_owned).into_iter())
        };
        assert!(has("amqps://me:secret@mq/%2f"));
        assert!(has("--broker=amqp://me:secret@localhost"));
        assert!(!has("amqp://guest:guest@localhost:5672/%2f"));
        assert!(!has("amqps://mq/%2f"));
        assert!(!has("amqps://me@mq/%2f"));
        assert!(!has("Read https://me:secret@example.com"));
    }
}
