//! Intervals and time limits of connections.

use std::time::Duration;

use nsbridge_base::Backoff;

/// Intervals and time limits of connections to a broker, for tests that must not wait them out.
///
/// The defaults are those of production.
///
/// ```
/// use std::time::Duration;
///
/// use nsbridge_queue::{AmqpBroker, Timing};
///
/// let mut timing = Timing::default();
/// timing.connect_limit = Duration::from_millis(500);
/// let broker = AmqpBroker::new("amqp://localhost:5672/%2f")?.with_timing(timing);
/// # drop(broker);
/// # Ok::<(), nsbridge_queue::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Time limit of a connection attempt: 10 s.
    pub connect_limit: Duration,
    /// Time limit of a probe that checks whether the broker listens: 2 s.
    pub probe_limit: Duration,
    /// Time limit of a connection's closing handshake: 5 s.
    pub close_limit: Duration,

    /// Polling interval of a connection's state: 1 s. lapin's events report errors, but not every
    /// orderly end.
    pub connection_poll: Duration,
    /// Age up to which a publishing channel's messages are believed to be refused by their queue: 1 s. See
    /// [`Publisher::is_stale`](crate::Publisher::is_stale).
    pub fresh_channel: Duration,
    /// Time limit for the broker's answer about a reply queue or a run record, after which the node that has
    /// it counts as down: 5 s. RabbitMQ 4.3 waits a minute for a node that does not run.
    pub home_node_limit: Duration,
    /// Polling interval of the channel of a paused subscription: 500 ms. No event reports its closing.
    pub channel_poll: Duration,

    /// Back-off between two connection attempts: from 100 ms to 10 s.
    pub reconnect: Backoff,
    /// Interval between two probes of a broker that does not listen: 250 ms, shortened at random by up
    /// to half.
    pub probe_interval: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        Self {
            connect_limit: s(10),
            probe_limit: s(2),
            close_limit: s(5),
            connection_poll: s(1),
            fresh_channel: s(1),
            home_node_limit: s(5),
            channel_poll: ms(500),
            reconnect: Backoff::new(ms(100), s(10)),
            probe_interval: ms(250),
        }
    }
}
