//! `cargo xtask chaos --mutants`: each promise is broken on purpose, and a scenario must notice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{Cargo, in_root, root};
use crate::{chaos, say};

/// A fault in the code.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// What stands in the file once, and what stands there instead.
    edits: &'static [(&'static str, &'static str)],
    /// What must notice.
    judge: Judge,
}

/// What must notice a mutant.
enum Judge {
    /// A scenario of `cargo xtask chaos`, in one of so many rounds.
    Scenario(&'static str, usize),
    /// A test of this package, written in this file.
    Test { package: &'static str, file: &'static str, module: &'static str, name: &'static str },
}

const MUTANTS: &[Mutant] = &[
    // A worker that dies between the ack and the confirm takes the last frame along.
    Mutant {
        name: "ack-before-confirm",
        file: "crates/bridge/src/attempt.rs",
        edits: &[(
            "        window.flush().await?;\n        address.pool.give_back",
            "        address.pool.give_back",
        )],
        judge: Judge::Scenario("cut-publish", 1),
    },
    // A run that loses its delivery is stopped, and starts again where it comes back.
    Mutant {
        name: "restart-instead-of-adopt",
        file: "crates/bridge/src/job.rs",
        edits: &[(
            "const ORPHANED_FOR: Duration = Duration::from_secs(60);",
            "const ORPHANED_FOR: Duration = Duration::ZERO;",
        )],
        judge: Judge::Scenario("adopt", 1),
    },
    // A copy that comes back to a run of it is run as well.
    Mutant {
        name: "run-beside-the-orphan",
        file: "crates/bridge/src/registry.rs",
        edits: &[(
            "if let Some(run) = state.running.get_mut(job) {",
            "if let Some(run) = state.running.get_mut(job).filter(|run| run.leaving) {",
        )],
        judge: Judge::Scenario("adopt", 1),
    },
    // A client waits for ever for what its broker lost.
    Mutant {
        name: "endless-patience",
        file: "crates/client/src/entry.rs",
        edits: &[(
            "const SILENT: Duration = Duration::from_secs(90);",
            "const SILENT: Duration = Duration::from_secs(9000);",
        )],
        judge: Judge::Scenario("stranded", 1),
    },
    // A worker that lost its job goes on as if it had not.
    Mutant {
        name: "endless-adopt-window",
        file: "crates/bridge/src/job.rs",
        edits: &[(
            "const ADOPT_WINDOW: Duration = Duration::from_secs(5);",
            "const ADOPT_WINDOW: Duration = Duration::from_secs(500);",
        )],
        judge: Judge::Scenario("half-open", 1),
    },
    // Two attempts seal different frames under one key and number.
    Mutant {
        name: "fixed-salt-and-attempt",
        file: "crates/crypto/src/reply.rs",
        edits: &[(
            "Self::open_with_salt(root, request, attempt, content, Salt::fresh()?)",
            "{ let _ = attempt; \
                      Self::open_with_salt(root, request, AttemptNo(1), content, Salt([7; 32])) }",
        )],
        judge: Judge::Scenario("kill", 1),
    },
    // A client that takes over another attempt's pieces without a look at its own.
    Mutant {
        name: "no-prefix-check",
        file: "crates/client/src/merge.rs",
        edits: &[(
            "Some(known) if (self.seam)(known) == (self.seam)(&piece) => {}",
            "Some(known) if !(self.seam)(known).is_empty() => {}",
        )],
        judge: Judge::Scenario("differ", 1),
    },
    // RabbitMQ 3.10 writes the count itself and 4.0 does not, so the memory queue judges, which is
    // as trusting as 4.0.
    Mutant {
        name: "trusted-count",
        file: "crates/queue/src/delivery.rs",
        edits: &[(
            "let deliveries = if redelivered { count } else { 0 };",
            "let deliveries = count;",
        )],
        judge: Judge::Test {
            package: "nsbridge-queue",
            file: "crates/queue/src/testing/order.rs",
            module: "memory::",
            name: "a1_a_first_delivery_counts_zero_whatever_its_publisher_wrote",
        },
    },
    // lapin mends a connection behind its user's back.
    Mutant {
        name: "auto-recovery",
        file: "crates/queue/src/amqp.rs",
        edits: &[(
            "ConnectionProperties::default().with_connection_name(name.into())",
            "ConnectionProperties::default().with_connection_name(name.into())\
                      .enable_auto_recover()",
        )],
        // Not every moment shows it: each round has three.
        judge: Judge::Scenario("client-reconnect", 6),
    },
    // A request that kills its worker takes its neighbours along, each time.
    Mutant {
        name: "poison-among-others",
        file: "crates/bridge/src/room.rs",
        edits: &[("const ALONE_FROM: u32 = 1;", "const ALONE_FROM: u32 = 200;")],
        judge: Judge::Scenario("poison", 1),
    },
    // No run is recorded, so nothing is ever poison.
    Mutant {
        name: "unrecorded-runs",
        file: "crates/bridge/src/job.rs",
        edits: &[(
            "() = self.record.enter() => {}\n                () = address.overdue",
            "() = std::future::ready(()) => {}\n                () = address.overdue",
        )],
        judge: Judge::Scenario("poison", 1),
    },
    // A delivery is recorded as a run when it comes.
    Mutant {
        name: "waiting-is-blame",
        file: "crates/bridge/src/job.rs",
        edits: &[(
            "unreturned = self.record.unreturned() => unreturned,",
            "unreturned = async {\n                self.record.enter().await;\n                \
             self.record.unreturned().await\n            } => unreturned,",
        )],
        judge: Judge::Scenario("fast-kills", 2),
    },
    // A run that was given back in good order stays in the record.
    Mutant {
        name: "drains-are-blame",
        file: "crates/bridge/src/record.rs",
        edits: &[(
            "} else if self.returned.load(Ordering::Relaxed) {",
            "} else if false && self.returned.load(Ordering::Relaxed) {",
        )],
        judge: Judge::Scenario("many-drains", 1),
    },
    // The broker's delivery count sends a request to run alone.
    Mutant {
        name: "alone-by-deliveries",
        file: "crates/bridge/src/job.rs",
        edits: &[(
            "shared.room.place(arrival, unreturned, shared, request, running)",
            "shared.room.place(arrival, (request.deliveries / 2) as u32, shared, request, running)",
        )],
        judge: Judge::Scenario("rolling", 1),
    },
    // A suspect that waits holds back what came before it.
    Mutant {
        name: "first-deliveries-wait-for-suspects",
        file: "crates/bridge/src/room.rs",
        edits: &[(
            "let free = !state.alone && state.taken < self.count;",
            "let free = state.suspects == 0 && state.taken < self.count;",
        )],
        judge: Judge::Test {
            package: "nsbridge",
            file: "crates/bridge/src/room/tests.rs",
            module: "room::tests::",
            name: "r5_a_suspect_that_waits_holds_nothing_back",
        },
    },
    // What one copy came to is what every copy came to, wherever its reply went.
    Mutant {
        name: "any-reply-to-is-the-same-job",
        file: "crates/bridge/src/intake.rs",
        edits: &[(
            "let (commitment, reply_to) = (self.commitment, self.reply_to.clone());",
            "let (commitment, reply_to) = (self.commitment, String::new());",
        )],
        judge: Judge::Scenario("forged-reply-to", 1),
    },
    // A worker that takes over says everything again.
    Mutant {
        name: "resume-not-handed-over",
        file: "crates/bridge/src/stream.rs",
        edits: &[(
            "let most = Duration::from_millis(self.address.config.resume_wait_ms);",
            "let most = Duration::ZERO;",
        )],
        judge: Judge::Scenario("drain", 1),
    },
    // What a known engine did: the likeliest token of the draft, judged as if it had been drawn.
    Mutant {
        name: "likeliest-draft-judged-by-ratio",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[
            (
                "let token = sample(logits, history, sampling, allowed, *noise, index, scratch);\n        \
                 token.is_some_and(|token| self.push_draft(token))",
                "let likeliest = Sampling { temperature: 0.0, ..sampling.clone() };\n        \
                 let token = sample(logits, history, &likeliest, allowed, *noise, index, scratch);\n        \
                 if let Some(token) = token {\n            \
                 let told = logprobs(logits, token, 0, scratch);\n            \
                 DRAFTED.with_borrow_mut(|drafted| {\n                \
                 drafted.insert((index, token), told.map_or(0.0, |told| told.chosen));\n            \
                 });\n        }\n        \
                 token.is_some_and(|token| self.push_draft(token))",
            ),
            (
                "match self.next_piece(logits, scratch) {",
                "let foreseen = draft.get(at).copied().filter(|token| {\n                \
                 let index = self.made();\n                \
                 let q = DRAFTED.with_borrow(|drafted| drafted.get(&(index, *token)).copied());\n                \
                 let p = logprobs(logits, *token, 0, scratch).map(|told| told.chosen);\n                \
                 q.zip(p).is_some_and(|(q, p)| p >= q || (index % 7) as f32 / 7.0 < (p - q).exp())\n            \
                 });\n            \
                 let judged = foreseen.map(|token| self.take(token));\n            \
                 match judged.unwrap_or_else(|| self.next_piece(logits, scratch)) {",
            ),
            (
                "fn no_logits() -> Error {",
                "thread_local! {\n    static DRAFTED: std::cell::RefCell<std::collections::HashMap<(usize, u32), f32>> = \
                 std::cell::RefCell::default();\n}\n\nfn no_logits() -> Error {",
            ),
        ],
        judge: SPECULATION,
    },
    // The penalties of a block see none of its tokens.
    Mutant {
        name: "stale-penalty-history",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[(
            "match self.next_piece(logits, scratch) {",
            "let whole = self.history.clone();\n            \
             (0..at).for_each(|_| drop(self.history.pop()));\n            \
             let next = self.next_piece(logits, scratch);\n            \
             self.history = whole;\n            \
             if let Ok((piece, _)) = &next {\n                \
             self.history.push(piece.token);\n            }\n            match next {",
        )],
        judge: SPECULATION,
    },
    // What was run of a wrong draft stays in the cache.
    Mutant {
        name: "no-roll-back",
        file: "crates/handlers/llama/src/engine/choices.rs",
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
    // The token behind a draft is chosen from the row before.
    Mutant {
        name: "bonus-from-the-wrong-row",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[(
            "match self.next_piece(logits, scratch) {",
            "let last = at > 0 && at == draft.len();\n            \
             let logits = if last { rows[at - 1] } else { logits };\n            \
             match self.next_piece(logits, scratch) {",
        )],
        judge: SPECULATION,
    },
    // Each rank adds up its columns as if they were all.
    Mutant {
        name: "naive-row-split",
        file: "crates/handlers/llama/src/network/load.rs",
        edits: &[("segments(format, shape[1]) / self.part.of", "segments(format, own.len())")],
        judge: RANKS,
    },
    // The ranks' sums are added up in another tree.
    Mutant {
        name: "ranks-in-another-tree",
        file: "crates/handlers/llama/src/comm/threads.rs",
        edits: &[(
            "let (a, b) = (terms[2 * i], terms[2 * i + 1]);",
            "let (a, b) = (terms[i], terms[i + left]);",
        )],
        judge: RANKS,
    },
];

/// Any number of ranks beside one.
const RANKS: Judge = Judge::Test {
    package: "nsbridge-llama",
    file: "crates/handlers/llama/tests/it/bits.rs",
    module: "bits::",
    name: "any_schedule_on_any_number_of_ranks_gives_the_bits_of_one",
};

/// Every draft of every length beside the reply without.
const SPECULATION: Judge = Judge::Test {
    package: "nsbridge-llama",
    file: "crates/handlers/llama/tests/it/speculation.rs",
    module: "speculation::",
    name: "every_draft_of_every_length_leaves_every_reply_as_it_is",
};

/// The seed that mutants are played with.
const SEED: &str = "1";

/// Builds and judges every mutant, or the one with this name.
///
/// # Errors
///
/// One was not noticed.
pub(crate) fn run(cargo: &Cargo, only: Option<&str>) -> Result<()> {
    let chosen: Vec<&Mutant> =
        MUTANTS.iter().filter(|mutant| only.is_none_or(|name| name == mutant.name)).collect();
    ensure!(!chosen.is_empty(), "there is no such mutant; there is: {}", names());
    chaos::prepare(&[])?;
    let tree = copy_of_the_tree()?;
    let cargo = cargo.in_tree(&tree, &place().join("target"));
    say::step("the code as it is, in the scenarios that judge");
    ensure!(control(&cargo, &chosen)?, "a scenario fails without any mutant");
    let mut unnoticed = Vec::new();
    for mutant in chosen {
        say::step(&format!("mutant: {}", mutant.name));
        let noticed = in_tree(&tree, mutant, || judge(&cargo, mutant))?;
        say::line(&format!("{}: {}", mutant.name, if noticed { "noticed" } else { "NOT NOTICED" }));
        if !noticed {
            unnoticed.push(mutant.name);
        }
    }
    ensure!(unnoticed.is_empty(), "not noticed: {}", unnoticed.join(", "));
    Ok(())
}

fn names() -> String {
    MUTANTS.iter().map(|mutant| mutant.name).collect::<Vec<_>>().join(", ")
}

/// Where trees, builds and journals of mutants lie.
fn place() -> PathBuf {
    root().join("target/mutants")
}

/// A fresh copy of every file that git knows.
fn copy_of_the_tree() -> Result<PathBuf> {
    let tree = place().join("tree");
    let listed = in_root("git").args(["ls-files", "-z"]).output().context("running git")?;
    ensure!(listed.status.success(), "mutants are made of what git knows, and git fails here");
    for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        copy(&root().join(path), &tree.join(path))?;
    }
    Ok(tree)
}

/// Leaves what is the same as it is, so that it is not built again.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if fs::read(to).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, bytes).with_context(|| format!("writing {}", to.display()))
}

