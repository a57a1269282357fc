//! Simulated worker: places, prefills one after another, and replies that share its speed.

use super::cluster::WorkerSpec;
use super::waiting::Next;

/// Tokens by which two ends of replies may differ and count as one time.
const TOKEN_ERROR: f64 = 1e-6;

/// State of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Booting,
    Running,
    /// Worker that takes no new request, and ends when it is idle.
    Draining,
}

/// Simulated worker.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) is_spot: bool,
    pub(super) state: State,
    pub(super) asked_s: f64,
    pub(super) ready_s: f64,
    /// Time of the notice of its interruption.
    pub(super) notice_s: f64,
    /// Time at which it ends even if it is not idle.
    pub(super) stop_s: f64,
    prefills: Vec<Prefill>,
    replies: Vec<Reply>,
    /// Time at which the last prefill ends.
    prefill_free_s: f64,
    /// Time up to which the replies are computed.
    computed_s: f64,
    /// Tokens that a reply would have if it had run from the beginning of the worker.
    stream_tokens: f64,
    /// Time at which the first reply ends if nothing changes.
    reply_ends_s: f64,
}

#[derive(Clone, Debug)]
struct Prefill {
    request: usize,
    tokens_left: u32,
    ends_s: f64,
}

#[derive(Clone, Debug)]
struct Reply {
    request: usize,
    /// Number of `stream_tokens` at which it ends.
    ends_at: f64,
    tokens_left: u32,
}

/// Progress of a worker's requests at one time.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Requests whose prefill has ended.
    pub(super) begun: Vec<usize>,
    /// Requests that have ended, with the tokens that this worker computed.
    pub(super) ended: Vec<(usize, u32)>,
}

/// Request that a worker gives back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    pub(super) request: usize,
    pub(super) tokens_left: u32,
    /// Tokens that this worker computed.
    pub(super) tokens: u32,
}

impl Worker {
    pub(super) fn new(now_s: f64, boot_s: f64, spot_life_s: Option<f64>) -> Self {
        Self {
            is_spot: spot_life_s.is_some(),
            state: State::Booting,
            asked_s: now_s,
            ready_s: now_s + boot_s,
            notice_s: now_s + spot_life_s.unwrap_or(f64::INFINITY),
            stop_s: f64::INFINITY,
            prefills: Vec::new(),
            replies: Vec::new(),
            prefill_free_s: now_s,
            computed_s: now_s,
            stream_tokens: 0.0,
            reply_ends_s: f64::INFINITY,
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.prefills.len() + self.replies.len()
    }

    /// Time of its next event.
    pub(super) fn next_event_s(&self) -> f64 {
        let state_s = match self.state {
            State::Booting => self.ready_s.min(self.notice_s),
            State::Running => self.notice_s,
            State::Draining => self.stop_s,
        };
        let prefill_s = self.prefills.first().map_or(f64::INFINITY, |prefill| prefill.ends_s);
        state_s.min(prefill_s).min(self.reply_ends_s)
    }

    pub(super) fn take(&mut self, now_s: f64, next: Next, spec: &WorkerSpec) {
        let start_s = self.prefill_free_s.max(now_s);
        let ends_s = start_s + next.prefill_tokens / spec.prefill_tokens_per_s;
        self.prefill_free_s = ends_s;
        self.prefills.push(Prefill {
            request: next.request,
            tokens_left: next.tokens_left,
            ends_s,
        });
    }

    /// Computes up to this time, which is at most that of the next event.
    pub(super) fn compute(&mut self, now_s: f64, spec: &WorkerSpec) -> Progress {
        let mut progress = Progress::default();
        self.advance(now_s, spec);
        if self.reply_ends_s <= now_s {
            // The reply for which this event was computed ends, whatever rounding makes of its tokens.
            let first =
                self.replies.iter().map(|reply| reply.ends_at).fold(f64::INFINITY, f64::min);
            self.replies.retain(|reply| {
                let stays = reply.ends_at > first + TOKEN_ERROR;
                if !stays {
                    progress.ended.push((reply.request, reply.tokens_left));
                }
                stays
            });
        }
        while self.prefills.first().is_some_and(|prefill| prefill.ends_s <= now_s) {
            let Prefill { request, tokens_left, .. } = self.prefills.remove(0);
            progress.begun.push(request);
            if tokens_left == 0 {
                progress.ended.push((request, 0));
            } else {
                let ends_at = self.stream_tokens + f64::from(tokens_left);
                self.replies.push(Reply { request, ends_at, tokens_left });
            }
        }
        self.plan(spec);
        progress
    }

    /// Takes all requests from the worker, in the order in which it took them.
    pub(super) fn give_back(&mut self, now_s: f64, spec: &WorkerSpec) -> Vec<Returned> {
        self.advance(now_s, spec);
        let stream_tokens = self.stream_tokens;
        let replies = self.replies.drain(..).map(|reply| {
            // A token that is not complete is computed again.
            let left = (reply.ends_at - stream_tokens - TOKEN_ERROR).ceil().max(0.0) as u32;
            let tokens_left = left.min(reply.tokens_left);
            let tokens = reply.tokens_left - tokens_left;
            Returned { request: reply.request, tokens_left, tokens }
        });
        let prefills = self.prefills.drain(..).map(|prefill| Returned {
            request: prefill.request,
            tokens_left: prefill.tokens_left,
            tokens: 0,
        });
        let returned = replies.chain(prefills).collect();
        self.plan(spec);
        returned
    }

    fn advance(&mut self, now_s: f64, spec: &WorkerSpec) {
        let passed_s = (now_s - self.computed_s).max(0.0);
        if !self.replies.is_empty() {
            self.stream_tokens += passed_s * spec.stream_speed(self.replies.len());
        }
        self.computed_s = self.computed_s.max(now_s);
    }

    /// Computes the time at which the first reply ends.
    fn plan(&mut self, spec: &WorkerSpec) {
        let first = self.replies.iter().map(|reply| reply.ends_at).fold(f64::INFINITY, f64::min);
        let left = (first - self.stream_tokens).max(0.0);
        self.reply_ends_s = self.computed_s + left / spec.stream_speed(self.replies.len());
    }
}
