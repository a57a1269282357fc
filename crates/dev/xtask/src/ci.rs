//! `cargo xtask ci`: exactly the checks that the continuous integration runs.

use std::env;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cargo::{self, Cargo};
use crate::{attack, chaos, lint, output, page, test};

pub(crate) fn run() -> Result<()> {
    let mut cargo = Cargo::here().with("CARGO_INCREMENTAL", "0");
    // A shared target folder lets a fresh clone reuse the dependencies of earlier builds.
    if env::var_os("CI").is_some() && env::var_os("CARGO_TARGET_DIR").is_none() {
        let target = cargo::cache()?.join("target");
        output::line(&format!("building in {}", target.display()));
        cargo = cargo.with("CARGO_TARGET_DIR", target);
    }
    let parts: [(&str, &dyn Fn() -> Result<()>); 5] = [
        ("lint", &|| lint::run(&cargo)),
        ("test", &|| test::run(&cargo, &[])),
        ("page", &|| page::run(&cargo, &page::Arguments::default())),
        ("chaos", &|| chaos::run(&cargo, &chaos::Arguments::after_tests())),
        ("attack", &|| attack::run(&cargo, &attack::Arguments::after_tests())),
    ];
    // All parts run, even after one has failed.
    let (mut failed, mut durations) = (Vec::new(), Vec::new());
    for (part, run) in parts {
        let start = Instant::now();
        failed.extend(run().err().map(|error| format!("{part}: {error:#}")));
        durations.push(format!("{part} {} s", start.elapsed().as_secs()));
    }
    output::line(&durations.join(", "));
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}