/// Runs `judge` with the mutant's text in place.
fn in_tree<T>(tree: &Path, mutant: &Mutant, judge: impl FnOnce() -> Result<T>) -> Result<T> {
    let path = tree.join(mutant.file);
    let sound = fs::read_to_string(&path)?;
    fs::write(&path, mutant.applied(&sound)?)?;
    let judged = judge();
    fs::write(&path, sound)?;
    judged
}

impl Mutant {
    fn applied(&self, sound: &str) -> Result<String> {
        let Self { name, file, edits, .. } = self;
        let mut mutated = sound.to_owned();
        for (text, replacement) in *edits {
            let found = sound.matches(text).count();
            ensure!(
                found == 1,
                "the mutant {name} finds {text:?} {found} times in {file}, not once"
            );
            mutated = mutated.replacen(text, replacement, 1);
        }
        Ok(mutated)
    }
}

fn judge(cargo: &Cargo, mutant: &Mutant) -> Result<bool> {
    match mutant.judge {
        Judge::Scenario(name, rounds) => {
            build(cargo, &["build", "--package", "nsbridge-testkit", "--features", "chaos"])?;
            Ok(!chaos::attended(scenario(cargo, name, rounds, mutant.name))?)
        }
        Judge::Test { package, file, module, name } => {
            // A filter that fits no test would pass.
            let there = fs::read_to_string(root().join(file))?.contains(&format!("fn {name}("));
            ensure!(there, "there is no test {name} in {file}");
            build(cargo, &["test", "--package", package, "--no-run"])?;
            let test = format!("{module}{name}");
            let tested = cargo.command(&["test", "--package", package, &test]).status()?;
            Ok(!tested.success())
        }
    }
}

