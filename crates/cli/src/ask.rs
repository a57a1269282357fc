//! `nsbridge ask`: one request through the broker.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nsbridge::KeysConfig;
use nsbridge_client::{Ask, Client};
use nsbridge_crypto::Keyring;
use nsbridge_protocol::{KeyId, ModelName, Revision, Tenant};
use nsbridge_queue::AmqpBroker;

use crate::place::{self, Broker, Keys};
use crate::prompt::Sampling;
use crate::{prompt, stream};

/// What only a text model is told; another's input has it inside.
const OF_TEXT: [&str; 8] =
    ["prompt", "max_tokens", "temperature", "top_p", "chat", "json_object", "json_schema", "regex"];

/// Sends one sealed request to a model's queue and streams the reply.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge ask --model tale-7m --keyring keys.json \"Once a bear\"")]
pub(crate) struct Arguments {
    /// The prompt; `-` reads standard input.
    #[arg(required_unless_present = "input")]
    prompt: Option<String>,
    /// The input of a handler that is no text model, as JSON; its pieces are printed as JSON.
    #[arg(long, value_name = "JSON", conflicts_with_all = OF_TEXT, value_parser = read_json)]
    input: Option<serde_json::Value>,
    /// The model that is to answer.
    #[arg(long, short)]
    model: ModelName,
    /// Who the request is for.
    #[arg(long, default_value = "default")]
    tenant: Tenant,
    #[command(flatten)]
    broker: Broker,
    #[command(flatten)]
    keys: Keys,
    /// Seal with a data key of this AWS KMS key, an ARN or alias, instead of the keyring. Region and
    /// credentials come from the environment or the profile.
    #[arg(long, value_name = "KEY")]
    kms_key: Option<KeyId>,
    #[command(flatten)]
    sampling: Sampling,
    /// The only revision of the model that may answer.
    #[arg(long, value_name = "ID")]
    revision: Option<Revision>,
    /// Seconds until the answer must be complete.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// One JSON object per line: `piece` for each token, then `summary`.
    #[arg(long)]
    json: bool,
}

/// Reads JSON; without this, any text would pass for a JSON string.
fn read_json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(ask(arguments))
}

async fn ask(arguments: Arguments) -> Result<ExitCode> {
    let keys = match arguments.kms_key {
        Some(key) => KeysConfig { kms_keys: vec![key], ..KeysConfig::default() }.open().await?,
        None => Arc::new(Keyring::load(&arguments.keys.keyring)?),
    };
    let broker = Arc::new(AmqpBroker::new(&arguments.broker.url)?);
    let client = Client::connect(broker, keys, "nsbridge ask").await?;
    let mut ask = Ask::new(arguments.model, arguments.tenant, ());
    ask.seed = arguments.sampling.seed;
    ask.revision = arguments.revision;
    ask.timeout = Duration::from_secs(arguments.timeout);
    if let Some(input) = arguments.input {
        let reply = client.submit(ask.with_input(input)).await?;
        return stream::show_values(reply).await;
    }
    let prompt = prompt::read(arguments.prompt.unwrap_or_default())?;
    let reply = client.submit(ask.with_input(arguments.sampling.input(prompt)?)).await?;
    stream::show(reply, arguments.json).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read_json;

    #[test]
    fn an_input_is_json_and_nothing_else() {
        assert_eq!(read_json("\"hello there\""), Ok(json!("hello there")));
        assert_eq!(read_json("{\"n\": 1}"), Ok(json!({ "n": 1 })));
        assert!(read_json("hello there").unwrap_err().starts_with("it is not JSON"));
    }
}
