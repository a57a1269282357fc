//! Mutants of gateways, which the scenarios through HTTP must detect.

use super::{Judge, Mutant};

/// Mutants of gateways.
pub(super) const MUTANTS: &[Mutant] = &[
    // A failed or canceled reply is an error of the server after a restart.
    Mutant {
        name: "an-end-that-loses-its-code",
        file: "crates/gateway-replies/src/reply_end.rs",
        edits: &[(
            "StoredEnd::Failed { error: Some(failure), .. } => Self::Failed(*failure),",
            "StoredEnd::Failed { error: Some(failure), .. } => Self::Failed(Failure::internal(failure.message())),",
        )],
        judge: Judge::Scenario("gateway-restart-after-cancel", 1),
    },
    // A gateway keeps the memory that a peak of requests took.
    Mutant {
        name: "a-heap-that-keeps-its-peak",
        file: "crates/gateway/src/gateway/heap.rs",
        edits: &[
            ("unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES) };", ""),
            ("unsafe { libc::malloc_trim(0) };", ""),
        ],
        judge: Judge::Attack("gateway", 40),
    },
    // A field becomes values whatever its size.
    Mutant {
        name: "fields-of-any-size",
        file: "crates/gateway/src/fields.rs",
        edits: &[
            ("if extent.bytes > self.bytes {", "if extent.bytes > isize::MAX as usize {"),
            ("if extent.values > self.values {", "if extent.values > isize::MAX as usize {"),
        ],
        judge: Judge::Attack("gateway", 40),
    },
    // A gateway sends the last event that the client has once more.
    Mutant {
        name: "resume-with-a-known-event",
        file: "crates/gateway/src/api/responses.rs",
        edits: &[("after.saturating_add(1)", "after")],
        judge: Judge::Scenario("client-reconnects-by-sequence", 1),
    },
    // A restarted gateway does not continue the replies that were interrupted.
    Mutant {
        name: "interrupted-streams-wait",
        file: "crates/gateway-replies/src/replies/find.rs",
        edits: &[(
            "            // Nothing in this process reads it.\n            entry.log.cancel();",
            "            // Nothing in this process reads it.",
        )],
        judge: Judge::Scenario("gateway-killed", 1),
    },
    // The pieces that a gateway has kept are not handed to the worker that continues the reply.
    Mutant {
        name: "kept-pieces-are-not-used",
        file: "crates/gateway-replies/src/replies.rs",
        edits: &[(
            "revived.log.restore(pieces, fingerprint, None);",
            "revived.log.restore(pieces.into_iter().take(0).collect(), fingerprint, None);",
        )],
        judge: Judge::Scenario("gateway-and-worker-killed", 1),
    },
    // A client has the id of a response before another replica can find it.
    Mutant {
        name: "first-byte-before-the-record",
        file: "crates/gateway-replies/src/bucket.rs",
        edits: &[(
            "let stored = stored.await.map_err(|_| Unstored)?;",
            "drop(stored);\n            let stored: Result<(), StoreError> = Ok(());",
        )],
        judge: Judge::Scenario("replica-takes-over", 2),
    },
    // Another replica draws a seed of its own.
    Mutant {
        name: "seed-of-each-replica",
        file: "crates/gateway-replies/src/replies/compute.rs",
        edits: &[(
            "ResumePoint::new(*id, *seed, *created_at, *expires_at)",
            "ResumePoint::new(*id, *seed ^ 1, *created_at, *expires_at)",
        )],
        judge: Judge::Scenario("replica-takes-over", 1),
    },
    // A retry at another replica is a new request.
    Mutant {
        name: "retry-of-another-replica-is-new",
        file: "crates/gateway-replies/src/replies/replicas.rs",
        edits: &[(
            "found.filter(|found| found.record.retry_hash == *retry_hash)",
            "found.filter(|found| found.record.retry_hash != *retry_hash)",
        )],
        judge: Judge::Scenario("replica-takes-over", 1),
    },
    // A drain ends streams in order, so that their clients take them for whole.
    Mutant {
        name: "streams-end-with-the-gateway",
        file: "crates/gateway/src/api/sse.rs",
        edits: &[("Some(Err(io::Error::other(\"the gateway shuts down\")))", "None")],
        judge: Judge::Test {
            package: "nsbridge-gateway",
            file: "crates/gateway/tests/it/replicas.rs",
            module: "replicas::",
            name: "a_drain_cuts_streams_of_responses_and_another_replica_continues_their_pieces",
        },
    },
    // A piece that a worker withdrew is read back from the disk.
    Mutant {
        name: "withdrawn-pieces-stay-on-disk",
        file: "crates/gateway-replies/src/disk.rs",
        edits: &[("Write::Cut(id, *kept as u64)", "Write::Cut(id, u64::MAX - *kept as u64)")],
        judge: Judge::Test {
            package: "nsbridge-gateway-replies",
            file: "crates/gateway-replies/src/store/testing.rs",
            module: "disk::tests::",
            name: "what_a_worker_withdrew_is_not_read_back",
        },
    },
    // Replicas know the worker of a reply only from its end.
    Mutant {
        name: "workers-are-shared-at-the-end",
        file: "crates/gateway-replies/src/bucket.rs",
        edits: &[("self.write_later(id, File::Mark(id), state);", "drop(state);")],
        judge: Judge::Test {
            package: "nsbridge-gateway-replies",
            file: "crates/gateway-replies/src/store/testing.rs",
            module: "bucket::tests::",
            name: "the_worker_of_a_reply_is_known_before_its_end",
        },
    },
];
