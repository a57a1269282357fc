//! `cargo xtask fuzz`: runs libFuzzer on the parsers of untrusted files.
//!
//! Builds the targets with the flags of cargo-fuzz, but with the stable compiler. The
//! instrumentation is LLVM's, and `RUSTC_BOOTSTRAP` permits the flag of the address sanitizer.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Cargo, in_root, root};
use crate::output;

/// Folder of the fuzz targets.
const ROOM: &str = "crates/dev/testkit/fuzz";

/// Compiler flags of cargo-fuzz.
const INSTRUMENTS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 -Zsanitizer=address --cfg fuzzing";

/// Limits of one input: 10 s, one allocation of 256 MiB, 2048 MiB in total, 16 KiB of input. An
/// input that exceeds the time or memory limits is a finding.
const LIMITS: [&str; 4] =
    ["-timeout=10", "-malloc_limit_mb=256", "-rss_limit_mb=2048", "-max_len=16384"];

/// Selection of targets, and the time for each.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only this target.
    target: Option<String>,
    /// Time for each target, in seconds.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Runs the target on this file only, for instance on a finding.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
}

/// Runs the fuzz targets.
///
/// # Errors
///
/// Returns an error if a target found something or cannot be built.
pub(crate) fn run(cargo: &Cargo, arguments: &Arguments) -> Result<()> {
    let known = targets()?;
    let wanted: Vec<String> = match &arguments.target {
        None => known,
        Some(name) => {
            let list = known.join(", ");
            ensure!(known.contains(name), "there is no target `{name}`; there is: {list}");
            vec![name.clone()]
        }
    };
    output::step("building the fuzz targets");
    let built = build(cargo)?;
    let folder = root().join("target/fuzz");
    let mut seeds = in_root(built.join("seeds"));
    seeds.arg(folder.join("seeds"));
    ensure!(cargo::run(seeds)?, "the seeds were not written");
    let mut found = Vec::new();
    for name in wanted {
        output::step(&format!("fuzz {name}"));
        if !fuzz(&built.join(&name), &folder, &name, arguments)? {
            found.push(name);
        }
    }
    let found = found.join(", ");
    ensure!(
        found.is_empty(),
        "found in {found}: `--input FILE` with the file named above runs it again"
    );
    Ok(())
}

/// Returns the names of the targets, which are the names of their files.
fn targets() -> Result<Vec<String>> {
    let folder = root().join(ROOM).join("fuzz_targets");
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| name(entry.path())).collect();
    names.sort();
    Ok(names)
}

/// Builds all targets and returns the folder with the binaries.
fn build(cargo: &Cargo) -> Result<PathBuf> {
    let room = root().join(ROOM);
    // The same lock file makes the fuzzed versions of all dependencies the shipped ones.
    fs::copy(root().join("Cargo.lock"), room.join("Cargo.lock")).context("copying Cargo.lock")?;
    let target = cargo.target_dir().join("fuzz-build");
    let host = host()?;
    // With an explicit target, build scripts and macros are built without instrumentation.
    let mut command = cargo.command(&["build", "--release", "--target", &host, "--manifest-path"]);
    command.arg(room.join("Cargo.toml")).arg("--target-dir").arg(&target);
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", INSTRUMENTS);
    ensure!(
        cargo::run(command)?,
        "the fuzz targets cannot be built; libFuzzer needs a C++ compiler"
    );
    Ok(target.join(host).join("release"))
}

/// Returns the target triple of this machine.
fn host() -> Result<String> {
    let output = in_root("rustc").arg("-vV").output().context("starting rustc")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it runs on")
}

/// Runs a target and returns true if it found nothing.
fn fuzz(binary: &Path, folder: &Path, name: &str, arguments: &Arguments) -> Result<bool> {
    let (corpus, findings) = (folder.join("corpus").join(name), folder.join("findings"));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let mut command = in_root(binary);
    command.args(LIMITS).arg("-print_final_stats=1");
    command.arg(format!("-artifact_prefix={}/{name}-", findings.display()));
    match &arguments.input {
        // The target runs in the repository's root, so the path must be absolute.
        Some(input) => command.arg(std::path::absolute(input)?),
        // libFuzzer writes new inputs to the first folder and only reads the second.
        None => command
            .arg(format!("-max_total_time={}", arguments.seconds))
            .args([corpus, folder.join("seeds").join(name)]),
    };
    cargo::run(command)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ROOM, root, targets};

    const TARGETS: [&str; 8] = [
        "config",
        "format",
        "frames",
        "gguf",
        "manifest",
        "safetensors",
        "tokenizer",
        "vocabulary",
    ];

    #[test]
    fn each_target_is_a_binary_of_the_room() {
        let manifest = fs::read_to_string(root().join(ROOM).join("Cargo.toml")).unwrap();
        let names = targets().unwrap();
        assert_eq!(names, TARGETS);
        for name in names {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
        }
    }
}
