//! Scheduler: chooses the requests of the next step and their numbers of tokens.
//!
//! All decisions depend on numbers alone. Running replies come first, with one token each. The rest
//! of the step goes to prompts, in chunks (chunked prefill as in Sarathi, Agrawal et al.,
//! arXiv:2308.16369). The next prompt is that of the tenant with the least service so far
//! (start-time fair queueing, Goyal et al. 1996). So a flood of one tenant delays another's prompt
//! by one step per waiting tenant, however many requests it has. A prompt token that needs
//! log-probabilities takes the room of two in a step and counts as two.
//!
//! A step takes longer with more running replies and with costlier sampling of their tokens. A
//! tenant may run as many reply tokens in each step as there are places. Tokens beyond that are a
//! debt, for which the tenant sits out the following steps while another tenant with a smaller debt
//! has work. So many heavy replies slow down only their own tenant.
//!
//! The time of a step beside running replies is bounded, since it is the time between two tokens of
//! theirs: [`Limits::prompts`] tokens of prompts run in it at most.
//!
//! A prompt that begins like another one of its tenant that is being computed waits until the common
//! blocks are computed, and begins with them.
//!
//! If places or memory are short, one order decides: the first request of each tenant, then the
//! second of each, and so on. The requests of a tenant are sorted by `priority`, then by arrival;
//! this index is the request's row. Requests begin in that order, each when there is a place for it
//! and memory for its whole prompt. A request may begin by preempting requests of later rows, the
//! last one first. A reply that grows preempts any later request. A preempted request is recomputed
//! later, and a request whose client does not read comes after all others. Some request always
//! completes: a request only yields to earlier ones, none overtakes one that waits to begin, and
//! the first one fits into memory alone.
//!
//! A request with several replies may fit alone only with fewer of them; the others wait until one
//! has ended. Likewise, if a request of another tenant with fewer replies finds no memory, a
//! request with many replies gives up that of its last ones.

use std::collections::HashMap;
use std::sync::Arc;

use crate::limits::SCORE_COST;

/// Tenant with requests in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenant(usize);

/// Request as the scheduler sees it. Candidates are listed in order of arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) tenant: Tenant,
    /// Priority among the tenant's requests; lower values run earlier.
    pub(crate) priority: i32,
    /// Tokens to run; none while the request waits for its client.
    pub(crate) work: Work,
    /// Cost of a token of each of its replies, in tokens of a plain reply.
    pub(crate) weight: usize,
    /// True if the request has a place and memory.
    pub(crate) begun: bool,
}

/// Tokens to run of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) tokens: usize,
    /// Number of final tokens, one for each running reply of the request. They must run in the same
    /// step.
    pub(crate) together: usize,
    /// Maximum number of tokens in a step, if the tokens need log-probabilities. Each of them then
    /// takes the room of [`SCORE_COST`] tokens.
    pub(crate) scored: Option<usize>,
}

impl Work {
    /// Returns true if only the next token of each reply is left to run.
    pub(crate) fn goes_on(self) -> bool {
        self.tokens > 0 && self.tokens == self.together
    }

    /// Returns how many of the tokens may run in the token budget `room` of a step.
    fn within(self, room: usize) -> usize {
        let most = self.scored.map(|most| (room / SCORE_COST).min(most).max(1));
        let room = most.map_or(room, |most| most.min(room));
        if self.tokens <= room { self.tokens } else { room.min(self.tokens - self.together) }
    }

    /// Returns the part of the token budget that `tokens` of the tokens take, at most `room`.
    fn cost(self, tokens: usize, room: usize) -> usize {
        self.scored.map_or(tokens, |_| (tokens * SCORE_COST).min(room))
    }
}

/// KV-cache memory of the candidates, addressed by their index in the list.
pub(crate) trait Memory {
    /// Gives a candidate without memory the cached blocks of its tokens. Returns the work that is
    /// left.
    fn begin(&mut self, index: usize) -> Work;

    /// Reserves memory for `tokens` more tokens of a candidate. Returns false if there is too
    /// little.
    fn reserve(&mut self, index: usize, tokens: usize) -> bool;

    /// Returns true if a candidate without memory would find more cached blocks once `other`, which
    /// has memory, has run more of its prompt.
    fn awaits_prefix(&self, index: usize, other: usize) -> bool;

    /// Frees all memory of a candidate, which starts again later.
    fn preempt(&mut self, index: usize);

    /// Frees the memory of one reply of a candidate, which then waits until another has ended.
    /// Returns the work that is left, or `None` if only one reply is running.
    fn shrink(&mut self, index: usize) -> Option<Work>;
}

