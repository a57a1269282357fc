//! Durations that decide when a client repeats something.

use std::time::Duration;

use nsbridge_queue::Backoff;

/// Durations of a client. The defaults are those of the protocol; tests may shorten them.
///
/// ```
/// use std::time::Duration;
///
/// let mut timing = nsbridge_client::Timing::default();
/// timing.waiting = Duration::from_secs(2);
/// let builder = nsbridge_client::Client::builder().timing(timing);
/// # drop(builder);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Timing {
    /// Time of silence after which the caller receives [`Event::Waiting`](crate::Event::Waiting).
    pub waiting: Duration,
    /// Time of silence after a loss before the request is enqueued again. A live worker sends a
    /// frame at least every 5 s. The time doubles before each further enqueue, since a copy may only
    /// be waiting in the queue.
    pub silent_after_loss: Duration,
    /// Time of silence before an opened request is enqueued again without a sign of loss. By then its
    /// worker is gone even by the broker's heartbeats, and a worker that took over the copy would
    /// have sent a frame. The copy may also wait because all workers are busy or gone, so this is
    /// done only once. The enqueue is needed because a broker may keep the unacked messages of a lost
    /// consumer (rabbitmq-server issues 11228 and 15473).
    pub silent_after_open: Duration,
    /// Interval between checks for requests whose replies may have been lost.
    pub check_every: Duration,
    /// Delay of a check from which the process counts as suspended. Frames of that time may still be
    /// waiting to be read.
    pub suspended: Duration,
    /// Back-off between two attempts to publish a request. Its first pause is also the pause between
    /// two attempts to subscribe to the reply queue.
    pub backoff: Backoff,
    /// Timing of the client's connections to the broker.
    pub queue: nsbridge_queue::Timing,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            waiting: Duration::from_secs(15),
            silent_after_loss: Duration::from_secs(6),
            silent_after_open: Duration::from_secs(90),
            check_every: Duration::from_secs(1),
            suspended: Duration::from_secs(5),
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(5)),
            queue: nsbridge_queue::Timing::default(),
        }
    }
}
