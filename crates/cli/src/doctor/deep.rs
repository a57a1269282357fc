//! Checks of `--deep`: what a worker's own start does not show.

use anyhow::{Context as _, Result, anyhow, bail};
use hyper::Uri;
use nsbridge::worker::Config;
use nsbridge_crypto::Scope;
use nsbridge_observe::address::{host_of_broker, management};
use nsbridge_observe::{Declaration, Management};
use nsbridge_protocol::Tenant;
use nsbridge_queue::{AmqpBroker, Argument, DeclaredQueue};
use serde_json::Value;

use super::Finding;
use crate::terminal::counted;

/// Tenant in the encryption context of a probe. Its requests are not sealed with a key of KMS.
const PROBE_TENANT: &str = "nsbridge-doctor";

/// Asks AWS KMS whether this process may decrypt.
pub(super) async fn kms(config: &Config) -> Finding {
    let keys = config.keys.kms_keys.len() as u64;
    let tenant: Tenant = PROBE_TENANT.parse().context("the tenant of the probe")?;
    let scope = Scope { model: config.worker.model.clone(), tenant };
    config.keys.probe_kms(&scope).await.context(
        "mend the permission kms:Decrypt, the key, the region or the network (docs/operating.md, Keys from AWS \
         KMS)",
    )?;
    Ok(match keys {
        0 => "no key of AWS KMS is configured".to_owned(),
        _ => format!("AWS KMS answers and would decrypt with {}", counted(keys, "key", "keys")),
    })
}

/// Compares the queues of the model with what nsbridge declares. A broker may relax its own comparison, as
/// Amazon MQ does.
pub(super) async fn queues(config: &Config, given: Option<&Uri>) -> Finding {
    let url = config.broker.read_url()?;
    let address = match given {
        Some(address) => address.clone(),
        None => guess(&url).context("give the address of the management API by --management")?,
    };
    let api = Management::new(address.clone(), &url)?;
    let broker = AmqpBroker::new(&url)?;
    let mut replicas = u64::MAX;
    for queue in broker.declared_queues(&config.worker.model) {
        let found = api.declaration(&queue.name).await;
        let found = found.with_context(|| {
            format!(
                "the management API at {address} cannot be asked: give its address by --management"
            )
        })?;
        let found = found.with_context(|| {
            format!("the broker does not show the queue {} to this user", queue.name)
        })?;
        compare(&queue, &found)?;
        replicas = replicas.min(found.members.len() as u64);
    }
    Ok(format!(
        "all queues of the model have nsbridge's arguments, and {} each",
        counted(replicas, "replica", "replicas")
    ))
}

/// Returns the address of the management API where the broker's node is: on RabbitMQ's ports, or that of
/// Amazon MQ.
fn guess(url: &str) -> Result<Uri> {
    let host = host_of_broker(url).context("the broker's URL has no host")?;
    let text = if host.ends_with(".amazonaws.com") || host.ends_with(".on.aws") {
        format!("https://{host}")
    } else if url.starts_with("amqps") {
        format!("https://{host}:15671")
    } else {
        format!("http://{host}:15672")
    };
    management(&text).map_err(|problem| anyhow!(problem))
}

fn compare(expected: &DeclaredQueue, found: &Declaration) -> Result<()> {
    let remedy =
        "drain and delete it, or use another virtual host (docs/broker.md, Changed arguments)";
    let name = &expected.name;
    for (argument, value) in &expected.arguments {
        match found.arguments.get(argument) {
            Some(known) if equal(value, known) => {}
            Some(known) => {
                bail!("the queue {name} has {argument} = {known} instead of {value}: {remedy}")
            }
            None => bail!("the queue {name} has no {argument}, which should be {value}: {remedy}"),
        }
        let setting = argument.trim_start_matches("x-");
        if let Some(policy) = found.effective_policy_definition.get(setting) {
            bail!(
                "a policy sets {setting} = {policy} on the queue {name}, whose own is {value}: change the \
                 policy's pattern (`rabbitmqctl list_policies`)"
            );
        }
    }
    match found.arguments.keys().find(|argument| !expected.arguments.contains_key(*argument)) {
        Some(other) => bail!("the queue {name} has {other}, which nsbridge does not set: {remedy}"),
        None => Ok(()),
    }
}

fn equal(expected: &Argument, found: &Value) -> bool {
    match expected {
        Argument::Text(text) => found.as_str() == Some(text),
        Argument::Number(number) => found.as_i64() == Some(*number),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the guess and of the comparison.

    use nsbridge_observe::Declaration;
    use nsbridge_queue::AmqpBroker;
    use serde_json::json;

    use super::{compare, guess};

    #[test]
    fn the_management_api_is_where_the_broker_is() {
        for (url, expected) in [
            ("amqp://localhost", "http://localhost:15672/"),
            ("amqps://a:b@mq:5671/%2f,amqps://a:b@mq2/%2f", "https://mq:15671/"),
            ("amqps://a:b@b-1.mq.eu-central-1.on.aws:5671", "https://b-1.mq.eu-central-1.on.aws/"),
        ] {
            assert_eq!(guess(url).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn each_difference_is_one_sentence() {
        let broker = AmqpBroker::new("amqp://localhost").unwrap();
        let queues = broker.declared_queues(&"m".parse().unwrap());
        let queue = queues.iter().find(|queue| queue.name == "nsbridge.m").unwrap();
        let same = json!({
            "x-queue-type": "quorum", "x-delivery-limit": 64, "x-max-length-bytes": 8_589_934_592_u64,
            "x-overflow": "reject-publish", "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "nsbridge.m.dead", "x-dead-letter-strategy": "at-least-once",
        });
        let said = |name: &str, value: serde_json::Value, policy: serde_json::Value| {
            let mut arguments = same.clone();
            match value {
                serde_json::Value::Null => drop(arguments.as_object_mut().unwrap().remove(name)),
                value => arguments[name] = value,
            }
            let found = json!({ "arguments": arguments, "effective_policy_definition": policy });
            let found: Declaration = serde_json::from_value(found).unwrap();
            compare(queue, &found).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(said("x-delivery-limit", 64.into(), json!({})), "");
        let changed = said("x-delivery-limit", 20.into(), json!({}));
        assert!(changed.contains("nsbridge.m has x-delivery-limit = 20 instead of 64: drain"));
        assert!(said("x-overflow", json!(null), json!({})).contains("has no x-overflow"));
        assert!(
            said("x-expires", 1000.into(), json!({}))
                .contains("x-expires, which nsbridge does not")
        );
        let policy =
            said("x-overflow", json!("reject-publish"), json!({ "overflow": "drop-head" }));
        assert!(policy.contains("a policy sets overflow = \"drop-head\""), "{policy}");
    }
}
