//! Where the broker is, and what opens and seals: what every command that speaks to a queue is told.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nsbridge::{LogConfig, LogFormat};

/// Where the queue is.
#[derive(Debug, clap::Args)]
pub(crate) struct Broker {
    /// The broker: amqp://user:password@host:5672/%2f
    #[arg(
        long = "broker",
        value_name = "URL",
        env = "NSBRIDGE_BROKER__URL",
        hide_env_values = true,
        default_value = "amqp://localhost"
    )]
    pub(crate) url: String,
}

/// Where the keys are.
#[derive(Debug, clap::Args)]
pub(crate) struct Keys {
    /// The keyring file.
    #[arg(long, value_name = "FILE", env = "NSBRIDGE_KEYS__KEYRING", default_value = "keys.json")]
    pub(crate) keyring: PathBuf,
}

/// Whether a broker's address with a password is among a command's arguments. RabbitMQ's default one,
/// which it takes from the machine itself alone, is no secret.
pub(crate) fn has_password(mut arguments: impl Iterator<Item = String>) -> bool {
    arguments.any(|argument| {
        let url = argument.strip_prefix("--broker=").unwrap_or(&argument);
        let password = nsbridge::password_of(url).filter(|_| url.starts_with("amqp"));
        password.is_some_and(|password| password != "guest")
    })
}

/// Runs a command that waits for others, with warnings to stderr.
pub(crate) fn block_on(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let log =
        LogConfig { filter: "warn,lapin=off,aws_config=error".into(), format: LogFormat::Text };
    nsbridge::log_to_stderr(&log)?;
    wait_for(command)
}

/// Waits for an answer, and not for what still reads or computes on a thread of its own: that ends
/// with the process.
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
