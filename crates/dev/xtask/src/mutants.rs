//! `cargo xtask chaos --mutants`: mutation tests. Each mutant breaks one promise, and the scenario,
//! attack or test that judges it must fail.

mod list;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{Cargo, in_root, root};
use crate::{attack, chaos, output};
use list::{Judge, Mutant};

/// Environment variable with a fault in the durations of a scenario's workers or clients.
const TIMING: &str = "CHAOS_TIMING";

/// Seed of the scenarios that judge a mutant.
const SEED: &str = "1";

/// Builds and judges the mutants with these names; [`chaos::ALL`] stands for all that need no vLLM.
///
/// # Errors
///
/// Returns an error if a mutant is not detected, or if a name is unknown.
pub(crate) fn run(cargo: &Cargo, only: &[String]) -> Result<()> {
    for name in only {
        let known = name == chaos::ALL || list::all().any(|mutant| name == mutant.name);
        ensure!(known, "there is no mutant `{name}`; there is: {}", names());
    }
    let is_chosen = |mutant: &&Mutant| {
        let all = |name: &String| name == chaos::ALL && !mutant.needs_vllm();
        only.iter().any(|name| name == mutant.name || all(name))
    };
    let chosen: Vec<&Mutant> = list::all().filter(is_chosen).collect();
    chaos::prepare(&[])?;
    let tree = copy_of_the_tree()?;
    let cargo = cargo.in_tree(&tree, &place().join("target"));
    output::step("the code as it is, in the scenarios that judge");
    ensure!(control(&cargo, &chosen)?, "a scenario fails without any mutant");
    let mut unnoticed = Vec::new();
    for mutant in chosen {
        output::step(&format!("mutant: {}", mutant.name));
        let noticed = in_tree(&tree, mutant, || judge(&cargo, mutant))?;
        output::line(&format!(
            "{}: {}",
            mutant.name,
            if noticed { "noticed" } else { "NOT NOTICED" }
        ));
        if !noticed {
            unnoticed.push(mutant.name);
        }
    }
    ensure!(unnoticed.is_empty(), "not noticed: {}", unnoticed.join(", "));
    Ok(())
}

fn names() -> String {
    list::all().map(|mutant| mutant.name).collect::<Vec<_>>().join(", ")
}

/// Returns the folder for the source trees, builds and journals of mutants.
fn place() -> PathBuf {
    root().join("target/mutants")
}

/// Copies all files that git tracks and returns the folder of the copy.
fn copy_of_the_tree() -> Result<PathBuf> {
    let tree = place().join("tree");
    let listed = in_root("git").args(["ls-files", "-z"]).output().context("running git")?;
    ensure!(listed.status.success(), "mutants are made of what git knows, and git fails here");
    for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        copy(&root().join(path), &tree.join(path))?;
    }
    Ok(tree)
}

/// Copies a file only if it changed, so that cargo does not rebuild it.
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

/// Runs `judge` with the mutant's edits applied, and then restores the file.
fn in_tree<T>(tree: &Path, mutant: &Mutant, judge: impl FnOnce() -> Result<T>) -> Result<T> {
    let path = tree.join(mutant.file);
    let sound = fs::read_to_string(&path)?;
    fs::write(&path, mutant.applied(&sound)?)?;
    let judged = judge();
    fs::write(&path, sound)?;
    judged
}

impl Mutant {
    /// Returns true if the judge is the scenario that is played only when it is named.
    fn needs_vllm(&self) -> bool {
        matches!(self.judge, Judge::Scenario(chaos::VLLM, _))
    }

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
            Ok(!chaos::attended(scenario(cargo, name, rounds, mutant.name)?)?)
        }
        Judge::Timing(fault, name) => {
            let mut command = scenario(cargo, name, 1, mutant.name)?;
            command.env(TIMING, fault);
            Ok(!chaos::attended(command)?)
        }
        Judge::Attack(name, seconds) => {
            built(attack::build(cargo))?;
            Ok(!chaos::attended(attacked(cargo, name, seconds, mutant.name))?)
        }
        Judge::Test { package, file, module, name } => {
            // Cargo succeeds if a filter matches no test.
            let there = fs::read_to_string(root().join(file))?.contains(&format!("fn {name}("));
            ensure!(there, "there is no test {name} in {file}");
            // With all features, as in `cargo xtask test`: some tests need one.
            let features = cargo.features(&[package])?;
            let arguments = ["test", "--package", package, "--features", &features];
            build(cargo, &[&arguments[..], &["--no-run"]].concat())?;
            let test = format!("{module}{name}");
            let tested = cargo.command(&[&arguments[..], &[&test]].concat()).status()?;
            Ok(!tested.success())
        }
    }
}

/// Builds the mutant; a failed build is an error, since it proves nothing.
fn build(cargo: &Cargo, arguments: &[&str]) -> Result<()> {
    built(cargo.command(arguments))
}

fn built(mut command: Command) -> Result<()> {
    if !command.arg("--quiet").status()?.success() {
        bail!("it does not build");
    }
    Ok(())
}

fn control(cargo: &Cargo, chosen: &[&Mutant]) -> Result<bool> {
    let judge = |mutant: &&Mutant| match mutant.judge {
        Judge::Scenario(name, _) | Judge::Timing(_, name) => Some(name),
        Judge::Attack(..) | Judge::Test { .. } => None,
    };
    let scenarios: Vec<_> = chosen.iter().filter_map(judge).collect();
    if scenarios.is_empty() {
        return Ok(true);
    }
    let mut command = driver(cargo, "control")?;
    command.args(scenarios.iter().flat_map(|name| ["--scenario", name]));
    chaos::attended(command)
}

fn scenario(cargo: &Cargo, name: &str, rounds: usize, mutant: &str) -> Result<Command> {
    let mut command = driver(cargo, mutant)?;
    command.args(["--scenario", name, "--rounds", &rounds.to_string()]);
    Ok(command)
}

/// Builds the driver of scenarios; a failed build is an error, since it proves nothing.
fn driver(cargo: &Cargo, journals: &str) -> Result<Command> {
    let mut command = chaos::driver(cargo)?;
    chaos::with_python(&mut command)?;
    command.args(["--seed", SEED]).arg("--out").arg(place().join("journals").join(journals));
    Ok(command)
}

fn attacked(cargo: &Cargo, name: &str, seconds: u64, mutant: &str) -> Command {
    let mut command = attack::driver(cargo);
    command.args(["--seed", SEED, "--attacker", name]).arg(format!("--seconds={seconds}"));
    command.arg("--out").arg(place().join("journals").join(mutant));
    command
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Judge, Mutant, list};
    use crate::cargo::root;

    #[test]
    fn each_mutant_finds_its_text_once_and_has_its_judge() {
        let text = |file: &str| fs::read_to_string(root().join(file)).unwrap();
        let scenarios = text("crates/dev/chaos/src/bin/chaos/scenarios.rs");
        let attackers = ["tenant", "publisher", "broker", "folder", "prompt", "gateway"];
        for mutant in list::all() {
            mutant.applied(&text(mutant.file)).unwrap();
            let name = mutant.name;
            match mutant.judge {
                Judge::Scenario(judge, _) | Judge::Timing(_, judge) => {
                    assert!(scenarios.contains(&format!("\n    \"{judge}\" ")), "{name}: {judge}");
                }
                Judge::Attack(judge, _) => {
                    assert!(attackers.contains(&judge), "{name}: {judge}");
                    text(&format!("crates/dev/chaos/src/bin/attack/{judge}.rs"));
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