/// Limits of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of tokens of all requests.
    pub(crate) tokens: usize,
    /// Maximum number of tokens of prompts in a step with running replies.
    pub(crate) prompts: usize,
    /// Maximum number of requests with a place.
    pub(crate) places: usize,
}

/// Scheduler state: the service and the debt of each tenant.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    names: HashMap<Arc<str>, Tenant>,
    accounts: Vec<Account>,
    /// Virtual time: the service of the tenant that was chosen last, before that choice.
    clock: u64,
    preemptions: u64,
}

#[derive(Debug, Default)]
struct Account {
    /// Service: prompt tokens that were run, with the room that they took in the steps.
    given: u64,
    /// Reply tokens beyond the tenant's share of the steps.
    debt: u64,
    /// Number of requests. An account without any can be reused for another tenant.
    requests: usize,
}

impl Schedule {
    /// Registers a request of this tenant. A tenant without other requests starts at the virtual
    /// time, so idle time earns no credit.
    pub(crate) fn begin(&mut self, name: &Arc<str>) -> Tenant {
        let tenant = self.names.get(name).copied().unwrap_or_else(|| {
            let unused = self.accounts.iter().position(|account| account.requests == 0);
            let place = unused.unwrap_or(self.accounts.len());
            if unused.is_none() {
                self.accounts.push(Account::default());
            }
            self.accounts[place].given = self.clock;
            self.accounts[place].debt = 0;
            self.names.insert(name.clone(), Tenant(place));
            Tenant(place)
        });
        self.accounts[tenant.0].requests += 1;
        tenant
    }

    /// Removes a request of this tenant.
    pub(crate) fn end(&mut self, tenant: Tenant) {
        let account = &mut self.accounts[tenant.0];
        account.requests -= 1;
        if account.requests == 0 {
            self.names.retain(|_, other| *other != tenant);
        }
    }

    /// Returns how often a request lost its memory or place, or one of its replies its memory.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Returns the number of tokens that the next step runs of each candidate.
    pub(crate) fn plan(
        &mut self,
        candidates: &[Candidate],
        limits: Limits,
        memory: &mut impl Memory,
    ) -> Vec<usize> {
        let sits_out = self.sits_out(candidates, limits.places);
        let mut step = Step {
            order: order(candidates),
            tenant: candidates.iter().map(|candidate| candidate.tenant).collect(),
            work: candidates.iter().map(|candidate| candidate.work).collect(),
            counts: vec![0; candidates.len()],
            spent: vec![0; candidates.len()],
            begun: candidates.iter().map(|candidate| candidate.begun).collect(),
            just_begun: vec![false; candidates.len()],
            refused: vec![false; candidates.len()],
            of_prompt: vec![false; candidates.len()],
            room: limits.tokens,
            room_of_prompts: limits.tokens,
            memory,
            preemptions: 0,
        };
        self.fill(&mut step, candidates, limits, &sits_out);
        // The tenants that may run can lack memory that those sitting out hold. In that case, all
        // may run.
        let idle = step.counts.iter().all(|count| *count == 0) && sits_out.contains(&true);
        if idle {
            step.refused.fill(false);
            self.fill(&mut step, candidates, limits, &vec![false; candidates.len()]);
        }
        let (counts, work) = (step.counts, step.work);
        self.preemptions += step.preemptions;
        // A step that no other tenant could use costs nothing.
        if !idle {
            self.charge(candidates, &counts, &work, limits.places);
        }
        counts
    }

    /// Plans running replies and then prompts, within the token budget of the step.
    fn fill<M: Memory>(
        &mut self,
        step: &mut Step<'_, M>,
        candidates: &[Candidate],
        limits: Limits,
        sits_out: &[bool],
    ) {
        for place in 0..candidates.len() {
            let index = step.order.first[place];
            let tokens = step.work[index].tokens;
            let goes_on = step.begun[index] && step.work[index].goes_on() && !sits_out[index];
            if goes_on && tokens <= step.room {
                step.give(index);
            }
        }
        // One that was given up for another one's memory is planned again below.
        let may_run = |index: usize| {
            step.begun[index]
                && step.work[index].goes_on()
                && !sits_out[index]
                && !step.refused[index]
        };
        if (0..candidates.len()).any(may_run) {
            step.room_of_prompts = limits.prompts;
        }
        while step.room > 0 {
            let next = step.next_to_begin(limits.places, sits_out);
            let waits = |index: &usize| {
                (step.begun[*index] || next == Some(*index))
                    && !sits_out[*index]
                    && step.counts[*index] == 0
                    && !step.refused[*index]
                    && step.work[*index].within(step.room_of(*index)) > 0
            };
            let turn = |index: &usize| {
                let Tenant(tenant) = candidates[*index].tenant;
                (self.accounts[tenant].given, step.order.place[*index])
            };
            let Some(index) = (0..candidates.len()).filter(waits).min_by_key(turn) else { break };
            if !step.begun[index] {
                step.begin(index, limits.places);
            }
            if step.give(index) {
                let account = &mut self.accounts[candidates[index].tenant.0];
                self.clock = self.clock.max(account.given);
                account.given += step.spent[index] as u64;
            }
        }
    }

