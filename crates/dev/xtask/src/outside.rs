//! `cargo xtask outside`: runs unmodified clients, test suites and load generators against a gateway.
//!
//! Each suite has a folder in `outside` with the packages that it needs, a program that runs it, and
//! the list of the tests that are left out, each with a reason. `checkov` alone needs no gateway.

mod checkov;
mod left_out;
mod place;
mod report;
mod suite;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use crate::broker::Broker;
use crate::cargo::Cargo;
use crate::{machine, output};

use place::Place;
use report::Report;
use suite::{SUITES, Suite};

/// Selection of suites.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only these suites, such as `openai-npm`.
    suites: Vec<String>,
    /// Uses this build of the `nsbridge` command instead of a new one.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs the suites. Each has a worker, with the bundled model or SmolLM2, and a gateway of its own.
///
/// # Errors
///
/// Returns an error if a test fails that is not left out, if a test is left out that does not exist,
/// or if a suite cannot be run.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    let mut failed = Vec::new();
    let (suites, with_checkov) = selected(&arguments.suites)?;
    if with_checkov {
        output::step("outside checkov");
        if let Err(why) = checkov::run() {
            output::line(&format!("{}: {why:#}", checkov::NAME));
            failed.push(checkov::NAME);
        }
    }
    if !suites.is_empty() {
        failed.extend(beside_gateways(cargo, arguments, suites)?);
    }
    ensure!(failed.is_empty(), "failed: {}; the reasons are above", failed.join(", "));
    Ok(())
}

/// Runs the suites that need a gateway and returns the names of those that failed.
fn beside_gateways(
    cargo: &Cargo,
    arguments: &Arguments,
    suites: Vec<&'static Suite>,
) -> Result<Vec<&'static str>> {
    machine::rabbitmq::ready()?;
    let binary = if let Some(file) = &arguments.binary {
        std::path::absolute(file)?
    } else {
        output::step("the nsbridge command, for release");
        cargo.release()?
    };
    let broker = Broker::start(cargo)?;
    let mut failed = Vec::new();
    for suite in suites {
        output::step(&format!("outside {}", suite.name));
        let reported = Place::start(&binary, broker.url(), suite)
            .and_then(|place| suite.run(|command| place.tell(command), place.log()))
            .and_then(|report| judge(suite, &report));
        match reported {
            Ok(true) => {}
            Ok(false) => failed.push(suite.name),
            Err(why) => {
                output::line(&format!("{}: {why:#}", suite.name));
                failed.push(suite.name);
            }
        }
    }
    Ok(failed)
}

/// Returns the suites with these names, and true if checkov is among them; an empty list selects all.
fn selected(names: &[String]) -> Result<(Vec<&'static Suite>, bool)> {
    if names.is_empty() {
        return Ok((SUITES.iter().collect(), true));
    }
    let mut suites = Vec::new();
    for name in names.iter().filter(|&name| name != checkov::NAME) {
        let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
            let known: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
            bail!("there is no suite `{name}`; there is: {}, {}", known.join(", "), checkov::NAME);
        };
        suites.push(suite);
    }
    Ok((suites, names.iter().any(|name| name == checkov::NAME)))
}

/// Compares a report with the list of the suite, writes the result and returns true if it is good.
fn judge(suite: &Suite, report: &Report) -> Result<bool> {
    let list = left_out::read(&suite.folder().join("left-out.json"))?;
    let verdict = report.against(&list);
    let file = verdict.write(suite.name, report)?;
    for line in verdict.problems() {
        output::line(&line);
    }
    output::line(&format!("{}: {}; {}", suite.name, verdict.summary(report), file.display()));
    Ok(verdict.is_good())
}

#[cfg(test)]
mod tests {
    use super::selected;

    #[test]
    fn suites_are_selected_by_name() {
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            let found = selected(&names);
            found.map(|(suites, checkov)| {
                (suites.iter().map(|s| s.name).collect::<Vec<_>>(), checkov)
            })
        };
        assert_eq!(names(&["codex", "openai-npm"]).unwrap(), (vec!["codex", "openai-npm"], false));
        assert_eq!(names(&["checkov"]).unwrap(), (vec![], true));
        assert_eq!(names(&["checkov", "codex"]).unwrap(), (vec!["codex"], true));
        let (all, checkov) = names(&[]).unwrap();
        assert!(all.len() > 2 && checkov);
        let error = names(&["codecs"]).unwrap_err().to_string();
        assert!(error.contains("`codecs`") && error.contains("openai-npm"), "{error}");
    }
}
