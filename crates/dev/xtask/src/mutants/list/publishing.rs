//! Mutants of workers that cannot publish, and of logs that are not read.

use super::{Judge, Mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    // A worker that cannot publish keeps its requests until their deadlines.
    Mutant {
        name: "a-worker-that-cannot-answer-keeps-its-requests",
        file: "crates/bridge/src/timing.rs",
        edits: &[],
        judge: Judge::Timing("worker.max_publish_outage=9000", "publisher-refused"),
    },
    // A connection has no channel left once the broker has closed as many as it may have.
    Mutant {
        name: "closed-channels-use-up-a-connection",
        file: "crates/queue/src/amqp/connection.rs",
        edits: &[(
            "if fault::is_lost_id(&error) {",
            "if fault::is_lost_id(&error) && self.inner.status().closed() {",
        )],
        judge: Judge::Scenario("right-lost-and-given-back", 1),
    },
    // A worker opens one stream after another without a pause while the broker refuses them.
    Mutant {
        name: "streams-without-a-pause",
        file: "crates/bridge/src/request/stream_opener.rs",
        edits: &[("self.pause = self.pauses.next(random());", "self.pauses.next(random());")],
        judge: Judge::Scenario("right-lost-and-given-back", 1),
    },
    // A log that is not read holds up the process.
    Mutant {
        name: "log-that-blocks",
        file: "crates/telemetry/src/log.rs",
        edits: &[("if !self.take(line) {", "if io::stderr().write_all(line).is_err() {")],
        judge: Judge::Scenario("log-reader-stops", 1),
    },
];
