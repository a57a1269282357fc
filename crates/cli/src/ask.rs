//! `nsbridge ask`: sends one request through the broker.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nsbridge::worker::KeysConfig;
use nsbridge_client::{Client, Request};
use nsbridge_crypto::Keyring;
use nsbridge_protocol::{KeyId, ModelName, Priority, Revision, Tenant};
use nsbridge_queue::AmqpBroker;

use crate::place::{self, Broker, Keys};
use crate::prompt::{Multimodal, Sampling};
use crate::{prompt, stream};

/// Arguments of text models only. The input of another handler contains such parameters itself.
const OF_TEXT: [&str; 11] = [
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "chat",
    "system",
    "json_object",
    "json_schema",
    "regex",
    "image",
    "adapter",
];

/// Heading of the options about broker and keys.
const CONNECTION: &str = "Broker and keys";

/// Sends one sealed request to a model's queue and streams the reply.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nsbridge ask --model tale-7m --keyring keys.json \"Once a bear\"")]
pub(crate) struct Arguments {
    /// Prompt; `-` or none reads standard input.
    prompt: Option<String>,
    /// JSON input for a handler that is not a text model. Its pieces are printed as JSON.
    #[arg(long, value_name = "JSON", conflicts_with_all = OF_TEXT, value_parser = place::json)]
    input: Option<serde_json::Value>,
    /// Model that answers the request.
    #[arg(long, short)]
    model: ModelName,
    /// Tenant of the request.
    #[arg(long, default_value = "default")]
    tenant: Tenant,
    /// Revision of the model that must answer the request.
    #[arg(long, value_name = "ID")]
    revision: Option<Revision>,
    /// Sends the request as bulk work: workers take it only into slots that no interactive request
    /// needs.
    #[arg(long)]
    bulk: bool,
    /// Time limit for the complete reply, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Prints one JSON object per line: a `piece` for each token, then a `summary`.
    #[arg(long)]
    json: bool,
    // A heading holds for all that follows: options without one come first.
    #[command(flatten, next_help_heading = CONNECTION)]
    broker: Broker,
    #[command(flatten, next_help_heading = CONNECTION)]
    keys: Keys,
    /// AWS KMS key (ARN or alias) whose data key seals the request instead of the keyring. Region
    /// and credentials come from the environment or the profile.
    #[arg(long, value_name = "KEY", help_heading = CONNECTION)]
    kms_key: Option<KeyId>,
    #[command(flatten, next_help_heading = "Text models")]
    sampling: Sampling,
    #[command(flatten, next_help_heading = "Text models")]
    multimodal: Multimodal,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(ask(arguments))
}

async fn ask(arguments: Arguments) -> Result<ExitCode> {
    let keys = match arguments.kms_key {
        Some(key) => KeysConfig::from_kms([key]).open().await?,
        None => Arc::new(Keyring::load(&arguments.keys.keyring)?),
    };
    let broker = Arc::new(AmqpBroker::new(&arguments.broker.url)?);
    let client = Client::builder().broker(broker).keys(keys).name("nsbridge ask").connect().await?;
    let mut ask = Request::new(arguments.model, arguments.tenant);
    ask.seed = arguments.sampling.seed;
    ask.revision = arguments.revision;
    ask.priority = if arguments.bulk { Priority::Bulk } else { Priority::Interactive };
    ask.timeout = Duration::from_secs(arguments.timeout);
    if let Some(input) = arguments.input {
        let reply = client.submit(ask.input(input)).await?;
        return stream::show_values(reply, arguments.json).await;
    }
    let prompt = prompt::read(arguments.prompt)?;
    let mut input = arguments.sampling.input(prompt)?;
    arguments.multimodal.add_to(&mut input)?;
    let reply = client.submit(ask.input(input)).await?;
    stream::show(reply, arguments.json).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::place::json as read_json;

    #[test]
    fn an_input_is_json_and_nothing_else() {
        assert_eq!(read_json("\"hello there\""), Ok(json!("hello there")));
        assert_eq!(read_json("{\"n\": 1}"), Ok(json!({ "n": 1 })));
        assert!(read_json("hello there").unwrap_err().starts_with("it is not JSON"));
    }
}