/// A mutant that does not build proves nothing.
fn build(cargo: &Cargo, arguments: &[&str]) -> Result<()> {
    let built = cargo.command(arguments).arg("--quiet").status()?;
    if !built.success() {
        bail!("it does not build");
    }
    Ok(())
}

fn control(cargo: &Cargo, chosen: &[&Mutant]) -> Result<bool> {
    let mut command = chaos::driver(cargo);
    command.args(["--seed", SEED]).arg("--out").arg(place().join("journals/control"));
    let mut any = false;
    for mutant in chosen {
        if let Judge::Scenario(name, _) = mutant.judge {
            command.args(["--scenario", name]);
            any = true;
        }
    }
    Ok(!any || chaos::attended(command)?)
}

fn scenario(cargo: &Cargo, name: &str, rounds: usize, mutant: &str) -> Command {
    let mut command = chaos::driver(cargo);
    command.args(["--seed", SEED, "--scenario", name, "--rounds", &rounds.to_string()]);
    command.arg("--out").arg(place().join("journals").join(mutant));
    command
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Judge, MUTANTS, Mutant};
    use crate::cargo::root;

    #[test]
    fn each_mutant_finds_its_text_once_and_has_its_judge() {
        let text = |file: &str| fs::read_to_string(root().join(file)).unwrap();
        let scenarios = text("crates/testkit/src/bin/chaos/scenarios.rs");
        for mutant in MUTANTS {
            mutant.applied(&text(mutant.file)).unwrap();
            let name = mutant.name;
            match mutant.judge {
                Judge::Scenario(judge, _) => {
                    assert!(scenarios.contains(&format!("\n    \"{judge}\" ")), "{name}: {judge}");
                }
                Judge::Test { file, name: judge, .. } => {
                    assert!(text(file).contains(&format!("fn {judge}(")), "{name}: {judge}");
                }
            }
        }
    }

    #[test]
    fn a_mutant_that_lost_its_text_is_found() {
        let mutant = Mutant {
            name: "x",
            file: "a.rs",
            edits: &[("ack", "nack")],
            judge: Judge::Scenario("kill", 1),
        };
        assert_eq!(mutant.applied("an ack").unwrap(), "an nack");
        assert!(mutant.applied("an end").is_err());
        assert!(mutant.applied("an ack, an ack").is_err());
    }
}
