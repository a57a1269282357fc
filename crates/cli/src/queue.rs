//! `nsbridge queue`: commands for waiting requests and dead letters.

mod letters;
mod replay;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Subcommand;
use nsbridge_crypto::Keyring;
use nsbridge_protocol::topology::{
    RETRY_TIERS, dead_queue, model_queue, request_queue, retry_queue,
};
use nsbridge_protocol::{ModelName, Priority};
use nsbridge_queue::{AmqpBroker, Broker as _, Connection, Error};
use serde_json::json;

use crate::failure::note;
use crate::place::{self, Broker, Keys};
use crate::terminal::print_line;
use letters::{Letter, Letters, Which};

/// Shows a model's queues and dead letters, and replays or removes dead letters.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n\
    \x20 nsbridge queue status --model tale-7m\n\
    \x20 nsbridge queue dead --model tale-7m --reason poison\n\
    \x20 nsbridge queue replay --model tale-7m --id 01a1fdb5-450d-7586-aefc-2a7a24e6ed40\n\
    \x20 nsbridge queue purge --model tale-7m --older-than 7 --yes\n\
    \x20 nsbridge queue purge --model tale-7m --all --yes")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the number of messages and consumers of each queue of a model.
    Status {
        #[command(flatten)]
        place: Place,
        /// Prints one JSON object per queue.
        #[arg(long)]
        json: bool,
    },
    /// Lists the dead letters, oldest first. They stay in the queue, and sealed.
    Dead {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        which: Which,
        /// Opens them with the keyring and prints the inputs, which may be confidential.
        #[arg(long)]
        open: bool,
        #[command(flatten)]
        keys: Keys,
        /// Prints one JSON object per dead letter.
        #[arg(long)]
        json: bool,
    },
    /// Sends dead letters again: opens each one, seals it anew and waits for its reply.
    ///
    /// The reply comes to this command, not to the original client. A dead letter is removed once
    /// its reply is written. If this command dies just before that, the next replay sends the
    /// request a second time. One JSON object per dead letter is printed. A request that a worker
    /// dead-lettered keeps its class; one that the broker dead-lettered is sent as interactive.
    ///
    /// The dead letters are sent one after another and held until then. A run that takes longer than
    /// the broker's consumer_timeout (30 minutes by default) ends with an error: replay fewer at once,
    /// or lower --timeout.
    #[command(override_usage = "nsbridge queue replay --model <MODEL> <--all|--id <ID>> [OPTIONS]")]
    Replay {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        which: Which,
        /// Replays all matching dead letters, not just one by its --id.
        #[arg(long, required_unless_present = "id")]
        all: bool,
        #[command(flatten)]
        keys: Keys,
        /// Time limit for each complete reply, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        timeout: u64,
        /// New file for the replies, readable by its owner alone; standard output if absent. A file
        /// that exists is refused.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Removes dead letters or waiting requests permanently, the oldest 1,000 in a run.
    Purge {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        which: Which,
        /// Removes the requests that wait for a worker instead of the dead letters.
        #[arg(long, conflicts_with_all = ["id", "reason", "older_than"])]
        waiting: bool,
        /// Removes the bulk requests that wait, with --waiting, instead of the interactive ones.
        #[arg(long, requires = "waiting")]
        bulk: bool,
        /// Selects all dead letters. With --yes, --all, --waiting or a filter is required.
        #[arg(long, conflicts_with_all = ["id", "reason", "older_than", "waiting"])]
        all: bool,
        /// Removes the messages. Without this option they are only counted, and the exit code is 1 if
        /// there are any.
        #[arg(long)]
        yes: bool,
    },
}

/// Model and broker of a queue.
#[derive(Debug, clap::Args)]
struct Place {
    /// Name of the model.
    #[arg(long, short)]
    model: ModelName,
    #[command(flatten)]
    broker: Broker,
}

