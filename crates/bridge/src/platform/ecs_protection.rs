//! Scale-in protection of an ECS task while it answers requests.
//!
//! A scale-in that comes in spite of it is a SIGTERM, and a drain like any other. See
//! `docs.aws.amazon.com/AmazonECS/latest/developerguide/task-scale-in-protection-endpoint.html`.

use std::time::Duration;

use hyper::Request;
use nsbridge_base::random::random;
use nsbridge_base::{Backoff, Pauses};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{Error, Outage, ask};

/// Timing of protection requests.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Duration of a protection: longer than any request, and not much longer, so that a hanging
    /// worker is not protected for ever.
    expires: Duration,
    /// Interval of renewals while requests run.
    renew: Duration,
    /// Idle time before a release, so that short gaps between requests cause no calls to ECS.
    linger: Duration,
    /// First pause after a failure. Each further pause is twice as long, up to a minute, and each is
    /// shortened at random by up to half.
    pause: Duration,
}

/// Default timing; `linger` comes from the configuration.
const TIMING: Timing = Timing {
    expires: Duration::from_secs(30 * 60),
    renew: Duration::from_secs(10 * 60),
    linger: Duration::ZERO,
    pause: Duration::from_secs(1),
};

const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Client of the task's ECS agent.
#[derive(Clone, Debug)]
pub(super) struct EcsProtection {
    url: String,
    timing: Timing,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    protection: Option<Granted>,
    failure: Option<Failure>,
    error: Option<Fault>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Granted {
    protection_enabled: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    reason: String,
    #[serde(default)]
    detail: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Fault {
    code: String,
    #[serde(default)]
    message: String,
}

impl EcsProtection {
    pub(super) fn new(agent: &str, release_after: Duration) -> Self {
        let agent = agent.trim_end_matches('/');
        let timing = Timing { linger: release_after, ..TIMING };
        Self { url: format!("{agent}/task-protection/v1/state"), timing }
    }

    /// Protects the task while `load` is above zero. Ends when the sender of `load` is dropped.
    pub(super) async fn run(self, mut load: watch::Receiver<usize>) {
        let (mut plan, mut outage) = (Plan::new(self.timing), Outage::default());
        loop {
            let busy = *load.borrow_and_update() > 0;
            let next = plan.next(busy, Instant::now());
            let due = async {
                match next {
                    Some((at, enabled)) => {
                        sleep_until(at).await;
                        enabled
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = load.changed() => if changed.is_err() { return },
                enabled = due => {
                    let what = "scale-in protection could not be changed, trying again";
                    let done = outage.note(self.put(enabled).await, what).is_some();
                    plan.note(enabled, done, Instant::now());
                }
            }
        }
    }

    async fn put(&self, enabled: bool) -> Result<(), Error> {
        let minutes = self.timing.expires.as_secs().div_ceil(60);
        let body = if enabled {
            json!({"ProtectionEnabled": true, "ExpiresInMinutes": minutes})
        } else {
            json!({"ProtectionEnabled": false})
        };
        let request = Request::put(&self.url).header("Content-Type", "application/json");
        let answer = ask(request, body.to_string()).await?;
        let url = self.url.clone();
        let reply: Reply = match serde_json::from_slice(answer.body()) {
            Ok(reply) => reply,
            Err(_) if answer.status().is_success() => return Err(Error::Answer { url }),
            Err(_) => return Err(Error::Status { url, status: answer.status() }),
        };
        match reply {
            Reply { error: Some(Fault { code, message }), .. } => {
                Err(Error::Refused(format!("{code}: {message}")))
            }
            Reply { failure: Some(Failure { reason, detail }), .. } => Err(Error::Refused(
                [Some(reason), detail].into_iter().flatten().collect::<Vec<_>>().join(": "),
            )),
            Reply { protection: Some(granted), .. } if granted.protection_enabled == enabled => {
                Ok(())
            }
            Reply { .. } => Err(Error::Answer { url }),
        }
    }
}

/// Schedule of the requests to ECS.
#[derive(Debug)]
struct Plan {
    timing: Timing,
    /// Time at which protection was last granted; `None` if the task has none.
    granted: Option<Instant>,
    idle_since: Option<Instant>,
    /// Earliest time of the next request after a failure.
    not_before: Option<Instant>,
    pauses: Pauses,
}

impl Plan {
    fn new(timing: Timing) -> Self {
        let (granted, idle_since, not_before) = (None, None, None);
        let pauses = Backoff::new(timing.pause, LONGEST_PAUSE).pauses();
        Self { timing, granted, idle_since, not_before, pauses }
    }

    /// Returns the next request, to enable or to release protection, and its time.
    fn next(&mut self, busy: bool, now: Instant) -> Option<(Instant, bool)> {
        let (at, enabled) = if busy {
            self.idle_since = None;
            (self.granted.map_or(now, |granted| granted + self.timing.renew), true)
        } else {
            let since = *self.idle_since.get_or_insert(now);
            self.granted?;
            (since + self.timing.linger, false)
        };
        Some((self.not_before.map_or(at, |not_before| at.max(not_before)), enabled))
    }

    /// Records the result of a request.
    fn note(&mut self, enabled: bool, done: bool, now: Instant) {
        if done {
            self.granted = enabled.then_some(now);
            self.not_before = None;
            self.pauses.reset();
        } else {
            self.not_before = Some(now + self.pauses.next(random()));
        }
    }
}

#[cfg(test)]
mod tests;
