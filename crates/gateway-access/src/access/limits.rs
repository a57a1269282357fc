//! Limits of an API key: requests and tokens per minute, and concurrent requests.
//!
//! A request reserves the most tokens that it may use before it is submitted, and settles what it
//! has used at its end. All times are tokio's, so that tests can pause them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::bucket::{Bucket, MAX_CAPACITY};

const SHORTEST_RETRY_S: u64 = 1;
const LONGEST_RETRY_S: u64 = 120;

/// Limits of the use of an API key. An absent limit does not restrict.
///
/// A minute's quantity may be used at once, and refills evenly over the minute. A literal ends in
/// `..Limits::default()`: minor versions add fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Tokens of prompts and replies per minute; the maximum of a single request, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Requests that are processed at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u64>,
}

impl Limits {
    /// Returns an error that names a field if its value is out of range.
    pub(super) fn check(&self) -> Result<(), String> {
        for (field, limit) in [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("concurrent", self.concurrent),
        ] {
            if limit.is_some_and(|limit| limit == 0 || limit > MAX_CAPACITY) {
                return Err(format!(
                    "`limits.{field}` must be 1 to {MAX_CAPACITY}, or absent for no limit"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Limit that a request has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Concurrent requests.
    Concurrent,
}

/// Refusal of a request by the limits of its API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Limit that lets the request through later.
    #[error("the limit of {what} is reached: retry after {} s", retry_after.as_secs())]
    Limited {
        /// Limit that takes longest to let the request through.
        what: Limit,
        /// Time to wait, in whole seconds from 1 to 120. A long debt may need several retries.
        retry_after: Duration,
    },
    /// Request that exceeds the limit alone, so that waiting does not help.
    #[error(
        "the request needs {tokens} tokens, the key may use {most} a minute: lower `max_tokens`"
    )]
    TooLarge {
        /// Tokens that the request reserves.
        tokens: u64,
        /// Tokens that the key may use per minute.
        most: u64,
    },
}

/// Account of an API key against its limits.
///
/// Cheap to call: a mutex is held for a few additions, never across an await.
pub struct Limiter {
    state: Mutex<State>,
}

struct State {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    concurrent: Option<u64>,
    running: u64,
}

impl Limiter {
    /// Creates the account of a key that was not used yet.
    pub fn new(limits: Limits) -> Self {
        let (requests, tokens) = (None, None);
        let limiter =
            Self { state: Mutex::new(State { requests, tokens, concurrent: None, running: 0 }) };
        limiter.set(limits);
        limiter
    }

    /// Changes the limits. What was used of the old ones stays used in proportion, and running
    /// requests go on.
    pub fn set(&self, limits: Limits) {
        let now = Instant::now();
        let mut state = self.state.lock();
        resize(&mut state.requests, limits.requests_per_minute, now);
        resize(&mut state.tokens, limits.tokens_per_minute, now);
        state.concurrent = limits.concurrent;
    }

    /// Admits a request that uses at most this number of tokens, prompt and reply.
    ///
    /// A refused request counts as none.
    ///
    /// # Errors
    ///
    /// Returns a [`Refusal`]: [`Refusal::TooLarge`] if no waiting helps, else
    /// [`Refusal::Limited`] with the time to wait.
    pub fn reserve(self: &Arc<Self>, tokens: u64) -> Result<Reservation, Refusal> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.refill(Instant::now());
        if let Some(most) = state.tokens.map(|bucket| bucket.capacity())
            && tokens > most
        {
            return Err(Refusal::TooLarge { tokens, most });
        }
        state.admit(tokens)?;
        if let Some(requests) = &mut state.requests {
            requests.take(1);
        }
        let reserved = state.tokens.as_mut().map_or(0, |bucket| {
            bucket.take(tokens);
            tokens
        });
        state.running = state.running.saturating_add(1);
        drop(guard);
        Ok(Reservation { limiter: self.clone(), reserved, settled: None })
    }

    /// Counts a request that goes on after its end as running, whatever the limits are.
    pub fn resume(self: &Arc<Self>) -> Reservation {
        let mut state = self.state.lock();
        state.running = state.running.saturating_add(1);
        Reservation { limiter: self.clone(), reserved: 0, settled: None }
    }

    /// Returns names and values of the response headers that tell the state of the limits, in the
    /// form of OpenAI. A limit that the key does not have has no headers.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut state = self.state.lock();
        state.refill(Instant::now());
        let (requests, tokens) = (state.requests, state.tokens);
        drop(state);
        let mut headers = Vec::new();
        if let Some(bucket) = requests {
            headers.push(("x-ratelimit-limit-requests", bucket.capacity().to_string()));
            headers.push(("x-ratelimit-remaining-requests", bucket.remaining().to_string()));
            headers.push(("x-ratelimit-reset-requests", print(bucket.until_full())));
        }
        if let Some(bucket) = tokens {
            headers.push(("x-ratelimit-limit-tokens", bucket.capacity().to_string()));
            headers.push(("x-ratelimit-remaining-tokens", bucket.remaining().to_string()));
            headers.push(("x-ratelimit-reset-tokens", print(bucket.until_full())));
        }
        headers
    }

