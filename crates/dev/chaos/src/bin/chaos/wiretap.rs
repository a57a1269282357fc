//! Wire tap on the reply exchange: a second queue that gets a copy of every reply frame and records
//! its cleartext header.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, Consumer};
use nsbridge_crypto::{ReplyHead, ReplyKind};
use nsbridge_protocol::topology::REPLY_EXCHANGE;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::journal::{Journal, What, to_hex};
use crate::servers::connect;

/// Delay between two attempts to reach the broker.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Consumer of the frames for one client, until it is stopped or dropped.
///
/// While the wire tap runs, a frame is routable even if the client is gone, so a worker does not
/// notice the client's absence. A scenario that kills a client for good has to stop its wire tap
/// first.
#[derive(Debug)]
pub(crate) struct Wiretap {
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
    runtime: Handle,
}

impl Wiretap {
    /// Starts a wire tap with a connection to the node itself, without the proxy. Returns when every
    /// later frame will be received.
    pub(crate) fn start(
        runtime: &Handle,
        url: &str,
        reply_queue: &str,
        dir: &Path,
    ) -> Result<Self> {
        let stop = CancellationToken::new();
        let (ready, listening) = oneshot::channel();
        let (url, reply_queue) = (url.to_owned(), reply_queue.to_owned());
        let listener = Listener { url, reply_queue, dir: dir.to_owned() };
        let task = runtime.spawn(listener.listen(stop.clone(), ready));
        runtime.block_on(listening).context("the wire tap cannot listen")?;
        Ok(Self { stop, task: Some(task), runtime: runtime.clone() })
    }

    /// Stops the wire tap and waits until its queue is deleted.
    pub(crate) fn stop(&mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = self.runtime.block_on(task);
        }
    }
}

impl Drop for Wiretap {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Listener {
    url: String,
    reply_queue: String,
    dir: PathBuf,
}

impl Listener {
    async fn listen(self, stop: CancellationToken, ready: oneshot::Sender<()>) {
        let mut ready = Some(ready);
        while !stop.is_cancelled() {
            if let Ok((connection, mut frames)) = self.subscribe().await {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(());
                }
                tokio::select! {
                    _ = self.read(&mut frames) => {}
                    () = stop.cancelled() => {
                        // The wire tap's queue is exclusive, so the broker deletes it with the
                        // connection.
                        let _ = connection.close(200, "done".into()).await;
                        return;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_PAUSE) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn subscribe(&self) -> Result<(Connection, Consumer)> {
        let connection = connect(&self.url, "wire tap").await?;
        let channel = connection.create_channel().await?;
        let (options, none) = (QueueDeclareOptions::exclusive(), FieldTable::default());
        let queue = channel.queue_declare("".into(), options, none.clone()).await?.name().clone();
        let (exchange, key) = (REPLY_EXCHANGE.into(), self.reply_queue.as_str().into());
        let binding = QueueBindOptions::default();
        channel.queue_bind(queue.clone(), exchange, key, binding, none.clone()).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        Ok((connection, channel.basic_consume(queue, "".into(), options, none).await?))
    }

    async fn read(&self, frames: &mut Consumer) -> Result<()> {
        let journal = Journal::in_dir(&self.dir)?;
        while let Some(delivery) = frames.next().await {
            if let Some(what) = describe(&delivery?.data) {
                journal.note(what)?;
            }
        }
        Ok(())
    }
}

/// Describes a reply frame by its cleartext header and a hash of the frame; `None` for other
/// messages.
fn describe(frame: &[u8]) -> Option<What> {
    let head = ReplyHead::parse(frame).ok()?;
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    Some(What::Frame {
        request: head.request.to_string(),
        stream: head.stream.to_string(),
        seq: head.seq,
        hash: hasher.finish(),
        open: (head.kind == ReplyKind::Open).then(|| to_hex(frame)),
    })
}