    /// Returns which candidates sit out because another tenant with work has a smaller debt.
    fn sits_out(&mut self, candidates: &[Candidate], places: usize) -> Vec<bool> {
        let works = |candidate: &&Candidate| candidate.work.tokens > 0;
        let mut tenants: Vec<usize> = candidates.iter().filter(works).map(|c| c.tenant.0).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let paid = |debt: u64| debt.saturating_sub(places as u64);
        let least = tenants.iter().map(|tenant| paid(self.accounts[*tenant].debt)).min();
        for tenant in tenants {
            let debt = &mut self.accounts[tenant].debt;
            *debt = paid(*debt) - least.unwrap_or_default();
        }
        let owes = |candidate: &Candidate| self.accounts[candidate.tenant.0].debt > 0;
        candidates.iter().map(owes).collect()
    }

    /// Charges tenants for the replies that run in this step.
    fn charge(&mut self, candidates: &[Candidate], counts: &[usize], work: &[Work], places: usize) {
        let mut tokens: HashMap<usize, u64> = HashMap::new();
        for ((candidate, &count), work) in candidates.iter().zip(counts).zip(work) {
            if count > 0 && count == work.tokens {
                let of_replies = (work.together * candidate.weight) as u64;
                *tokens.entry(candidate.tenant.0).or_default() += of_replies;
            }
        }
        for (tenant, tokens) in tokens {
            // As many tokens as there are places are free in each step.
            let beyond = tokens.saturating_sub(places as u64);
            let account = &mut self.accounts[tenant];
            account.debt += beyond;
        }
    }
}

/// Order of the candidates.
#[derive(Debug)]
struct Order {
    /// Indices of the candidates, the first in order first.
    first: Vec<usize>,
    /// Position of each candidate in `first`.
    place: Vec<usize>,
    /// Row of each candidate: the number of its tenant's requests before it. Candidates without
    /// work have the last row.
    row: Vec<usize>,
}

/// Sorts candidates: the first request of each tenant, then the second of each, and so on. Those
/// without work come last.
fn order(candidates: &[Candidate]) -> Order {
    let mut own: Vec<usize> = (0..candidates.len()).collect();
    let rests = |index: usize| candidates[index].work.tokens == 0;
    own.sort_by_key(|index| (rests(*index), candidates[*index].priority, *index));
    let (mut before, mut row) = (HashMap::new(), vec![usize::MAX; candidates.len()]);
    for &index in own.iter().filter(|index| !rests(**index)) {
        let count: &mut usize = before.entry(candidates[index].tenant).or_default();
        row[index] = *count;
        *count += 1;
    }
    let mut first = own;
    first.sort_unstable_by_key(|index| (row[*index], *index));
    let mut place = vec![0; first.len()];
    for (at, index) in first.iter().enumerate() {
        place[*index] = at;
    }
    Order { first, place, row }
}

/// Step that is being planned.
struct Step<'a, M> {
    order: Order,
    tenant: Vec<Tenant>,
    work: Vec<Work>,
    counts: Vec<usize>,
    /// Part of the token budget that each candidate takes.
    spent: Vec<usize>,
    begun: Vec<bool>,
    /// True for candidates that began in this step.
    just_begun: Vec<bool>,
    /// True for candidates that found no memory in this step.
    refused: Vec<bool>,
    /// True for candidates that take a part of the prompts' budget.
    of_prompt: Vec<bool>,
    room: usize,
    /// Token budget that is left for prompts.
    room_of_prompts: usize,
    memory: &'a mut M,
    preemptions: u64,
}

