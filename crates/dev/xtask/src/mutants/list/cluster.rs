//! Mutants of workers and clients on a cluster.

use super::{Judge, Mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    // A process that cannot reach its first node tries no other.
    Mutant {
        name: "other-nodes-are-not-tried",
        file: "crates/queue/src/amqp.rs",
        edits: &[("for place in (0..count).map(", "for place in (0..1).map(")],
        judge: Judge::Scenario("tls-cut", 1),
    },
    // A client waits for the node that has its reply queue.
    Mutant {
        name: "a-reply-queue-stays-on-its-node",
        file: "crates/client/src/router.rs",
        edits: &[(
            "*queue = name_reply_queue().map_err(|_| error)?;",
            "let _ = name_reply_queue().map_err(|_| error)?;",
        )],
        judge: Judge::Scenario("node-killed", 1),
    },
    // A client does not know that the replies in a queue that it has given up are lost.
    Mutant {
        name: "replies-on-a-lost-node-are-waited-for",
        file: "crates/client/src/router.rs",
        edits: &[(
            "                *lost = true;\n                *queue",
            "                *lost = *lost;\n                *queue",
        )],
        judge: Judge::Scenario("node-killed", 1),
    },
    // A worker takes each refusal of a reply queue for a full queue.
    Mutant {
        name: "a-refusing-reply-queue-is-only-full",
        file: "crates/bridge/src/request/reply_queue_check.rs",
        edits: &[(
            "if matches!(answer, Err(Error::NodeDown { .. })) {",
            "if matches!(answer, Err(Error::Unreachable { .. })) {",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/tests/it/trouble.rs",
            module: "trouble::",
            name: "r10_a_client_whose_reply_queue_is_on_a_node_that_is_down_is_gone_and_asks_again",
        },
    },
    // A client believes a channel that knows only a dead leader of the queue.
    Mutant {
        name: "a-stale-channel-is-believed",
        file: "crates/client/src/router.rs",
        edits: &[("answer.is_ok() && !publisher.is_stale()", "answer.is_ok()")],
        judge: Judge::Test {
            package: "nsbridge-client",
            file: "crates/client/src/router/tests.rs",
            module: "router::tests::",
            name: "a_refusal_on_a_stale_channel_is_not_believed",
        },
    },
];
