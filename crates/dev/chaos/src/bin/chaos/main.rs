//! Fault-injection tests with real workers, real clients and a real broker. Faults come at seeded
//! moments, and a checker reads the journal that all processes write.
//!
//! `cargo xtask chaos` builds and runs this program; `docs/reliability.md` lists the guarantees
//! that it checks.

#![expect(clippy::print_stdout, reason = "what came of it is for the person who waits")]
#![expect(clippy::print_stderr, reason = "so is how far it is")]

mod calls;
mod check;
mod client;
mod clock;
mod document;
mod drive;
mod engine;
mod failure_excerpt;
mod follow;
mod gate;
mod gateway;
mod http_caller;
mod journal;
mod order;
mod plan;
mod process;
mod python_client;
mod python_model;
mod random;
mod scenarios;
mod servers;
mod stage;
mod suspended_thread;
mod table;
mod timing;
mod told;
mod watched;
mod wiretap;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// Injects faults at seeded moments and checks the outcome
#[derive(Debug, Parser)]
#[command(name = "chaos", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    drive: drive::Drive,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Checks the journals below a folder again
    Check {
        /// Folder that an earlier run wrote, or a folder above it
        dir: PathBuf,
    },
    /// Runs one worker; started by the driver
    #[command(hide = true)]
    Worker { config: PathBuf },
    /// Runs one gateway; started by the driver
    #[command(hide = true)]
    Gateway { config: PathBuf },
    /// Runs one client; started by the driver
    #[command(hide = true)]
    Client { config: PathBuf },
}

fn main() -> ExitCode {
    let Arguments { part, drive } = Arguments::parse();
    let done = match part {
        None => drive::run(&drive),
        Some(Part::Check { dir }) => check_again(&dir),
        Some(Part::Worker { config }) => return worker::run(&config),
        Some(Part::Gateway { config }) => gateway::run(&config).map(|()| true),
        Some(Part::Client { config }) => client::run(&config).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check_again(dir: &Path) -> Result<bool> {
    let mut reports = Vec::new();
    for round in journal::rounds_below(dir)? {
        reports.push(check::read(&round).with_context(|| format!("in {}", round.display()))?);
    }
    anyhow::ensure!(!reports.is_empty(), "there is no journal below {}", dir.display());
    Ok(table::print(reports))
}
