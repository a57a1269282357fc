//! `cargo xtask fuzz`: libFuzzer on the parsers of strangers' files.
//!
//! Built as cargo-fuzz builds, by the stable compiler: its instruments are LLVM's, and the address
//! sanitizer is asked for by a flag that needs `RUSTC_BOOTSTRAP`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Cargo, in_root, root};
use crate::say;

/// Where the targets are.
const ROOM: &str = "crates/testkit/fuzz";

/// What cargo-fuzz passes.
const INSTRUMENTS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 -Zsanitizer=address --cfg fuzzing";

/// An input that takes longer than this, in seconds, is a finding; so is one that takes more memory
/// than this, in MiB, in one piece or in all.
const LIMITS: [&str; 4] =
    ["-timeout=10", "-malloc_limit_mb=256", "-rss_limit_mb=2048", "-max_len=16384"];

/// What is to be fuzzed, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this target.
    target: Option<String>,
    /// How long each target runs.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Runs the target on this file alone, such as one that was found.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
}

/// Fuzzes.
///
/// # Errors
///
/// Something was found, or the targets cannot be built here.
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
    say::step("building the fuzz targets");
    let built = build(cargo)?;
    let folder = root().join("target/fuzz");
    let mut seeds = in_root(built.join("seeds"));
    seeds.arg(folder.join("seeds"));
    ensure!(cargo::run(seeds)?, "the seeds were not written");
    let mut found = Vec::new();
    for name in wanted {
        say::step(&format!("fuzz {name}"));
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

/// The targets, by their files.
fn targets() -> Result<Vec<String>> {
    let folder = root().join(ROOM).join("fuzz_targets");
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| name(entry.path())).collect();
    names.sort();
    Ok(names)
}

/// Builds all targets; gives the folder with the binaries.
fn build(cargo: &Cargo) -> Result<PathBuf> {
    let room = root().join(ROOM);
    // What is fuzzed is what is shipped: the same versions of everything.
    fs::copy(root().join("Cargo.lock"), room.join("Cargo.lock")).context("copying Cargo.lock")?;
    let target = cargo.target_dir().join("fuzz-build");
    let host = host()?;
    // Named, so that build scripts and macros are built without instruments.
    let mut command = cargo.command(&["build", "--release", "--target", &host, "--manifest-path"]);
    command.arg(room.join("Cargo.toml")).arg("--target-dir").arg(&target);
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", INSTRUMENTS);
    ensure!(
        cargo::run(command)?,
        "the fuzz targets cannot be built; libFuzzer needs a C++ compiler"
    );
    Ok(target.join(host).join("release"))
}

/// The machine's own triple.
fn host() -> Result<String> {
    let output = in_root("rustc").arg("-vV").output().context("starting rustc")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it runs on")
}

/// Runs a target; whether it found nothing.
fn fuzz(binary: &Path, folder: &Path, name: &str, arguments: &Arguments) -> Result<bool> {
    let (corpus, findings) = (folder.join("corpus").join(name), folder.join("findings"));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let mut command = in_root(binary);
    command.args(LIMITS).arg("-print_final_stats=1");
    command.arg(format!("-artifact_prefix={}/{name}-", findings.display()));
    match &arguments.input {
        // It runs in the root, wherever we were called.
        Some(input) => command.arg(std::path::absolute(input)?),
        // It adds to the first folder, and only reads the second.
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

    #[test]
    fn each_target_is_a_binary_of_the_room() {
        let manifest = fs::read_to_string(root().join(ROOM).join("Cargo.toml")).unwrap();
        let names = targets().unwrap();
        assert_eq!(names, ["frames", "gguf", "manifest", "safetensors"]);
        for name in names {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
        }
    }
}
