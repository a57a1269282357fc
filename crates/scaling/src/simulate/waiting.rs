//! Requests of a simulation: those that wait, and the times at which they begin and end.

use std::collections::VecDeque;

use super::outcome::Waits;
use crate::trace::Request;

/// Request at the head of the queue, as a worker takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub(super) request: usize,
    /// Tokens of the prompt, and of the reply as far as it exists.
    pub(super) prefill_tokens: f64,
    pub(super) tokens_left: u32,
}

/// Requests of a trace, by their index.
#[derive(Debug)]
pub(super) struct Requests<'a> {
    trace: &'a [Request],
    queue: VecDeque<usize>,
    tokens_left: Vec<u32>,
    /// Times of the first tokens.
    first_token_s: Vec<Option<f64>>,
    arrived: usize,
    ended: usize,
    last_end_s: f64,
}

impl<'a> Requests<'a> {
    pub(super) fn new(trace: &'a [Request]) -> Self {
        Self {
            trace,
            queue: VecDeque::new(),
            tokens_left: trace.iter().map(|request| request.output_tokens).collect(),
            first_token_s: vec![None; trace.len()],
            arrived: 0,
            ended: 0,
            last_end_s: 0.0,
        }
    }

    pub(super) fn arrive(&mut self, request: usize) {
        self.queue.push_back(request);
        self.arrived += 1;
    }

    /// Returns the request at the head of the queue, which stays there until [`Self::take`].
    pub(super) fn next(&self) -> Option<Next> {
        let request = *self.queue.front()?;
        let Request { input_tokens, output_tokens, .. } = self.trace[request];
        let tokens_left = self.tokens_left[request];
        let prefill_tokens = f64::from(input_tokens) + f64::from(output_tokens - tokens_left);
        Some(Next { request, prefill_tokens, tokens_left })
    }

    pub(super) fn take(&mut self) {
        self.queue.pop_front();
    }

    /// Puts a request back, before all that arrived later.
    pub(super) fn give_back(&mut self, request: usize, tokens_left: u32) {
        self.tokens_left[request] = tokens_left;
        let place = self.queue.partition_point(|other| *other < request);
        self.queue.insert(place, request);
    }

    pub(super) fn begin(&mut self, request: usize, now_s: f64) {
        self.first_token_s[request].get_or_insert(now_s);
    }

    pub(super) fn end(&mut self, request: usize, now_s: f64) {
        self.tokens_left[request] = 0;
        self.ended += 1;
        self.last_end_s = self.last_end_s.max(now_s);
    }

    pub(super) fn output_tokens(&self, request: usize) -> u32 {
        self.trace[request].output_tokens
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if all requests that have arrived have ended.
    pub(super) fn is_done(&self) -> bool {
        self.ended == self.arrived
    }

    pub(super) fn last_end_s(&self) -> f64 {
        self.last_end_s
    }

    pub(super) fn unfinished(&self) -> usize {
        self.trace.len() - self.ended
    }

    /// Returns the waits of all requests. Those that have no token yet have waited until `end_s`.
    pub(super) fn waits(&self, end_s: f64) -> Waits {
        let of = |(request, first_s): (&Request, &Option<f64>)| {
            (first_s.unwrap_or(end_s) - request.at_s).max(0.0)
        };
        Waits::of(self.trace.iter().zip(&self.first_token_s).map(of).collect())
    }
}
