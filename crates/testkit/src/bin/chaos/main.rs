//! The proof by faults: real workers, real clients, a real broker, faults at seeded moments, and a
//! checker that reads what all of them wrote.
//!
//! `cargo xtask chaos` builds and runs this; `docs/reliability.md` says what it proves.

#![expect(clippy::print_stdout, reason = "what came of it is for the person who waits")]
#![expect(clippy::print_stderr, reason = "so is how far it is")]

mod check;
mod client;
mod clock;
mod drive;
mod engine;
mod excerpt;
mod follow;
mod hold;
mod journal;
mod order;
mod plan;
mod process;
mod random;
mod scenarios;
mod stage;
mod table;
mod tap;
mod watched;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// Breaks things at seeded moments, and checks what came of it.
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
    /// Reads the journals below a folder again, and says what they prove.
    Check {
        /// A folder that an earlier run wrote, or one above.
        dir: PathBuf,
    },
    /// One worker; the driver starts it.
    #[command(hide = true)]
    Worker { config: PathBuf },
    /// One client; the driver starts it.
    #[command(hide = true)]
    Client { config: PathBuf },
}

fn main() -> ExitCode {
    let Arguments { part, drive } = Arguments::parse();
    let done = match part {
        None => drive::run(&drive),
        Some(Part::Check { dir }) => check_again(&dir),
        Some(Part::Worker { config }) => return worker::run(&config),
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
