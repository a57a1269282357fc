//! Intervals and time limits of a worker.

use std::time::Duration;

use nsbridge_base::Backoff;

/// Intervals and time limits of a worker, for tests that must not wait them out.
///
/// The defaults are those of production. Values of `docs/protocol.md` name their rule here: clients
/// and other workers rely on them, so a worker beside others keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Maximum time between two frames of an open stream (rule A4): 5 s.
    pub heartbeat: Duration,
    /// Minimum time that the worker of a later attempt waits for the client's `resume` (rule R7):
    /// 250 ms.
    pub min_resume_wait: Duration,
    /// Time between two returned frames, without an acked one in between, after which the client is
    /// gone (rule R10): 2 s. A reply queue may be missing for a moment while its client reconnects.
    pub client_gone_after: Duration,
    /// Pause before the next publish to a full reply queue: 50 ms.
    pub full_reply_queue_pause: Duration,
    /// Back-off between two tries to open a stream, and between streams whose channel was lost before
    /// the broker confirmed a frame: from 100 ms to 5 s.
    pub open_retry: Backoff,

    /// Back-off between two probes of the publishing side while they fail: from 100 ms to 10 s.
    pub publish_retry: Backoff,
    /// Time limit of a probe's publisher confirm: 10 s.
    pub publish_probe_limit: Duration,
    /// Time for which probes of the publishing side may fail before the worker gives its requests back
    /// and takes none: 3 s.
    pub max_publish_outage: Duration,

    /// Time limit for a call to return after its stop; then the call is given up: 5 s.
    pub give_up_call_after: Duration,
    /// Time limit of the handler's contract for a call to notice its stop: 2 s. The calls of a failed
    /// handler may never notice it.
    pub failed_call_limit: Duration,
    /// Time for which sending may go on after the deadline or the grace period, once no call runs:
    /// 5 s.
    pub send_margin: Duration,

    /// Time in which an orphan's copy may come back to this worker after the worker has subscribed
    /// again (rule R9): 5 s. If another worker has the copy, both compute the same; this bounds for
    /// how long.
    pub adopt_window: Duration,
    /// Time limit of a run without its delivery, even if the broker stays away (rule R9): 60 s.
    pub max_orphan_time: Duration,
    /// Time that a delivery waits before it evicts an orphan (rule R9): 250 ms. The next delivery may
    /// be the orphan's own copy.
    pub evict_orphan_after: Duration,
    /// Maximum random delay before a suspect requests its turn (rule R5): 100 ms. In the order of the
    /// queue the guilty suspect could be first each time, and the others would never run.
    pub suspect_shuffle: Duration,

    /// Time for which a slot must be free before the worker takes a bulk request into it: 250 ms. The
    /// next interactive request may be on its way.
    pub bulk_linger: Duration,
    /// Time limit of a bulk delivery without a slot; then the worker gives it back: 1 s.
    pub bulk_wait: Duration,
    /// Maximum time for which a bulk run without a new piece cannot be preempted, at its first
    /// attempt: 1 s. Each of the next three attempts doubles it.
    pub bulk_protection: Duration,

    /// Time given to workers that only lost their connection to come back and strike their runs (rule
    /// R1): 1 s.
    pub record_wait: Duration,
    /// Polling interval of a run record within `record_wait`: 100 ms.
    pub record_poll: Duration,
    /// Polling interval of the record of a waiting suspect (rule R5): 2 s.
    pub suspect_poll: Duration,
    /// Back-off between two tries to write to a run record: from 100 ms to 5 s.
    pub record_retry: Backoff,
    /// Time limit for retries to enter a run (rule R1): 2 s. A single publisher confirm may take
    /// longer, as in an alarm.
    pub record_enter_limit: Duration,
    /// Time limit of closing a run record, which delays the settlement of the request's message: 2 s.
    pub record_close_limit: Duration,

    /// Maximum time between two tries of a request whose revision another worker serves: 10 s.
    pub served_revision_pause: Duration,
    /// Time between two tries of a request whose retry queue is full: 5 s. Multiplied by the broker's
    /// delivery limit and the renewed copies of a message, it exceeds the time that a request may
    /// take.
    pub full_retry_queue_pause: Duration,
    /// Pause of a worker that could not dead-letter a request: 1 s.
    pub dead_letter_pause: Duration,
    /// Pause of a worker that cannot seal: 5 s.
    pub seal_pause: Duration,
    /// First pause while the key service is busy (rule R3): 1 s. Each further one is twice as long, and
    /// each is shortened at random by up to half.
    pub key_pause: Duration,
    /// Longest pause while the key service is busy (rule R3): 60 s.
    pub max_key_pause: Duration,

    /// Polling interval of the keyring's file: 2 s.
    pub keyring_poll: Duration,
    /// Back-off between two tries of an operation on the consuming connection: from 200 ms to 10 s.
    pub session_retry: Backoff,
    /// Time limit of handing jobs over after the grace period: 10 s.
    pub hand_over_limit: Duration,
    /// Time limit for the handler to report why it is broken: 1 s.
    pub last_health_limit: Duration,
    /// Interval between two health checks of the handler: 5 s.
    pub health_interval: Duration,
    /// Time limit of a health check; then the handler counts as unwell until it answers: 10 s.
    pub health_limit: Duration,
    /// Interval of the checks of the broker's state and of the handler's calls: 1 s. Five checks in a
    /// row without progress make the worker unwell, and 30 end it.
    pub probe_interval: Duration,
    /// Polling interval of the depth of the worker's queues: 15 s.
    pub depth_interval: Duration,
    /// Heartbeat interval of the thread of an `AsyncHandler`: 500 ms. Shorter than `probe_interval`.
    pub pulse_interval: Duration,

    /// Timing of the worker's connections to the broker.
    pub queue: nsbridge_queue::Timing,
}

