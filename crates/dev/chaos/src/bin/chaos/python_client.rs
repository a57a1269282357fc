//! Client process in Python, in place of the one in Rust.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

/// Program of the client process, from the root of the repository.
const PROGRAM: &str = "crates/dev/chaos/src/bin/chaos/client.py";

/// Sources of the Python client, from the root of the repository.
const SOURCES: &str = "python/src";

/// Scenarios whose callers use a gateway: they have no client process.
const WITHOUT_CLIENT: [&str; 4] = [
    "replica-takes-over",
    "gateway-killed",
    "gateway-and-worker-killed",
    "client-reconnects-by-sequence",
];

/// Returns true if a scenario has a client process.
pub(crate) fn has_client(scenario: &str) -> bool {
    !WITHOUT_CLIENT.contains(&scenario)
}

/// Returns a command that runs a client process in Python, with its log in a file.
pub(crate) fn client_command(
    dir: &Path,
    name: &str,
    python: &Path,
    config: &Path,
) -> Result<Command> {
    let log = File::create(dir.join(format!("{name}.log")))?;
    let mut command = Command::new(python);
    command.arg("-B").arg(in_repository(PROGRAM)).arg(config);
    command.env("PYTHONPATH", in_repository(SOURCES));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    Ok(command)
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
}

#[cfg(test)]
mod tests {
    use super::{PROGRAM, SOURCES, WITHOUT_CLIENT, in_repository};
    use crate::scenarios::SCENARIOS;

    #[test]
    fn the_program_its_sources_and_the_scenarios_exist() {
        assert!(in_repository(PROGRAM).is_file() && in_repository(SOURCES).is_dir());
        for name in WITHOUT_CLIENT {
            assert!(SCENARIOS.iter().any(|scenario| scenario.name == name), "{name}");
        }
    }
}
