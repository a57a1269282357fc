//! Replay of dead letters.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nsbridge_client::{Client, Request};
use nsbridge_crypto::Keyring;
use nsbridge_protocol::Priority;
use nsbridge_protocol::topology::dead_queue;
use nsbridge_queue::AmqpBroker;
use serde_json::{Value, json};

use super::Place;
use super::letters::{Letter, Letters, Which};
use crate::failure::note;
use crate::terminal::print_line;

pub(super) async fn run(
    place: &Place,
    which: &Which,
    keys: Arc<Keyring>,
    timeout: Duration,
    out: Option<&Path>,
) -> Result<ExitCode> {
    let mut file = out.map(create).transpose()?;
    let connection = place.connect().await?;
    let queue = dead_queue(&place.model);
    let letters = Letters::read_whole(connection.clone(), &queue, which).await?;
    let letters = letters.take(which).await?;
    if letters.is_empty() {
        bail!("no dead letter of {} matches: list them with `nsbridge queue dead`", place.model);
    }
    let broker = Arc::new(AmqpBroker::new(&place.broker.url)?);
    let client = Client::builder()
        .broker(broker)
        .keys(keys.clone())
        .name("nsbridge replay")
        .connect()
        .await?;
    let (count, mut done) = (letters.len(), 0);
    for letter in letters {
        let name = letter.name();
        let priority = letter.priority(&place.model);
        let asked_again =
            replay(&client, &keys, &letter, priority, timeout).await.and_then(|line| {
                match &mut file {
                    Some(file) => writeln!(file, "{line}")?,
                    None => print_line(&line.to_string())?,
                }
                Ok(())
            });
        match asked_again {
            // The reply is written, so the dead letter can be removed.
            Ok(()) if matches!(letter.delivery.ack().await, Ok(true)) => done += 1,
            Ok(()) => {
                note(&format!(
                    "{name}: the reply was written, but the broker has requeued the dead letter: remove \
                     it with `nsbridge queue purge --model {} --id {name} --yes`",
                    place.model
                ));
                // The channel is lost, and all other dead letters with it: their replies would come
                // again with the next replay.
                break;
            }
            Err(error) => note(&format!("{name}: {error:#}; it stays a dead letter")),
        }
    }
    connection.close().await;
    ensure!(done == count, "{} of {count} dead letters were not replayed", count - done);
    Ok(ExitCode::SUCCESS)
}

fn create(path: &Path) -> Result<File> {
    // Mode 0600: only the owner may read the replies. `create_new`: no earlier replies are
    // overwritten.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.with_context(|| format!("cannot create {}", path.display()))
}

/// Sends the request of a dead letter again and returns the reply as a JSON line.
async fn replay(
    client: &Client,
    keys: &Keyring,
    letter: &Letter,
    priority: Priority,
    timeout: Duration,
) -> Result<Value> {
    let asked = letter.open(keys).await?;
    let mut ask = Request::new(asked.head.model, asked.head.tenant).input(asked.request.input);
    ask.seed = Some(asked.request.seed);
    ask.revision = asked.request.revision;
    ask.priority = priority;
    ask.timeout = timeout;
    ask.replay_of = Some(asked.head.id);
    let reply = client.submit::<Value>(ask).await?;
    let id = reply.id();
    // If the request fails again, its worker may have written a second dead letter.
    let failed = || format!("asked again as {id}, which may be a dead letter now too");
    let (pieces, summary) = reply.collect().await.with_context(failed)?;
    Ok(json!({
        "replay_of": asked.head.id, "id": id, "pieces": pieces,
        "finish_reason": summary.finish_reason,
    }))
}