impl Default for Timing {
    fn default() -> Self {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        Self {
            heartbeat: s(5),
            min_resume_wait: ms(250),
            client_gone_after: s(2),
            full_reply_queue_pause: ms(50),
            open_retry: Backoff::new(ms(100), s(5)),
            publish_retry: Backoff::new(ms(100), s(10)),
            publish_probe_limit: s(10),
            max_publish_outage: s(3),
            give_up_call_after: s(5),
            failed_call_limit: s(2),
            send_margin: s(5),
            adopt_window: s(5),
            max_orphan_time: s(60),
            evict_orphan_after: ms(250),
            suspect_shuffle: ms(100),
            bulk_linger: ms(250),
            bulk_wait: s(1),
            bulk_protection: s(1),
            record_wait: s(1),
            record_poll: ms(100),
            suspect_poll: s(2),
            record_retry: Backoff::new(ms(100), s(5)),
            record_enter_limit: s(2),
            record_close_limit: s(2),
            served_revision_pause: s(10),
            full_retry_queue_pause: s(5),
            dead_letter_pause: s(1),
            seal_pause: s(5),
            key_pause: s(1),
            max_key_pause: s(60),
            keyring_poll: s(2),
            session_retry: Backoff::new(ms(200), s(10)),
            hand_over_limit: s(10),
            last_health_limit: s(1),
            health_interval: s(5),
            health_limit: s(10),
            probe_interval: s(1),
            depth_interval: s(15),
            pulse_interval: ms(500),
            queue: nsbridge_queue::Timing::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Timing;

    /// Clients and other workers rely on these.
    #[test]
    fn the_defaults_are_the_protocols() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let timing = Timing::default();
        assert_eq!(timing.heartbeat, s(5), "rule A4");
        assert_eq!((timing.record_wait, timing.record_enter_limit), (s(1), s(2)), "rule R1");
        assert_eq!((timing.key_pause, timing.max_key_pause), (s(1), s(60)), "rule R3");
        assert_eq!(timing.suspect_poll, s(2), "rule R5");
        assert_eq!(timing.min_resume_wait, ms(250), "rule R7");
        assert_eq!((timing.adopt_window, timing.max_orphan_time), (s(5), s(60)), "rule R9");
        assert_eq!(timing.evict_orphan_after, ms(250), "rule R9");
        assert_eq!(timing.client_gone_after, s(2), "rule R10");
        assert_eq!((timing.give_up_call_after, timing.failed_call_limit), (s(5), s(2)), "limits");
    }
}
