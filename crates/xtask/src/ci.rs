//! `cargo xtask ci`: what the continuous integration runs, and nothing else.

use std::env;

use anyhow::{Result, bail};

use crate::cargo::{self, Cargo};
use crate::{lint, say, test};

pub(crate) fn run() -> Result<()> {
    let mut cargo = Cargo::here().with("CARGO_INCREMENTAL", "0");
    // A fresh clone on a machine that has built before builds only what is ours.
    if env::var_os("CI").is_some() && env::var_os("CARGO_TARGET_DIR").is_none() {
        let target = cargo::cache()?.join("target");
        say::line(&format!("building in {}", target.display()));
        cargo = cargo.with("CARGO_TARGET_DIR", target);
    }
    // A lint is no reason not to learn what the tests say.
    let linted = lint::run(&cargo);
    let tested = test::run(&cargo, &[]);
    match (linted, tested) {
        (Ok(()), tested) => tested,
        (Err(lint), Ok(())) => Err(lint.context("lint")),
        (Err(lint), Err(test)) => bail!("lint: {lint:#}; test: {test:#}"),
    }
}
