//! Sealing and publishing of requests.

mod builder;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nsbridge_base::random::bytes;
use nsbridge_crypto::{KeyProvider, RequestHead, Scope};
use nsbridge_protocol::topology::{MAX_TIME_TO_FINISH, header, request_queue};
use nsbridge_protocol::{ModelName, Priority, ReplayKey, RequestId, TraceParent, Uuid};
use nsbridge_queue::{Broker, Confirmation, Header, Message, ReconnectingConnection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::envelope::Envelope;
use crate::error::{Error, Result};
use crate::merge::Merge;
use crate::pending::Original;
use crate::piece_log::{PieceLog, too_large};
use crate::reply::Reply;
use crate::request::Request;
use crate::resume::ResumePoint;
use crate::router::{Publish, Router, name_reply_queue};
use crate::timing::Timing;

pub use builder::ClientBuilder;

/// Mask for random seeds: 53 bits, which every JSON parser represents exactly.
const SEED_BITS: u64 = (1 << 53) - 1;

/// Client that submits requests and reads replies, many at once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keys: Arc<dyn KeyProvider>,
    router: Arc<Router>,
    close: Arc<DropGuard>,
}

impl Client {
    /// Returns a builder, which connects the client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    async fn connect(
        broker: Arc<dyn Broker>,
        keys: Arc<dyn KeyProvider>,
        name: &str,
        timing: Timing,
    ) -> Result<Self> {
        let mut reply_queue =
            name_reply_queue().map_err(|_| nsbridge_crypto::Error::NoRandomness)?;
        let link = |broker, purpose| {
            let link = ReconnectingConnection::new(broker, format!("{name} {purpose}"));
            link.with_timing(timing.queue.clone())
        };
        let consume = link(broker.clone(), "replies");
        let publish = Arc::new(Publish::new(link(broker, "requests")));
        let closed = CancellationToken::new();
        let router = Router::new(publish, closed.clone(), reply_queue.clone(), timing);
        let router = Arc::new(router);
        // The reply queue exists before the first request is published, so no reply can arrive too
        // early.
        let consumer = Router::subscribe(&consume, &mut reply_queue, &mut false).await?;
        tokio::spawn(router.clone().run(consume, consumer));
        let close = Arc::new(closed.drop_guard());
        Ok(Self(Arc::new(Inner { keys, router, close })))
    }

    /// Seals a request and publishes it. Returns when the broker has confirmed it. `O` is the type of
    /// one piece of the reply: [`TextPiece`](crate::TextPiece) for text models.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSuchModel`], [`Error::QueueFull`], [`Error::Key`], [`Error::Queue`], or
    /// another error that keeps a request from being published.
    pub async fn submit<O: DeserializeOwned + ReplayKey>(
        &self,
        request: Request<impl Serialize>,
    ) -> Result<Reply<O>> {
        let created = SystemTime::now();
        let id = request.id.unwrap_or_else(|| RequestId(Uuid::now_v7()));
        let seed = match request.seed {
            Some(seed) => seed,
            None => draw_seed()?,
        };
        let mut point = ResumePoint::new(id, seed, created, created + request.timeout);
        point.clients = 0;
        self.start(request, point).await
    }

    /// Continues a request that another client submitted, often one of a process that has ended.
    /// The events of the reply are those after the pieces in `point`. `request` must have the
    /// model, the tenant, the input and the revision of the first submission; its time limit and
    /// its seed are not used. Its priority may differ: it is the class of the new copy.
    ///
    /// If the first client still reads the reply, both receive it.
    ///
    /// # Errors
    ///
    /// Returns an error of [`submit`](Self::submit), or [`Error::Deadline`] if the request has
    /// expired.
    pub async fn reattach<O: DeserializeOwned + ReplayKey>(
        &self,
        request: Request<impl Serialize>,
        point: ResumePoint,
    ) -> Result<Reply<O>> {
        let point = ResumePoint { clients: point.clients.max(1), ..point };
        self.start(request, point).await
    }

    /// Seals and publishes a request.
    async fn start<O: DeserializeOwned + ReplayKey>(
        &self,
        request: Request<impl Serialize>,
        point: ResumePoint,
    ) -> Result<Reply<O>> {
        let limit = MAX_TIME_TO_FINISH;
        let asked = point.expires_at.duration_since(point.created_at).unwrap_or_default();
        if asked > limit {
            return Err(Error::TooLong { asked, limit });
        }
        let left = point.expires_at.duration_since(SystemTime::now()).unwrap_or_default();
        let deadline = Instant::now() + left;
        let ResumePoint { clients, fingerprint, ref pieces, .. } = point;
        if left.is_zero() && clients > 0 {
            return Err(Error::Deadline { pieces: pieces.len(), hint: None });
        }
        let replay_of = request.replay_of;
        let original = self.original(request, &point).await?;
        let sealed = original.seal()?;
        let bytes = sealed.frame.len() as u64;
        let envelope = original.envelope(None);
        let merge = Merge::new(sealed.reply_root, O::replay_key);
        let pieces = PieceLog::of(&point.pieces);
        let merge = merge.after(pieces.ok_or_else(|| Error::of(too_large()))?, fingerprint);
        // Register before publishing, so that the first reply finds its entry; and before the name of
        // the reply queue is read, so that a change of it is either seen here or known to the entry.
        let entry = self.0.router.register(original, merge, deadline, bytes);
        let mut message = envelope.message(sealed.frame, &self.0.router.reply_queue(), clients);
        if let Some(of) = replay_of {
            let headers = &mut message.properties.headers;
            headers.insert(header::REPLAY_OF.into(), Header::Text(of.to_string()));
        }
        let reply = Reply::new(entry, self.0.router.clone(), self.0.close.clone(), deadline);
        self.publish(&envelope, message, deadline).await?;
        Ok(reply)
    }

    /// Fixes the content that all copies of the request share.
    async fn original(
        &self,
        request: Request<impl Serialize>,
        point: &ResumePoint,
    ) -> Result<Original> {
        let Request { model, tenant, input, revision, priority, trace, .. } = request;
        let scope = Scope { model, tenant };
        let key = self.0.keys.data_key(&scope).await?;
        let mut content = nsbridge_protocol::Request::new(point.seed, input);
        content.revision = revision;
        let content = serde_json::to_vec(&content).map_err(Error::Input)?;
        let head = RequestHead {
            id: point.id,
            created_at_ms: millis(point.created_at),
            expires_at_ms: millis(point.expires_at),
            model: scope.model,
            tenant: scope.tenant,
            key_id: key.id.clone(),
        };
        let trace = match trace {
            Some(trace) => trace,
            None => begin_trace()?,
        };
        Ok(Original { head, priority, key, content, trace, epoch: point.clients })
    }

    /// Publishes until the broker answers.
    async fn publish(
        &self,
        envelope: &Envelope,
        message: Message,
        deadline: Instant,
    ) -> Result<()> {
        let model = &envelope.head.model;
        let decide = |answer: nsbridge_queue::Result<Confirmation>| {
            Some(match answer {
                Ok(Confirmation::Ack) => Ok(()),
                Ok(Confirmation::Returned) => Err(Error::NoSuchModel { model: model.clone() }),
                Ok(Confirmation::Nack) => Err(Error::QueueFull { model: model.clone() }),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "a request may not have arrived, sending it again");
                    return None;
                }
                Err(error) => Err(error.into()),
            })
        };
        let late = |_| Error::Deadline { pieces: 0, hint: None };
        let published = self.0.router.enqueue(envelope, message, decide);
        timeout_at(deadline, published).await.map_err(late)?.unwrap_or(Err(Error::Closed))
    }

    /// Asks the broker for the number of workers that take requests of a model: the consumers of its
    /// request queue. It is 0 while the first worker starts.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoSuchModel`] if the model has no queue, and [`Error::Queue`] if the broker
    /// does not answer. A broker that cannot be reached is waited for.
    pub async fn workers(&self, model: &ModelName) -> Result<u32> {
        let connection = self.0.router.connection().await;
        match connection.depth(&request_queue(model, Priority::Interactive)).await {
            Ok(depth) => Ok(depth.consumers),
            Err(nsbridge_queue::Error::NoQueue { .. }) => {
                Err(Error::NoSuchModel { model: model.clone() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if a worker has opened the request of this id and has not handed it back. False
    /// for a request that waits in its queue, and for one that this client does not know.
    pub fn is_held(&self, id: RequestId) -> bool {
        self.0.router.is_held(id)
    }

    /// Returns the current name of the reply queue. It changes when the queue's node of a cluster goes
    /// down.
    pub fn reply_queue(&self) -> String {
        self.0.router.reply_queue()
    }
}

fn millis(time: SystemTime) -> u64 {
    let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Draws the seed of a request.
pub(crate) fn draw_seed() -> Result<u64> {
    Ok(u64::from_ne_bytes(random()?) & SEED_BITS)
}

/// Creates the root span of a new trace. It stands for the caller's span, and is never exported.
pub(crate) fn begin_trace() -> Result<TraceParent> {
    loop {
        // An id of zeros is invalid, and does not occur twice in a row.
        if let Some(root) = TraceParent::root(random()?, random()?) {
            return Ok(root);
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    Ok(bytes().map_err(|_| nsbridge_crypto::Error::NoRandomness)?)
}
