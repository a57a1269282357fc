//! Who runs in the next step, and how many tokens of each: decided by numbers alone.
//!
//! Replies that go on run first, a token each; what a step has left is for prompts, in chunks
//! (chunked prefill as in Sarathi, Agrawal et al., arXiv:2308.16369). Of the prompts, that of the
//! tenant who has been given least is the next (start-time fair queueing, Goyal et al. 1996). So a
//! flood of one tenant delays another's prompt by one step for each tenant that waits, however many
//! its requests are.
//!
//! A step takes longer the more replies go on in it, and the longer the choice of their tokens takes.
//! A tenant may have as many in each step as there are places. What it has beyond that is a debt, for
//! which it sits out the following steps, as long as another tenant that owes less has something to
//! run: so many heavy replies slow their own tenant, and no other.
//!
//! Where there are too few places or too little memory, one order decides: the first request of each
//! tenant, then the second of each, and so on; a tenant's own by `priority`, then by their coming.
//! Requests begin in that order, each when there is a place for it and memory for all of its prompt;
//! it takes them from requests that are of a later row, the last one first. A reply that grows takes
//! memory from any that comes later. Who gave computes again later what it had; one whose client
//! does not read is behind all others. As nobody gives to one that is later, nobody overtakes one
//! that waits to begin, and the first fits alone, somebody always comes to an end. A request with
//! several replies may fit alone only with fewer of them: the others wait until one has ended. One with
//! more replies than another tenant's that finds no memory gives it that of its last ones likewise.

use std::collections::HashMap;
use std::sync::Arc;

/// A tenant with requests in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenant(usize);

/// What the scheduler knows of a request. The order in which they are listed is that of their
/// coming.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) tenant: Tenant,
    /// Lower is earlier, among those of its tenant.
    pub(crate) priority: i32,
    /// What it has to run; nothing while it waits for its client.
    pub(crate) work: Work,
    /// What a token of each of its replies takes, in tokens of a plain reply.
    pub(crate) weight: usize,
    /// Whether it has a place, and memory.
    pub(crate) begun: bool,
}

/// Tokens that are to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) tokens: usize,
    /// How many of them are the last ones, which run in the same step: one for each reply that is
    /// made of the request.
    pub(crate) together: usize,
}

impl Work {
    /// Whether its replies go on by a token each.
    fn goes_on(self) -> bool {
        self.tokens > 0 && self.tokens == self.together
    }

    /// How many of the tokens may run where there is room for so many.
    fn within(self, room: usize) -> usize {
        if self.tokens <= room { self.tokens } else { room.min(self.tokens - self.together) }
    }
}

/// The memory of the candidates, by their place in the list.
pub(crate) trait Memory {
    /// Gives one that has nothing what is remembered of its tokens; what is left to be run.
    fn begin(&mut self, index: usize) -> Work;

    /// Room for so many tokens more of one of them, or `false`.
    fn reserve(&mut self, index: usize, tokens: usize) -> bool;

    /// Takes back all that one has; it begins anew later.
    fn preempt(&mut self, index: usize);

    /// Takes back what one of its replies has, which waits until another has ended; what is left to
    /// be run. `None` if there is only one.
    fn shrink(&mut self, index: usize) -> Option<Work>;
}

/// How much a step does at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Tokens of all requests.
    pub(crate) tokens: usize,
    /// Requests with a place.
    pub(crate) places: usize,
}

/// What tenants have been given.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    names: HashMap<Arc<str>, Tenant>,
    accounts: Vec<Account>,
    /// What the tenant that was chosen last had been given before.
    clock: u64,
    preemptions: u64,
}

#[derive(Debug, Default)]
struct Account {
    /// Tokens of prompts.
    given: u64,
    /// Tokens of replies beyond its part of the steps.
    debt: u64,
    /// The account is another's when it has none.
    requests: usize,
}

impl Schedule {
    /// A request of this tenant has come. One that was away has not saved anything up.
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

    /// A request of this tenant is over.
    pub(crate) fn end(&mut self, tenant: Tenant) {
        let account = &mut self.accounts[tenant.0];
        account.requests -= 1;
        if account.requests == 0 {
            self.names.retain(|_, other| *other != tenant);
        }
    }

