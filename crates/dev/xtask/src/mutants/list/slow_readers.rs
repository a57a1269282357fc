//! Mutants of clients and gateways whose readers are late.

use super::{Judge, Mutant};

/// Scenario of readers that do not read.
const SLOW_READER: Judge = Judge::Scenario("slow-reader", 1);

/// Mutants of clients and gateways whose readers are late.
pub(super) const MUTANTS: &[Mutant] = &[
    // A client loses a piece of a reply that its caller reads late.
    Mutant {
        name: "a-late-caller-misses-a-piece",
        file: "crates/client/src/inbox.rs",
        edits: &[("self.read += 1;", "self.read += if self.read == 16 << 10 { 2 } else { 1 };")],
        judge: SLOW_READER,
    },
    // The client in Python does the same.
    Mutant {
        name: "a-late-caller-in-python-misses-a-piece",
        file: "python/src/nsbridge/pending.py",
        edits: &[("self.read += 1\n", "self.read += 2 if self.read == 16 << 10 else 1\n")],
        judge: SLOW_READER,
    },
    // A client keeps each piece as an object from its arrival on.
    Mutant {
        name: "pieces-are-objects-on-arrival",
        file: "crates/client/src/pending.rs",
        edits: &[(
            "Step::Piece(_) | Step::Tell { .. } => return Vec::new(),",
            "Step::Piece(piece) => {\n                \
             std::mem::forget(serde_json::from_slice::<serde_json::Value>(&piece));\n                \
             return Vec::new();\n            }\n            \
             Step::Tell { .. } => return Vec::new(),",
        )],
        judge: SLOW_READER,
    },
    // A client reads no further frame while the caller of a long reply has not read to its end.
    Mutant {
        name: "a-late-caller-holds-up-the-others",
        file: "crates/client/src/router.rs",
        edits: &[(
            "            self.send(messages);\n            // The frames",
            "            self.send(messages);\n            \
             let late = |entry: &Entry| {\n                \
             let (read, entry) = (Arc::strong_count(entry) == 1, entry.lock());\n                \
             !read && entry.is_over() && entry.progress().pieces > 16 << 10\n            \
             };\n            \
             while self.pending.lock().values().any(late) {\n                \
             sleep(std::time::Duration::from_millis(10)).await;\n            }\n            \
             // The frames",
        )],
        judge: SLOW_READER,
    },
    // A gateway makes the events of all pieces that a caller has not read at once.
    Mutant {
        name: "a-backlog-is-one-body",
        file: "crates/gateway-replies/src/reply_log.rs",
        edits: &[(
            "const MAX_PIECES_PER_PART: usize = 256;",
            "const MAX_PIECES_PER_PART: usize = usize::MAX;",
        )],
        judge: Judge::Test {
            package: "nsbridge-gateway-replies",
            file: "crates/gateway-replies/src/reply_log.rs",
            module: "reply_log::tests::",
            name: "a_reader_that_comes_late_gets_the_pieces_in_parts_and_the_end_with_the_last",
        },
    },
];