    /// Returns the number of requests that are processed now.
    pub fn running(&self) -> u64 {
        self.state.lock().running
    }
}

impl State {
    fn refill(&mut self, now: Instant) {
        for bucket in [&mut self.requests, &mut self.tokens].into_iter().flatten() {
            bucket.refill(now);
        }
    }

    /// Compares a request with all limits; of several that refuse it, the longest wait is told.
    fn admit(&self, tokens: u64) -> Result<(), Refusal> {
        let full = self.concurrent.is_some_and(|most| self.running >= most);
        // The end of a running request cannot be foreseen.
        let concurrent = if full { Duration::from_secs(SHORTEST_RETRY_S) } else { Duration::ZERO };
        let requests = self.requests.map_or(Duration::ZERO, |bucket| bucket.wait_for(1));
        let tokens = self.tokens.map_or(Duration::ZERO, |bucket| bucket.wait_for(tokens));
        let waits =
            [(Limit::Concurrent, concurrent), (Limit::Requests, requests), (Limit::Tokens, tokens)];
        match waits.into_iter().max_by_key(|(_, wait)| *wait) {
            Some((what, wait)) if !wait.is_zero() => {
                let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
                let seconds = seconds.clamp(SHORTEST_RETRY_S, LONGEST_RETRY_S);
                Err(Refusal::Limited { what, retry_after: Duration::from_secs(seconds) })
            }
            _ => Ok(()),
        }
    }
}

fn resize(bucket: &mut Option<Bucket>, capacity: Option<u64>, now: Instant) {
    *bucket = match (bucket.take(), capacity) {
        (Some(mut bucket), Some(capacity)) => {
            bucket.resize(capacity);
            Some(bucket)
        }
        (None, Some(capacity)) => Some(Bucket::new(capacity, now)),
        (_, None) => None,
    };
}

/// Admitted request: it counts as running, and holds the tokens that it may use.
///
/// A reservation that is dropped without [`Reservation::settle`] gives all its tokens back; the
/// request itself stays counted.
#[must_use = "a dropped reservation gives its tokens back"]
pub struct Reservation {
    limiter: Arc<Limiter>,
    reserved: u64,
    settled: Option<u64>,
}

impl Reservation {
    /// Ends the request and counts the tokens that it has used, instead of those that it reserved.
    pub fn settle(mut self, tokens: u64) {
        self.settled = Some(tokens);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        state.running = state.running.saturating_sub(1);
        let used = self.settled.unwrap_or(0);
        if let Some(bucket) = &mut state.tokens {
            // What a full bucket could not hold before must not pay a debt that begins now.
            bucket.refill(Instant::now());
            if used <= self.reserved {
                bucket.give(self.reserved.saturating_sub(used));
            } else {
                bucket.take(used.saturating_sub(self.reserved));
            }
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("running", &self.running()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("reserved", &self.reserved).finish_non_exhaustive()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests per minute",
            Self::Tokens => "tokens per minute",
            Self::Concurrent => "concurrent requests",
        })
    }
}

/// Returns a time as OpenAI prints it: `0s`, `20ms`, `1.5s`, `6m0s`, `1h0m0s`; rounded up to a
/// millisecond.
fn print(time: Duration) -> String {
    let milliseconds = time.as_nanos().div_ceil(1_000_000);
    let (seconds, rest) = (milliseconds / 1_000, milliseconds % 1_000);
    if seconds == 0 && rest > 0 {
        return format!("{rest}ms");
    }
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let mut text = match (hours, minutes) {
        (0, 0) => String::new(),
        (0, _) => format!("{minutes}m"),
        (_, _) => format!("{hours}h{minutes}m"),
    };
    text.push_str(&(seconds % 60).to_string());
    if rest > 0 {
        text.push_str(format!(".{rest:03}").trim_end_matches('0'));
    }
    text.push('s');
    text
}

#[cfg(test)]
mod tests;
