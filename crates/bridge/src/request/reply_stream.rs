//! Protocol stream of a reply: seals frames under one key and publishes them in order on one
//! channel.

use nsbridge_crypto::{Error as SealError, ReplyRoot, ReplySealer};
use nsbridge_handler::transcript::{Cursor, Reader, StartAt};
use nsbridge_protocol::topology::REPLY_EXCHANGE;
use nsbridge_protocol::{AttemptNo, Fingerprint, Open, RequestId, Revision, Summary};
use nsbridge_queue::{Error as QueueError, Message};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock::now_ms;
use crate::config::ReplyConfig;
use crate::request::channel_pool::ChannelPool;
use crate::request::confirm_window::ConfirmWindow;
use crate::request::delivery_trace::DeliveryTrace;
use crate::request::disposition::Disposition;
use crate::request::publishing::Publishing;
use crate::request::reply_queue_check::ReplyQueueCheck;
use crate::request::slots::Claim;
use crate::timing::Timing;

/// Common parts of all streams of one job.
pub(crate) struct ReplyContext<'a> {
    pub(crate) pool: &'a ChannelPool,
    pub(crate) publishing: &'a Publishing,
    pub(crate) config: &'a ReplyConfig,
    pub(crate) reply_to: &'a str,
    pub(crate) control_queue: &'a Mutex<String>,
    /// Name of the worker, for the open frame.
    pub(crate) worker: &'a str,
    pub(crate) revision: Option<&'a Revision>,
    /// Root of the keys of all streams and control frames of the job.
    pub(crate) root: &'a ReplyRoot,
    pub(crate) request: RequestId,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) trace: &'a DeliveryTrace,
    pub(crate) reader: &'a Reader,
    /// Claim on the slot. Progress of the reply ends its protection from preemption (rule R13).
    pub(crate) claim: &'a Claim,
    pub(crate) timing: &'a Timing,
    /// Canceled when the time in which the reply may be sent has passed.
    pub(crate) overdue: CancellationToken,
}

impl ReplyContext<'_> {
    /// Returns the current control queue of the worker.
    fn control_queue(&self) -> String {
        self.control_queue.lock().clone()
    }
}

/// Error of one stream.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// Loss of the channel. Its frames may or may not have arrived: open another stream.
    Lost(QueueError),
    /// Frame that could not be sealed. Another stream would fail too.
    Seal(SealError),
}

impl From<QueueError> for StreamError {
    fn from(error: QueueError) -> Self {
        Self::Lost(error)
    }
}

impl From<SealError> for StreamError {
    fn from(error: SealError) -> Self {
        Self::Seal(error)
    }
}

/// Reason why no stream can send the reply.
#[derive(Debug)]
pub(crate) enum Undeliverable {
    /// A frame could not be sealed.
    Seal(SealError),
    /// The broker or the client did not take the reply in time, the worker can publish none, or the
    /// handler hangs.
    Overdue,
}

/// Open stream. It lives on one channel and ends with it (rule A5).
pub(crate) struct ReplyStream<'a> {
    context: &'a ReplyContext<'a>,
    sealer: ReplySealer,
    pub(crate) window: ConfirmWindow<'a>,
    /// Pieces that are not sent yet.
    pub(crate) cursor: Cursor,
    /// Number of data frames sent; `chunks` on the wire.
    data_frames: u64,
}

impl<'a> ReplyStream<'a> {
    /// Opens a stream under a fresh key: seals its open frame and publishes it. Does not wait for the
    /// publisher confirm.
    pub(crate) async fn open(
        context: &'a ReplyContext<'a>,
        number: AttemptNo,
        start: StartAt,
    ) -> Result<Self, StreamError> {
        let publisher = context.pool.take().await?;
        let check = ReplyQueueCheck::new(context.pool, context.timing.client_gone_after);
        let mut open = Open::new(context.worker, now_ms());
        open.fingerprint = context.fingerprint;
        open.revision = context.revision.cloned();
        let open = json(&open);
        let (sealer, frame) = ReplySealer::start(context.root, context.request, number, &open)?;
        let (key, metrics) = (context.reply_to.to_owned(), context.trace.metrics().clone());
        let mut window =
            ConfirmWindow::new(publisher, check, REPLY_EXCHANGE, key, metrics, context.timing);
        let mut message = persistent(context.request, frame);
        message.properties.reply_to = Some(context.control_queue());
        context.trace.sign(&mut message.properties);
        window.push(message).await?;
        context.trace.metrics().attempt_opened();
        let cursor = context.reader.cursor(start);
        Ok(Self { context, sealer, window, cursor, data_frames: 0 })
    }

    /// Returns true if another frame may be in flight.
    pub(crate) fn has_room(&self) -> bool {
        self.window.len() < self.context.config.window
    }

    /// Encrypts the next pieces as one data frame and publishes it; does nothing if there are none.
    /// Does not wait for the publisher confirm: the window keeps the frame until it comes.
    pub(crate) async fn send_pieces(&mut self) -> Result<(), StreamError> {
        if self.cursor.is_at_end() {
            return Ok(());
        }
        let most = self.context.config.coalesce_bytes;
        let frame = self.sealer.seal_pieces(|content| {
            self.cursor.read(most, content);
        })?;
        self.window.push(transient(self.context.request, frame)).await?;
        self.data_frames += 1;
        self.cursor.mark_sent();
        Ok(())
    }

    /// Sends a heartbeat.
    pub(crate) async fn send_heartbeat(&mut self) -> Result<(), StreamError> {
        let frame = self.sealer.seal_heartbeat()?;
        self.window.push(transient(self.context.request, frame)).await?;
        self.context.trace.metrics().heartbeat_sent();
        Ok(())
    }

    /// Sends the remaining pieces, if the reply ends here, and the last frame. Waits until the
    /// broker has acked or returned every frame (rule R8).
    pub(crate) async fn end(mut self, disposition: &Disposition) -> Result<(), StreamError> {
        if disposition.is_over() {
            while !self.cursor.is_at_end() {
                self.send_pieces().await?;
                if !self.has_room() {
                    self.window.read_confirms().await?;
                }
            }
        }
        let Self { context, sealer, mut window, data_frames, .. } = self;
        let frame = match disposition {
            Disposition::Completed(finish) => {
                let mut summary = Summary::new(*finish);
                summary.chunks = data_frames;
                summary.bytes = context.reader.bytes();
                summary.pieces = context.reader.len() as u64;
                sealer.seal_final_ok(&json(&summary))?
            }
            Disposition::Failed(failure) => {
                sealer.seal_final_error(&json(&failure.clone().with_chunks(data_frames)))?
            }
            // Another attempt follows, here or in another worker.
            _ => sealer.seal_moved()?,
        };
        window.push(persistent(context.request, frame)).await?;
        window.flush().await?;
        context.pool.give_back(window.into_publisher());
        Ok(())
    }
}

/// Creates a message that survives a restart of the broker.
fn persistent(request: RequestId, frame: Vec<u8>) -> Message {
    let mut message = transient(request, frame);
    message.properties.persistent = true;
    message
}

fn transient(request: RequestId, frame: Vec<u8>) -> Message {
    let mut message = Message::new(frame);
    message.properties.correlation_id = Some(request.to_string());
    message.properties.persistent = false;
    message
}

fn json(body: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("the protocol's bodies are flat structs")
}