impl<M: Memory> Step<'_, M> {
    /// Returns the first candidate that has not begun, if it may begin.
    fn next_to_begin(&self, places: usize, sits_out: &[bool]) -> Option<usize> {
        let waits = |index: &&usize| {
            !self.begun[**index]
                && self.work[**index].tokens > 0
                && !sits_out[**index]
                && !self.awaits_prefix(**index, sits_out)
        };
        let next = self.order.first.iter().find(waits).copied();
        next.filter(|next| self.running() < places || self.behind(*next).is_some())
    }

    /// Returns true if a candidate should begin later, with blocks that another one of its tenant is
    /// computing. One that cannot run now is not waited for.
    fn awaits_prefix(&self, index: usize, sits_out: &[bool]) -> bool {
        let computes = |other: &usize| {
            self.begun[*other]
                && self.tenant[*other] == self.tenant[index]
                && self.work[*other].tokens > 0
                && !sits_out[*other]
                && !self.refused[*other]
        };
        let mut others = (0..self.begun.len()).filter(computes);
        others.any(|other| self.memory.awaits_prefix(index, other))
    }

    /// Returns the number of requests with a place. A request whose client does not read needs
    /// none.
    fn running(&self) -> usize {
        let runs = |(begun, work): (&bool, &Work)| *begun && work.tokens > 0;
        self.begun.iter().zip(&self.work).filter(|pair| runs(*pair)).count()
    }

    /// Returns the last running candidate that yields its place for this one to begin.
    fn behind(&self, index: usize) -> Option<usize> {
        let gives = |other: &usize| {
            self.begun[*other]
                && self.work[*other].tokens > 0
                && self.order.row[*other] > self.order.row[index]
        };
        self.order.first.iter().rev().copied().find(gives)
    }

    /// Begins a candidate, preempting another one if no place is free.
    fn begin(&mut self, index: usize, places: usize) {
        if self.running() >= places
            && let Some(other) = self.behind(index)
        {
            self.preempt(other);
        }
        self.begun[index] = true;
        self.just_begun[index] = true;
        self.work[index] = self.memory.begin(index);
    }

    /// Plans as many tokens of a begun candidate as fit into the step, if memory for all of its
    /// work is available; a part of a prompt would only block memory for others. If it is not, a
    /// candidate that has just begun gives its place back, and no other begins instead.
    fn give(&mut self, index: usize) -> bool {
        while !self.memory.reserve(index, self.work[index].tokens) {
            let least = if self.just_begun[index] { self.order.row[index] + 1 } else { 0 };
            let later = self.order.first[self.order.place[index] + 1..].iter().rev().copied();
            let gives = |other: &usize| self.begun[*other] && self.order.row[*other] >= least;
            let Some(other) = later.into_iter().find(gives) else {
                if self.take_of_many(index) {
                    continue;
                }
                if self.is_alone(index)
                    && let Some(work) = self.memory.shrink(index)
                {
                    self.preemptions += 1;
                    self.work[index] = work;
                    continue;
                }
                self.refused[index] = true;
                if self.just_begun[index] {
                    self.take_back(index);
                }
                return false;
            };
            self.preempt(other);
        }
        let (work, room) = (self.work[index], self.room_of(index));
        self.counts[index] = work.within(room);
        self.spent[index] = work.cost(self.counts[index], room);
        self.of_prompt[index] = !work.goes_on();
        self.room -= self.spent[index];
        if self.of_prompt[index] {
            self.room_of_prompts -= self.spent[index];
        }
        true
    }

    /// Returns the token budget that is left for a candidate.
    fn room_of(&self, index: usize) -> usize {
        let is_reply = self.work[index].goes_on();
        if is_reply { self.room } else { self.room.min(self.room_of_prompts) }
    }

    /// Frees the memory of a reply of another tenant: of the request with the most running replies,
    /// if it has more than this one.
    fn take_of_many(&mut self, index: usize) -> bool {
        let own = self.work[index].together.max(1);
        let has_more = |other: &usize| {
            self.begun[*other]
                && self.tenant[*other] != self.tenant[index]
                && self.work[*other].goes_on()
                && self.work[*other].together > own
        };
        let others = (0..self.work.len()).filter(has_more);
        let most = others.max_by_key(|other| self.work[*other].together);
        let Some((other, work)) = most.and_then(|other| Some((other, self.memory.shrink(other)?)))
        else {
            return false;
        };
        self.preemptions += 1;
        self.work[other] = work;
        // The request may run other replies now, for which no memory is reserved, so it is planned
        // again.
        self.clear(other);
        true
    }

    /// Takes back the tokens that were planned for a candidate.
    fn clear(&mut self, index: usize) {
        self.counts[index] = 0;
        let spent = std::mem::take(&mut self.spent[index]);
        self.room += spent;
        if self.of_prompt[index] {
            self.room_of_prompts += spent;
        }
    }

    /// Returns true if no other candidate has memory that this one could wait for.
    fn is_alone(&self, index: usize) -> bool {
        self.begun.iter().enumerate().all(|(other, begun)| other == index || !begun)
    }

    fn preempt(&mut self, index: usize) {
        self.preemptions += 1;
        self.take_back(index);
    }

    fn take_back(&mut self, index: usize) {
        self.memory.preempt(index);
        self.begun[index] = false;
        self.clear(index);
    }
}

#[cfg(test)]
mod tests;
