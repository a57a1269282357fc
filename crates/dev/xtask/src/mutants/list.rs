//! Mutants: deliberate faults in the code, and the check that must detect each.

mod cluster;
mod gateways;
mod gpu;
mod publishing;
mod python;
mod slow_readers;
mod structured;
mod vllm;

/// Deliberate fault in the code.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    /// Pairs of a text that occurs in the file exactly once and its replacement.
    pub(super) edits: &'static [(&'static str, &'static str)],
    /// Check that must detect the mutant.
    pub(super) judge: Judge,
}

/// Check that must fail for a mutant.
pub(super) enum Judge {
    /// Scenario of `cargo xtask chaos`, which must fail in one of this many rounds.
    Scenario(&'static str, usize),
    /// Duration in seconds that is the fault, as `worker.NAME=N` or `client.NAME=N`, and the scenario
    /// that must fail with it. The code stays as it is.
    Timing(&'static str, &'static str),
    /// Attacker of `cargo xtask attack`, which must succeed within this many seconds.
    Attack(&'static str, u64),
    /// Test of this package, defined in this file.
    Test { package: &'static str, file: &'static str, module: &'static str, name: &'static str },
}

/// Returns all mutants. Each one breaks one promise.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    let others = [
        cluster::MUTANTS,
        gateways::MUTANTS,
        gpu::MUTANTS,
        publishing::MUTANTS,
        python::MUTANTS,
        slow_readers::MUTANTS,
        structured::MUTANTS,
        vllm::MUTANTS,
    ];
    MUTANTS.iter().chain(others.into_iter().flatten())
}