impl Place {
    async fn connect(&self) -> Result<Arc<dyn Connection>> {
        Ok(AmqpBroker::new(&self.broker.url)?.connect("nsbridge queue").await?)
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    place::block_on(async {
        match arguments.command {
            Command::Status { place, json } => status(&place, json).await,
            Command::Dead { place, which, open, keys, json } => {
                let keys = if open { Some(Keyring::load(&keys.keyring)?) } else { None };
                dead(&place, &which, keys.as_ref(), json).await
            }
            Command::Replay { place, which, all: _, keys, timeout, out } => {
                let keys = Arc::new(Keyring::load(&keys.keyring)?);
                let timeout = Duration::from_secs(timeout);
                replay::run(&place, &which, keys, timeout, out.as_deref()).await
            }
            Command::Purge { place, which, waiting, bulk, all, yes } => {
                ensure!(
                    !yes || all || waiting || which.selects(),
                    "this would remove all dead letters of {}: add --all, or select some with --id, \
                     --reason or --older-than",
                    place.model
                );
                let priority = if bulk { Priority::Bulk } else { Priority::Interactive };
                purge(&place, &which, waiting.then_some(priority), yes).await
            }
        }
    })
}

async fn status(place: &Place, as_json: bool) -> Result<ExitCode> {
    let connection = place.connect().await?;
    let model = &place.model;
    let requests = Priority::ALL.map(|priority| request_queue(model, priority));
    let tiers = |priority| RETRY_TIERS.map(|tier| retry_queue(model, priority, tier));
    let retries = Priority::ALL.into_iter().flat_map(tiers);
    let queues = requests.into_iter().chain(retries).chain([dead_queue(model)]);
    for queue in queues {
        let depth = match connection.depth(&queue).await {
            Ok(depth) => depth,
            Err(Error::NoQueue { .. }) if queue == model_queue(model) => {
                anyhow::bail!(
                    "the broker has no queue for the model {model} in this virtual host: check --model \
                     and --broker (NSBRIDGE_BROKER__URL); the model's first worker creates its queues"
                );
            }
            // The queue may be missing on a broker that an older release set up.
            Err(Error::NoQueue { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let (messages, consumers) = (depth.messages, depth.consumers);
        if as_json {
            let line = json!({ "queue": queue, "messages": messages, "consumers": consumers });
            print_line(&line.to_string())?;
        } else {
            print_line(&format!("{messages:>8} ready  {consumers:>4} consumers  {queue}"))?;
        }
    }
    connection.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn dead(
    place: &Place,
    which: &Which,
    keys: Option<&Keyring>,
    as_json: bool,
) -> Result<ExitCode> {
    let mut sealed_for_good = 0;
    let show = async |letter: &Letter| -> Result<()> {
        if !which.fits(letter) {
            return Ok(());
        }
        let opened = match keys {
            Some(keys) => Some(letter.open(keys).await),
            None => None,
        };
        if let Some(Err(why)) = &opened {
            sealed_for_good += 1;
            note(&format!("{}: {why:#}", letter.name()));
        }
        let asked = opened.and_then(Result::ok);
        let line = if as_json { letter.json(asked.as_ref()) } else { letter.line(asked.as_ref()) };
        Ok(print_line(&line)?)
    };
    let queue = dead_queue(&place.model);
    Letters::read(place.connect().await?, &queue, show).await?.leave(&queue).await;
    ensure!(
        sealed_for_good == 0,
        "{sealed_for_good} dead letters could not be opened; the reasons are above"
    );
    Ok(ExitCode::SUCCESS)
}

/// Removes the waiting requests of a class, or dead letters.
async fn purge(
    place: &Place,
    which: &Which,
    waiting: Option<Priority>,
    yes: bool,
) -> Result<ExitCode> {
    let model = &place.model;
    let queue =
        waiting.map_or_else(|| dead_queue(model), |priority| request_queue(model, priority));
    let connection = place.connect().await?;
    if !yes {
        // Waiting requests are only counted, because reading one counts as a delivery of it.
        let count = if waiting.is_some() {
            letters::depth(&*connection, &queue).await?
        } else {
            let letters = Letters::read(connection, &queue, async |_| Ok(())).await?;
            let count = letters.fitting(which).count();
            letters.leave(&queue).await;
            count
        };
        ensure!(
            count == 0,
            "{count} messages of {queue} would be removed: add --yes to remove them"
        );
        note(&format!("no message in {queue} matches"));
        return Ok(ExitCode::SUCCESS);
    }
    let letters = Letters::read(connection, &queue, async |_| Ok(())).await?;
    let removed = letters.remove(which).await?;
    note(&format!("{removed} messages were removed from {queue}"));
    Ok(ExitCode::SUCCESS)
}