    /// How often memory or a place was taken from a request, or memory from one of its replies.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// How many tokens of each candidate the next step runs.
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
            begun: candidates.iter().map(|candidate| candidate.begun).collect(),
            just_begun: vec![false; candidates.len()],
            refused: vec![false; candidates.len()],
            room: limits.tokens,
            memory,
            preemptions: 0,
        };
        self.fill(&mut step, candidates, limits, &sits_out);
        // Who may run may have no memory, and those that sit out have it.
        let idle = step.counts.iter().all(|count| *count == 0) && sits_out.contains(&true);
        if idle {
            step.refused.fill(false);
            self.fill(&mut step, candidates, limits, &vec![false; candidates.len()]);
        }
        let (counts, work) = (step.counts, step.work);
        self.preemptions += step.preemptions;
        // What nobody else could use is no debt.
        if !idle {
            self.charge(candidates, &counts, &work, limits.places);
        }
        counts
    }

    /// Plans replies that go on, and then prompts, as far as there is room.
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
        while step.room > 0 {
            let next = step.next_to_begin(limits.places, sits_out);
            let waits = |index: &usize| {
                (step.begun[*index] || next == Some(*index))
                    && !sits_out[*index]
                    && step.counts[*index] == 0
                    && !step.refused[*index]
                    && step.work[*index].within(step.room) > 0
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
                account.given += step.counts[index] as u64;
            }
        }
    }

    /// Which candidates are of a tenant that owes more than another which has something to run.
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

    /// Charges tenants with the replies that go on in this step.
    fn charge(&mut self, candidates: &[Candidate], counts: &[usize], work: &[Work], places: usize) {
        let mut tokens: HashMap<usize, u64> = HashMap::new();
        for ((candidate, &count), work) in candidates.iter().zip(counts).zip(work) {
            if count > 0 && count == work.tokens {
                let of_replies = (work.together * candidate.weight) as u64;
                *tokens.entry(candidate.tenant.0).or_default() += of_replies;
            }
        }
        for (tenant, tokens) in tokens {
            // What is paid before the next step is what a step is for.
            let beyond = tokens.saturating_sub(places as u64);
            let account = &mut self.accounts[tenant];
            account.debt += beyond;
        }
    }
}

/// Who is before whom.
#[derive(Debug)]
struct Order {
    /// The candidates, the first one first.
    first: Vec<usize>,
    /// Where each of them is in `first`.
    place: Vec<usize>,
    /// In which row: how many of its tenant's are before it. Those that rest are in the last.
    row: Vec<usize>,
}

/// The first request of each tenant, the second of each, and so on; at last those that rest.
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

/// A step that is being planned.
struct Step<'a, M> {
    order: Order,
    tenant: Vec<Tenant>,
    work: Vec<Work>,
    counts: Vec<usize>,
    begun: Vec<bool>,
    /// In this step.
    just_begun: Vec<bool>,
    /// There was no memory for them.
    refused: Vec<bool>,
    room: usize,
    memory: &'a mut M,
    preemptions: u64,
}

impl<M: Memory> Step<'_, M> {
    /// The first that has not begun, if it may.
    fn next_to_begin(&self, places: usize, sits_out: &[bool]) -> Option<usize> {
        let waits = |index: &&usize| {
            !self.begun[**index] && self.work[**index].tokens > 0 && !sits_out[**index]
        };
        let next = self.order.first.iter().find(waits).copied();
        next.filter(|next| self.running() < places || self.behind(*next).is_some())
    }

    /// How many have a place: whose client does not read needs none.
    fn running(&self) -> usize {
        let runs = |(begun, work): (&bool, &Work)| *begun && work.tokens > 0;
        self.begun.iter().zip(&self.work).filter(|pair| runs(*pair)).count()
    }

    /// The last of those that make way for this one to begin.
    fn behind(&self, index: usize) -> Option<usize> {
        let gives = |other: &usize| {
            self.begun[*other]
                && self.work[*other].tokens > 0
                && self.order.row[*other] > self.order.row[index]
        };
        self.order.first.iter().rev().copied().find(gives)
    }

    /// Gives it a place.
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

    /// Plans as many tokens of one that has begun as there is room for, if memory can be found for all
    /// of its work: a part of a prompt would only be in others' way. One that has only just begun
    /// gives its place back if not, and nobody begins in its stead.
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
        self.counts[index] = self.work[index].within(self.room);
        self.room -= self.counts[index];
        true
    }

    /// Takes the memory of a reply from the request of another tenant that has most of them, if that
    /// has more than this one.
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
        // Others of its replies may be next now, for which no memory is reserved: it asks again.
        self.room += std::mem::take(&mut self.counts[other]);
        true
    }

    /// Whether no other has memory, that it could wait for.
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
        self.room += std::mem::take(&mut self.counts[index]);
    }
}

#[cfg(test)]
mod tests;