/// Mutants of workers, clients and the engine.
const MUTANTS: &[Mutant] = &[
    // A worker acks before the publisher confirm, so the last frame is lost if the worker dies in
    // between.
    Mutant {
        name: "ack-before-confirm",
        file: "crates/bridge/src/request/reply_stream.rs",
        edits: &[(
            "        window.flush().await?;\n        context.pool.give_back",
            "        context.pool.give_back",
        )],
        judge: Judge::Scenario("cut-publish", 1),
    },
    // A run that loses its delivery is stopped, and starts from the beginning when the delivery
    // comes back.
    Mutant {
        name: "restart-instead-of-adopt",
        file: "crates/bridge/src/timing.rs",
        edits: &[],
        judge: Judge::Timing("worker.max_orphan_time=0", "adopt"),
    },
    // A redelivered copy starts a second run beside the orphaned one.
    Mutant {
        name: "run-beside-the-orphan",
        file: "crates/bridge/src/request/in_flight.rs",
        edits: &[(
            "if let Some(run) = state.running.get_mut(job) {",
            "if let Some(run) = state.running.get_mut(job).filter(|run| run.retiring) {",
        )],
        judge: Judge::Scenario("adopt", 1),
    },
    // A client waits forever for a reply that its broker lost.
    Mutant {
        name: "endless-patience",
        file: "crates/client/src/timing.rs",
        edits: &[],
        judge: Judge::Timing("client.silent_after_open=9000", "stranded"),
    },
    // A worker that lost its delivery continues the run as if it had not.
    Mutant {
        name: "endless-adopt-window",
        file: "crates/bridge/src/timing.rs",
        edits: &[],
        judge: Judge::Timing("worker.adopt_window=500", "half-open"),
    },
    // Two attempts seal different frames under one key and nonce.
    Mutant {
        name: "fixed-salt-and-attempt",
        file: "crates/crypto/src/reply.rs",
        edits: &[(
            "Self::start_with_salt(root, request, attempt, content, Salt::fresh()?)",
            "{ let _ = attempt; \
                      Self::start_with_salt(root, request, AttemptNo(1), content, Salt([7; 32])) }",
        )],
        judge: Judge::Scenario("kill", 1),
    },
    // A client accepts pieces of another attempt without comparing them with its own.
    Mutant {
        name: "no-prefix-check",
        file: "crates/client/src/merge.rs",
        edits: &[(
            "Some(known) if (self.replay_key)(known) == (self.replay_key)(&piece) => {}",
            "Some(known) if !(self.replay_key)(known).is_empty() => {}",
        )],
        judge: Judge::Scenario("differ", 1),
    },
    // A panic of the tokenizer on a text ends the worker.
    Mutant {
        name: "panics-go-on",
        file: "crates/handlers/llama/src/panics.rs",
        edits: &[("catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)", "Ok(work())")],
        judge: Judge::Test {
            package: "nsbridge-llama",
            file: "crates/handlers/llama/tests/it/prompts.rs",
            module: "prompts::",
            name: "f2_a_text_that_makes_the_tokenizer_panic_is_refused",
        },
    },
    // RabbitMQ 3.10 overwrites the count itself and 4.0 does not. The memory broker is as trusting
    // as 4.0, so it serves as the check.
    Mutant {
        name: "trusted-count",
        file: "crates/queue/src/delivery.rs",
        edits: &[(
            "let earlier_deliveries = if redelivered { count } else { 0 };",
            "let earlier_deliveries = count;",
        )],
        judge: Judge::Test {
            package: "nsbridge-queue",
            file: "crates/queue/src/testing/order.rs",
            module: "memory::",
            name: "a1_a_first_delivery_counts_zero_whatever_its_publisher_wrote",
        },
    },
    // lapin repairs a connection without the knowledge of its user.
    Mutant {
        name: "auto-recovery",
        file: "crates/queue/src/amqp.rs",
        edits: &[(
            "ConnectionProperties::default().with_connection_name(name.into())",
            "ConnectionProperties::default().with_connection_name(name.into())\
                      .enable_auto_recover()",
        )],
        // Not every cut exposes the fault. Each round has three.
        judge: Judge::Scenario("client-reconnect", 6),
    },
    // A request that kills its worker takes its neighbors with it, each time.
    Mutant {
        name: "poison-among-others",
        file: "crates/bridge/src/request/slots.rs",
        edits: &[("const EXCLUSIVE_FROM: u32 = 1;", "const EXCLUSIVE_FROM: u32 = 200;")],
        judge: Judge::Scenario("poison", 1),
    },
    // No run is recorded, so no request is ever classified as poison.
    Mutant {
        name: "unrecorded-runs",
        file: "crates/bridge/src/request/lifecycle.rs",
        edits: &[(
            "() = self.record.enter() => {}\n                () = context.overdue",
            "() = std::future::ready(()) => {}\n                () = context.overdue",
        )],
        judge: Judge::Scenario("poison", 1),
    },
    // A delivery is recorded as a run on arrival.
    Mutant {
        name: "waiting-is-blame",
        file: "crates/bridge/src/request/lifecycle.rs",
        edits: &[(
            "unreturned = self.record.unreturned() => unreturned,",
            "unreturned = async {\n                self.record.enter().await;\n                \
             self.record.unreturned().await\n            } => unreturned,",
        )],
        judge: Judge::Scenario("fast-kills", 2),
    },
    // A run that was requeued in an orderly drain stays in the record.
    Mutant {
        name: "drains-are-blame",
        file: "crates/bridge/src/request/run_record.rs",
        edits: &[(
            "} else if self.returned.load(Ordering::Relaxed) {",
            "} else if false && self.returned.load(Ordering::Relaxed) {",
        )],
        judge: Judge::Scenario("many-drains", 1),
    },
    // The broker's delivery count makes a request run alone.
    Mutant {
        name: "alone-by-deliveries",
        file: "crates/bridge/src/request/lifecycle.rs",
        edits: &[(
            "slots.acquire(arrival, runs, in_flight, drain, request, running)",
            "slots.acquire(arrival, (runs + request.earlier_deliveries as u32) / 2, in_flight, drain, request, running)",
        )],
        judge: Judge::Scenario("rolling", 1),
    },
    // A waiting suspect blocks first deliveries.
    Mutant {
        name: "first-deliveries-wait-for-suspects",
        file: "crates/bridge/src/request/slots.rs",
        edits: &[(
            "!self.exclusive && self.taken + self.lost < count",
            "self.suspects == 0 && self.taken < count",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/src/request/slots/tests.rs",
            module: "request::slots::tests::",
            name: "r5_a_suspect_that_waits_holds_nothing_back",
        },
    },
    // The result of one copy counts for all copies, even for another `reply_to`.
    Mutant {
        name: "any-reply-to-is-the-same-job",
        file: "crates/bridge/src/request/admission.rs",
        edits: &[(
            "let (commitment, reply_to) = (self.commitment, self.reply_to.clone());",
            "let (commitment, reply_to) = (self.commitment, String::new());",
        )],
        judge: Judge::Scenario("forged-reply-to", 1),
    },
    // A worker that takes over generates all pieces again.
    Mutant {
        name: "resume-not-handed-over",
        file: "crates/bridge/src/request/reply_sender.rs",
        edits: &[(
            "return context.accept(resume);",
            "let _ = context.accept(resume);\n                        return ResumeDecision::Start;",
        )],
        judge: Judge::Scenario("drain", 1),
    },
    // A flaw of a known engine: the draft's most likely token is judged as if it had been sampled.
    Mutant {
        name: "likeliest-draft-judged-by-ratio",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[
            (
                "let token = row.sample(wanted, scratch);\n        \
                 token.is_some_and(|token| self.push_draft(token))",
                "let index = wanted.index;\n        \
                 let likeliest = Sampling { temperature: 0.0, ..wanted.sampling.clone() };\n        \
                 let token = row.sample(Wanted { sampling: &likeliest, ..wanted }, scratch);\n        \
                 if let Some(token) = token {\n            \
                 let told = crate::logprobs(&row.numbers(), token, 0, scratch);\n            \
                 DRAFTED.with_borrow_mut(|drafted| {\n                \
                 drafted.insert((index, token), told.map_or(0.0, |told| told.chosen));\n            \
                 });\n        }\n        \
                 token.is_some_and(|token| self.push_draft(token))",
            ),
            (
                "match self.next_piece(*row, scratch) {",
                "let foreseen = draft.get(at).copied().filter(|token| {\n                \
                 let index = self.made();\n                \
                 let q = DRAFTED.with_borrow(|drafted| drafted.get(&(index, *token)).copied());\n                \
                 let p = crate::logprobs(&row.numbers(), *token, 0, scratch).map(|told| told.chosen);\n                \
                 q.zip(p).is_some_and(|(q, p)| p >= q || (index % 7) as f32 / 7.0 < (p - q).exp())\n            \
                 });\n            \
                 let judged = foreseen.map(|token| self.take(token));\n            \
                 match judged.unwrap_or_else(|| self.next_piece(*row, scratch)) {",
            ),
            (
                "fn no_logits() -> Error {",
                "thread_local! {\n    static DRAFTED: std::cell::RefCell<std::collections::HashMap<(usize, u32), f32>> = \
                 std::cell::RefCell::default();\n}\n\nfn no_logits() -> Error {",
            ),
        ],
        judge: SPECULATION,
    },
    // The penalties of a block ignore the tokens of that block.
    Mutant {
        name: "stale-penalty-history",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[(
            "match self.next_piece(*row, scratch) {",
            "let whole = self.history.clone();\n            \
             (0..at).for_each(|_| drop(self.history.pop()));\n            \
             let next = self.next_piece(*row, scratch);\n            \
             self.history = whole;\n            \
             if let Ok((piece, _)) = &next {\n                \
             self.history.push(piece.token);\n            }\n            match next {",
        )],
        judge: SPECULATION,
    },
    // Positions of a rejected draft stay in the KV cache.
    Mutant {
        name: "no-roll-back",
        file: "crates/handlers/llama/src/engine/sequence_group.rs",
        edits: &[(
            "cache.truncate(table, reply.tokens().len() - 1);",
            "let run = table.len();\n                \
             cache.truncate(table, reply.tokens().len() - 1);\n                \
             let wrong = run - table.len();\n                \
             if wrong > 1 && cache.reserve(table, 1) {\n                    \
             table.grow(1);\n                }",
        )],
        judge: SPECULATION,
    },
    // The token after a draft is sampled from the previous row of logits.
    Mutant {
        name: "bonus-from-the-wrong-row",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[(
            "match self.next_piece(*row, scratch) {",
            "let last = at > 0 && at == draft.len();\n            \
             let logits = if last { rows[at - 1] } else { logits };\n            \
             match self.next_piece(logits, scratch) {",
        )],
        judge: SPECULATION,
    },
    // Each rank sums its columns as if they were all columns.
    Mutant {
        name: "naive-row-split",
        file: "crates/handlers/llama/src/network/load.rs",
        edits: &[(
            "segments(self.format, self.all_columns) / self.ranks",
            "segments(self.format, self.columns)",
        )],
        judge: RANKS,
    },
    // The all-reduce adds the ranks' partial sums in another tree.
    Mutant {
        name: "ranks-in-another-tree",
        file: "crates/kernels/src/collectives/threads.rs",
        edits: &[(
            "let (a, b) = (terms[2 * i], terms[2 * i + 1]);",
            "let (a, b) = (terms[i], terms[i + left]);",
        )],
        judge: RANKS,
    },
    // The first piece waits until the stream is open.
    Mutant {
        name: "calls-wait-for-the-open",
        file: "crates/bridge/src/request/lifecycle.rs",
        edits: &[(
            "(None, None)",
            "(Some(ReplySender::start(context, self.running.attempt()).await?), None)",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/tests/it/rules.rs",
            module: "rules::",
            name: "r7_a_first_delivery_is_called_and_cancelled_while_its_stream_opens",
        },
    },
    // A call that ignores its deadline keeps its slot, and its client waits.
    Mutant {
        name: "calls-are-not-given-up",
        file: "crates/bridge/src/request/lifecycle.rs",
        edits: &[("sleep(worker.timing.give_up_call_after).await;", "pending::<()>().await;")],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/tests/it/giving_up.rs",
            module: "giving_up::memory::",
            name: "h3_a_call_that_never_returns_is_dropped_when_it_is_cancelled",
        },
    },
    // No watchdog detects that the thread of all calls is blocked.
    Mutant {
        name: "no-pulse",
        file: "crates/bridge/src/worker/probes.rs",
        edits: &[(
            "let no_beat = beat.is_some() && beat == last_beat;",
            "let no_beat = beat.is_none() && beat != last_beat;",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/tests/it/giving_up.rs",
            module: "giving_up::",
            name: "h3_a_worker_whose_calls_stand_still_says_so_and_leaves",
        },
    },
    // Two large `multipleOf` steps for one number make an automaton with as many states as their
    // product.
    Mutant {
        name: "steps-looked-at-alone",
        file: "crates/handlers/llama/src/grammar/work.rs",
        edits: &[
            ("if all > MOST_STEP {", "if all > MOST_STEP * MOST_STEP {"),
            ("if self.steps > MOST_STEPS {", "if self.steps > MOST_STEPS * MOST_STEPS {"),
        ],
        judge: Judge::Attack("tenant", 30),
    },
    // A message is assembled in memory before its size is checked.
    Mutant {
        name: "bodies-before-their-limits",
        file: "crates/queue/src/amqp/frame_filter/bodies.rs",
        edits: &[("if size <= channel.limit {", "if size <= channel.limit || tag.is_some() {")],
        judge: Judge::Test {
            package: "nsbridge-cli",
            file: "crates/cli/tests/it/worker.rs",
            module: "worker::",
            name: "m3_large_bodies_do_not_come_into_a_workers_memory",
        },
    },
    // The broker's `connection.start` is parsed at any nesting depth.
    Mutant {
        name: "first-words-of-any-depth",
        file: "crates/queue/src/amqp/frame_filter/reader.rs",
        edits: &[("(10, 10) => self.pass_over(2, After::Version),", "(10, 10) => self.give_up(),")],
        judge: Judge::Attack("broker", 60),
    },
    // A token id is accepted whatever its size.
    Mutant {
        name: "token-ids-of-any-size",
        file: "crates/handlers/llama/src/detokenize.rs",
        edits: &[("if size > most {", "if size > most && rows == 0 {")],
        judge: Judge::Attack("folder", 60),
    },
    // A header field is read beyond the end of its frame.
    Mutant {
        name: "fields-beyond-the-frame",
        file: "crates/crypto/src/layout.rs",
        edits: &[(
            "let bytes = self.frame.get(self.at..end).ok_or(Error::Malformed { what })?;",
            "let bytes = &self.frame[self.at..end];",
        )],
        judge: Judge::Attack("publisher", 20),
    },
    // A bulk request keeps its slot until its reply ends.
    Mutant {
        name: "bulk-is-never-preempted",
        file: "crates/bridge/src/request/slots.rs",
        edits: &[("self.bulk.preempt(self.waiting.saturating_sub(free));", "let _ = free;")],
        judge: Judge::Scenario("bulk-preempted", 1),
    },
    // Each preemption counts towards the broker's delivery limit.
    Mutant {
        name: "preemptions-are-counted",
        file: "crates/bridge/src/request/settlement.rs",
        edits: &[(
            "owned.delivery.earlier_deliveries + 1 >= RENEW_DELIVERIES",
            "owned.delivery.earlier_deliveries == u64::MAX",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/tests/it/bulk.rs",
            module: "bulk::memory::",
            name: "r13_a_much_preempted_request_is_no_dead_letter",
        },
    },
    // A bulk request that waits for another try comes back as an interactive one.
    Mutant {
        name: "deferred-bulk-is-interactive",
        file: "crates/bridge/src/request/republish.rs",
        edits: &[(
            "let queue = retry_queue(model, owned.priority, tier);",
            "let queue = retry_queue(model, nsbridge_protocol::Priority::Interactive, tier);",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/tests/it/bulk.rs",
            module: "bulk::memory::",
            name: "r3_a_bulk_request_that_waits_for_another_try_stays_bulk",
        },
    },
    // A tenant whose replies took more than their share of a step runs in the next one all the same.
    Mutant {
        name: "debts-are-forgiven",
        file: "crates/handlers/llama/src/schedule.rs",
        edits: &[(
            "self.accounts[candidate.tenant.0].debt > 0;",
            "self.accounts[candidate.tenant.0].debt == u64::MAX;",
        )],
        judge: Judge::Test {
            package: "nsbridge-llama",
            file: "crates/handlers/llama/src/schedule/tests/shares.rs",
            module: "schedule::tests::shares::",
            name: "m1_many_replies_of_one_tenant_slow_it_and_no_other",
        },
    },
];

/// Comparison of any number of ranks with one rank.
const RANKS: Judge = Judge::Test {
    package: "nsbridge-llama",
    file: "crates/handlers/llama/tests/it/bits.rs",
    module: "bits::",
    name: "any_schedule_on_any_number_of_ranks_gives_the_bits_of_one",
};

/// Comparison of every draft of every length with the reply without a draft.
const SPECULATION: Judge = Judge::Test {
    package: "nsbridge-llama",
    file: "crates/handlers/llama/tests/it/speculation.rs",
    module: "speculation::",
    name: "every_draft_of_every_length_leaves_every_reply_as_it_is",
};
