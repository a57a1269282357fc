//! Interruption notice of an EC2 spot instance.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>,
//! read from version 2 of the metadata service, which requires a token.

use std::time::{Duration, SystemTime};

use hyper::{Request, StatusCode};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{Error, Outage, POLL, ask, get};
use crate::clock::from_rfc3339;

/// Lifetime of a token, the longest that there is. A token is renewed at half of it.
const TOKEN_TTL: Duration = Duration::from_secs(6 * 3600);

/// Reserve at the end for handing over and for the exit of the process.
const RESERVE: Duration = Duration::from_secs(10);

/// Maximum time that a worker goes on after a notice, which comes two minutes ahead. It holds
/// whatever the notice says: a clock that is behind must not make the worker stay until the machine
/// is gone.
const MAX_TIME_AFTER_NOTICE: Duration = Duration::from_secs(110);

/// Time that a worker goes on after a notice whose time cannot be read: two minutes, less up to one
/// poll that has passed, less the reserve.
const UNKNOWN: Duration = Duration::from_secs(105);

const TOKEN: &str = "/latest/api/token";
const ACTION: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";

/// Client of the instance's metadata service.
#[derive(Debug)]
pub(super) struct Ec2Spot {
    base: String,
    poll: Duration,
    token: Option<(String, Instant)>,
    /// True once the recommendation to rebalance was logged.
    told: bool,
}

#[derive(Debug, Deserialize)]
struct Action {
    action: String,
    time: String,
}

impl Ec2Spot {
    pub(super) fn new(base: &str) -> Self {
        let base = base.trim_end_matches('/').to_owned();
        Self { base, poll: POLL, token: None, told: false }
    }

    /// Waits for the notice, and returns the time by which everything must be handed over.
    pub(super) async fn notice(&mut self) -> Instant {
        let mut outage = Outage::default();
        loop {
            let what = "the instance's metadata cannot be read, so no spot notice will be seen";
            if let Some(Some(action)) = outage.note(self.action().await, what) {
                let left = time_left(&action, SystemTime::now());
                let (action, seconds) = (action.action, left.as_secs());
                tracing::warn!(action, seconds, "EC2 reclaims this spot instance: draining");
                return Instant::now() + left;
            }
            if !self.told && matches!(self.read(REBALANCE).await, Ok(Some(_))) {
                self.told = true;
                tracing::info!(
                    "EC2 recommends a rebalance: it may reclaim this spot instance soon"
                );
            }
            sleep(self.poll).await;
        }
    }

    async fn action(&mut self) -> Result<Option<Action>, Error> {
        let Some(text) = self.read(ACTION).await? else { return Ok(None) };
        let url = format!("{}{ACTION}", self.base);
        serde_json::from_slice(&text).map(Some).map_err(|_| Error::Answer { url })
    }

    /// Reads a page; `None` if there is none now.
    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let url = format!("{}{path}", self.base);
        for last in [false, true] {
            let token = self.token().await?;
            let request = get(&url).header("X-aws-ec2-metadata-token", token);
            let answer = ask(request, String::new()).await?;
            match answer.status() {
                StatusCode::OK => return Ok(Some(answer.body().to_vec())),
                StatusCode::NOT_FOUND => return Ok(None),
                // The token has expired: one more try with a new one.
                StatusCode::UNAUTHORIZED if !last => self.token = None,
                status => return Err(Error::Status { url, status }),
            }
        }
        unreachable!("the second round returns")
    }

    async fn token(&mut self) -> Result<String, Error> {
        if let Some((token, since)) = &self.token
            && since.elapsed() < TOKEN_TTL / 2
        {
            return Ok(token.clone());
        }
        let url = format!("{}{TOKEN}", self.base);
        let seconds = TOKEN_TTL.as_secs();
        let request = Request::put(&url).header("X-aws-ec2-metadata-token-ttl-seconds", seconds);
        let answer = ask(request, String::new()).await?;
        if answer.status() != StatusCode::OK {
            return Err(Error::Status { url, status: answer.status() });
        }
        let token = String::from_utf8(answer.body().to_vec()).ok();
        let token = token.filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        let token = token.ok_or(Error::Answer { url })?;
        self.token = Some((token.clone(), Instant::now()));
        Ok(token)
    }
}

/// Returns the time for which the worker may go on after a notice.
fn time_left(notice: &Action, now: SystemTime) -> Duration {
    if notice.action == "hibernate" {
        // The only action that does not leave two minutes.
        return Duration::ZERO;
    }
    let Some(at) = from_rfc3339(&notice.time) else { return UNKNOWN };
    at.duration_since(now).unwrap_or_default().saturating_sub(RESERVE).min(MAX_TIME_AFTER_NOTICE)
}

#[cfg(test)]
mod tests;
