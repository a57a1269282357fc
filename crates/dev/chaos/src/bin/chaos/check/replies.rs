//! Checks of the replies that callers received.

use std::collections::BTreeMap;

use crate::clock::seconds;
use crate::document;
use crate::journal::{Line, What};
use crate::order::{Piece, lone_run, of_attempt};
use crate::plan::{Ask, Expect, Plan};

use super::Report;

/// Upper bound of attempt numbers; a request becomes a dead letter earlier.
const ATTEMPTS: u32 = 20;

/// Replies of a round, by request id.
#[derive(Debug, Default)]
pub(super) struct Replies(BTreeMap<String, Reply>);

/// Reply as one caller received it.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) n: usize,
    /// Pieces after all restarts.
    pieces: Vec<Piece>,
    /// Number of all pieces that were ever received.
    given: usize,
    restarts: usize,
    pub(super) asked: Option<u64>,
    /// Times at which pieces arrived.
    pub(super) came: Vec<u64>,
    /// Time of the latest piece or the end.
    last: Option<u64>,
    pub(super) worst: f64,
    pub(super) end: Option<(u64, End)>,
}

/// End of a reply as the caller received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Failed(String),
    Cancelled,
}

impl Replies {
    pub(super) fn of(lines: &[Line]) -> Self {
        let mut replies = Self::default();
        for line in lines {
            replies.take(line);
        }
        replies
    }

    fn take(&mut self, line: &Line) {
        let at = line.at;
        match &line.what {
            What::Asked { n, request } => {
                let reply = self.of_request(*n, request);
                (reply.n, reply.asked) = (*n, Some(at));
            }
            What::Piece { n, request, text, choice, finish_reason, .. } => {
                let reply = self.of_request(*n, request);
                reply.progress(at);
                reply.came.push(at);
                let (text, choice, finish_reason) = (text.clone(), *choice, *finish_reason);
                reply.pieces.push(Piece { text, choice, finish_reason });
                reply.given += 1;
            }
            What::Restarted { n, request, kept } => {
                let reply = self.of_request(*n, request);
                reply.pieces.truncate(*kept);
                reply.restarts += 1;
            }
            What::Done { n, request } => {
                let reply = self.of_request(*n, request);
                reply.progress(at);
                reply.end = Some((at, End::Done));
            }
            What::Failed { n, request, code, .. } => {
                self.of_request(*n, request).end = Some((at, End::Failed(code.clone())));
            }
            What::Cancelled { n, request } => {
                self.of_request(*n, request).end = Some((at, End::Cancelled));
            }
            _ => {}
        }
    }

    /// Returns the reply to a request. A request that could not be submitted has no id, only its
    /// index.
    fn of_request(&mut self, n: usize, request: &str) -> &mut Reply {
        let key = if request.is_empty() { format!("unsent {n}") } else { request.to_owned() };
        self.0.entry(key).or_insert_with(|| Reply { n, ..Reply::default() })
    }

    pub(super) fn get(&self, request: &str) -> Option<&Reply> {
        self.0.get(request)
    }

    pub(super) fn pieces(&self) -> usize {
        self.0.values().map(|reply| reply.given).sum()
    }

    /// Returns the replies to request `n`: several if its client was started again.
    pub(super) fn to(&self, n: usize) -> impl Iterator<Item = &Reply> {
        self.0.values().filter(move |reply| reply.n == n)
    }

    pub(super) fn check(&self, plan: &Plan, report: &mut Report) {
        for (request, reply) in &self.0 {
            let Some(ask) = plan.asks.get(reply.n) else {
                report.broken.push(format!("{request} is not in the plan"));
                continue;
            };
            if let Some(problem) = reply.repeats(ask) {
                report.repeated.push(format!("request {} ({request}): {problem}", reply.n));
            }
            if ask.expect == Expect::Text {
                report.worst = report.worst.max(reply.worst);
                if let Some(problem) = reply.is_no_document(ask) {
                    report.broken.push(format!("request {} ({request}): {problem}", reply.n));
                }
            }
        }
        for (n, ask) in plan.asks.iter().enumerate() {
            if let Some(problem) = self.loses(n, ask) {
                report.lost.push(format!("request {n}: {problem}"));
            }
        }
    }

    fn loses(&self, n: usize, ask: &Ask) -> Option<String> {
        let ends: Vec<&End> = self.to(n).filter_map(|reply| Some(&reply.end.as_ref()?.1)).collect();
        let as_expected = match &ask.expect {
            Expect::Text => {
                let whole = ask.lone_run();
                self.to(n).any(|reply| reply.is_done() && reply.pieces == whole)
            }
            Expect::OneOfSeveral => self.to(n).any(Reply::is_done),
            Expect::Failure(code) => ends.contains(&&End::Failed(code.clone())),
            Expect::Cancelled(_) => ends.contains(&&End::Cancelled),
            // The client's own clock or the worker's word ends it.
            Expect::Deadline(_) => ["late", "deadline"]
                .iter()
                .any(|code| ends.contains(&&End::Failed((*code).to_owned()))),
            Expect::Abandoned(_) => self.to(n).next().is_some() && ends.is_empty(),
        };
        (!as_expected).then(|| {
            let pieces: Vec<usize> = self.to(n).map(|reply| reply.pieces.len()).collect();
            format!("expected {:?}, its ends were {ends:?} after {pieces:?} pieces", ask.expect)
        })
    }
}

impl Reply {
    fn progress(&mut self, at: u64) {
        self.worst = self.last.map_or(0.0, |last| seconds(last, at)).max(self.worst);
        self.last = Some(at);
    }

    fn is_done(&self) -> bool {
        matches!(self.end, Some((_, End::Done)))
    }

    /// Describes the first difference between the text and that of an undisturbed run.
    fn repeats(&self, ask: &Ask) -> Option<String> {
        if ask.expect == Expect::OneOfSeveral {
            let of = |attempt| lone_run(of_attempt(ask.seed, attempt), ask.order.pieces);
            let pure = (1..=ATTEMPTS).any(|attempt| of(attempt).starts_with(&self.pieces));
            return (!pure).then(|| "the texts of two attempts are mixed".to_owned());
        }
        if self.restarts > 0 {
            return Some(format!("its caller was told {} times of a restart", self.restarts));
        }
        let whole = ask.lone_run();
        let differs = (0..self.pieces.len()).find(|i| whole.get(*i) != self.pieces.get(*i));
        if let Some(at) = differs {
            return Some(format!("piece {at} is not the lone run's: {:?}", self.pieces[at]));
        }
        let (given, pieces) = (self.pieces.len(), whole.len());
        let short = self.is_done() && given < pieces;
        short.then(|| format!("it ended after {given} of {pieces} pieces"))
    }

    /// Describes why a reply that has ended is not in the format of its request.
    fn is_no_document(&self, ask: &Ask) -> Option<String> {
        let input = ask.order.input.as_ref().filter(|_| self.is_done())?;
        document::check(input, &self.pieces).err().map(|error| format!("{error:#}"))
    }
}
