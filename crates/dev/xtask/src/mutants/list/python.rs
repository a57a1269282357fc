//! Mutants of the handler of models in Python, which the scenarios of crashes and hangs must detect.

use super::{Judge, Mutant};

/// Mutants of the handler of models in Python.
pub(super) const MUTANTS: &[Mutant] = &[
    // A call whose process has ended counts as answered.
    Mutant {
        name: "crashes-are-ends",
        file: "crates/handlers/python/src/call.rs",
        edits: &[(
            "End::Lost => self.lost(job.info()).await.map(Err),",
            "End::Lost => self.lost(job.info()).await.map(|_| Ok(Finish::STOP)),",
        )],
        judge: Judge::Scenario("python-crash", 1),
    },
    // A process that is started after a crash is not told which pieces the client has.
    Mutant {
        name: "resumed-pieces-are-not-told",
        file: "crates/handlers/python/src/call.rs",
        edits: &[(
            "self.send(&ToSlot::Resumed(pieces?)).await?;",
            "let _ = pieces?;\n                    self.send(&ToSlot::Resumed(Vec::new())).await?;",
        )],
        judge: Judge::Scenario("python-crash", 1),
    },
    // A worker starts processes forever, however often they crash.
    Mutant {
        name: "crashes-without-a-limit",
        file: "crates/handlers/python/src/crashes.rs",
        edits: &[("(crashes < self.most).then_some", "(crashes < self.most.max(9999)).then_some")],
        judge: Judge::Scenario("python-crash", 1),
    },
    // A call beside one that ignored its stop fails with it.
    Mutant {
        name: "neighbors-of-a-kill-fail",
        file: "crates/handlers/python/src/call.rs",
        edits: &[(
            "None => Some(HandlerError::retry(why)),",
            "None if matches!(why, Error::Neighbor) => Some(HandlerError::failed(why)),\n            \
             None => Some(HandlerError::retry(why)),",
        )],
        judge: Judge::Scenario("python-hang", 1),
    },
    // A call that ignores its stop keeps its process.
    Mutant {
        name: "hung-processes-are-not-killed",
        file: "crates/handlers/python/src/call.rs",
        edits: &[(
            "match timeout(self.host.plan().kill_after, self.stop()).await {",
            "match Ok::<_, std::io::Error>(self.stop().await) {",
        )],
        judge: Judge::Scenario("python-hang", 1),
    },
    // A process that was killed for a stop counts as a crash.
    Mutant {
        name: "kills-are-crashes",
        file: "crates/handlers/python/src/host.rs",
        edits: &[("if !process.ignored_stop() {", "if process.ignored_stop() || true {")],
        judge: Judge::Scenario("python-hang", 1),
    },
    // The children of a process that is killed live on.
    Mutant {
        name: "only-the-process-is-killed",
        file: "crates/handlers/python/src/process.rs",
        edits: &[
            (
                "let _ = kill_process_group(group, Signal::KILL);",
                "let _ = rustix::process::kill_process(group, Signal::KILL);",
            ),
            (
                "let _ = kill_process_group(pid, Signal::KILL);",
                "let _ = rustix::process::kill_process(pid, Signal::KILL);",
            ),
            (
                "Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid",
                "Pid, Signal, WaitId, WaitIdOptions, waitid",
            ),
        ],
        judge: Judge::Scenario("python-hang", 1),
    },
];
