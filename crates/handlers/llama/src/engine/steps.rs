//! Steps of the engine thread: plans a step, drafts, runs the tokens and samples the next ones.

use std::time::Instant;

use nsbridge_handler::Error;

use super::blocks::Blocks;
use super::{EngineLoop, EngineRequest, Running};
use crate::schedule::{Candidate, Limits};

impl EngineLoop {
    /// Runs a step of the requests that have work.
    pub(super) fn step(&mut self) {
        let begun = Instant::now();
        let mut plan = self.plan();
        if plan.iter().all(|tokens| *tokens == 0) {
            return self.refuse_what_waits_for_nothing();
        }
        self.refuse_wrong_chunks(&mut plan);
        let tokens: usize = plan.iter().sum();
        if tokens == 0 {
            return;
        }
        let parts = self.running.iter().zip(&plan);
        let of_replies = parts.filter(|(running, _)| running.request.work().goes_on());
        let replies: usize = of_replies.map(|(_, tokens)| tokens).sum();
        let planned = begun.elapsed();
        self.draft(&plan);
        self.heartbeat.expect_soon();
        let drafted = begun.elapsed();
        self.run_tokens(&plan);
        let (draft_time, model_time) = (drafted - planned, begun.elapsed() - drafted);
        self.budget.learn(replies, tokens - replies, model_time);
        let cache = self.model.cache();
        for Running { request, .. } in &mut self.running {
            let EngineRequest { group, scope, .. } = &mut request.input;
            group.roll_back(cache);
            if self.policy.caching {
                group.remember(cache, scope);
            }
            group.settle(cache, scope);
        }
        let schedule_time = begun.elapsed().saturating_sub(draft_time + model_time);
        self.counts.change(|counts| {
            counts.steps += 1;
            counts.tokens += tokens as u64;
            counts.draft_time += draft_time;
            counts.model_time += model_time;
            counts.schedule_time += schedule_time;
        });
    }

    /// Returns the number of tokens that the next step runs of each request.
    fn plan(&mut self) -> Vec<usize> {
        let candidate = |running: &Running| Candidate {
            tenant: running.tenant,
            priority: running.request.input.priority,
            work: running.request.work(),
            weight: running.request.input.group.weight(),
            begun: running.request.input.group.has_memory(),
        };
        let candidates: Vec<_> = self.running.iter().map(candidate).collect();
        let limits = Limits { prompts: self.budget.prompt_tokens(), ..self.policy.limits };
        let Self { model, running, counts, policy, .. } = self;
        let caching = policy.caching;
        let mut memory = Blocks { cache: model.cache(), counts, running, caching };
        self.schedule.plan(&candidates, limits, &mut memory)
    }

    /// Fails each request with a chunk that the model refuses, so that the step runs the others.
    fn refuse_wrong_chunks(&mut self, plan: &mut [usize]) {
        for (Running { request, .. }, tokens) in self.running.iter_mut().zip(plan) {
            if *tokens == 0 {
                continue;
            }
            let checked =
                request.input.group.chunks(*tokens).try_for_each(|chunk| self.model.check(&chunk));
            if let Err(error) = checked {
                request.tell(Err(error));
                *tokens = 0;
            }
        }
    }

    /// Drafts the continuation of each reply whose next token is computed in this step.
    fn draft(&mut self, plan: &[usize]) {
        let Self { model, running, speculation, tally, policy, counts, heartbeat, .. } = self;
        let Some(drafting) = speculation else { return };
        let rows = plan.iter().sum();
        let parts = running.iter_mut().zip(plan).filter(|(_, tokens)| **tokens > 0);
        let undrafted = parts.flat_map(|(running, tokens)| {
            let EngineRequest { group, scope, .. } = &mut running.request.input;
            group.undrafted(*tokens, scope)
        });
        let (undrafted, room) = (undrafted.collect(), policy.limits.tokens - rows);
        if drafting.watch().is_none() {
            heartbeat.allow_pause();
        }
        if let Err(error) = drafting.draft(undrafted, (rows, room), tally, model.cache()) {
            // Like an error of `forward`, this one contains no text of a request.
            tracing::warn!("the draft has failed, and replies go on without: {error}");
            *speculation = None;
            counts.change(|counts| counts.drafting = false);
        }
    }

    /// Runs the planned tokens, samples the next ones and hands over the new pieces.
    fn run_tokens(&mut self, plan: &[usize]) {
        let Self { model, running, speculation, tally, scratch, failure, .. } = self;
        let mut draws = model.draws();
        if let Some(draws) = &mut draws {
            let mut row = 0;
            for (running, tokens) in running.iter_mut().zip(plan).filter(|(_, part)| **part > 0) {
                running.request.input.group.describe(*tokens, &mut row, draws);
            }
        }
        let (mut chunks, mut wanted) = (Vec::new(), Vec::new());
        let parts = running.iter_mut().zip(plan).filter(|(_, tokens)| **tokens > 0);
        for (running, tokens) in parts {
            let first = chunks.len();
            chunks.extend(running.request.input.group.chunks(*tokens));
            wanted.push(chunks[first..].iter().map(|chunk| chunk.logits).sum::<usize>());
        }
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let begun = Instant::now();
        let logits = match model.forward_drawn(&mut chunks, draws) {
            Ok(logits) => logits,
            Err(error) => {
                // The error is about ranks or the engine and contains no text of a request.
                let why = failure.get_or_init(|| error.to_string());
                let tell = |running: &mut Running| {
                    running.request.tell(Err(Error::fatal(why.clone())));
                };
                return running.iter_mut().for_each(tell);
            }
        };
        let all_wanted = rows == wanted.iter().sum::<usize>();
        let mut logits = logits.rows();
        let parts = running.iter_mut().zip(plan).filter(|(_, tokens)| **tokens > 0);
        for ((Running { request, .. }, _), wanted) in parts.zip(wanted) {
            let rows: Vec<_> = logits.by_ref().take(wanted).collect();
            request.sample(&rows, scratch, tally);
        }
        // A row of a draft costs its sampling too. Steps with prompt tokens cost less a row, because
        // most of their rows need no logits.
        if let Some(speculation) = speculation.as_mut().filter(|_| all_wanted) {
            speculation.learn_cost(rows, begun.elapsed().as_secs_f64());
        }
    }

    /// Refuses the first request with work if none can run; the next step could not run it either.
    fn refuse_what_waits_for_nothing(&mut self) {
        let waiting = self.running.iter_mut().map(|running| &mut running.request);
        if let Some(request) = waiting.into_iter().find(|request| request.work().tokens > 0) {
            request.tell(Err(Error::retry("there is too little memory for keys and values")));
        }
    }
}
