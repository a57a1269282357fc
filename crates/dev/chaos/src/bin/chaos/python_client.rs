//! Kinds of client processes: in Rust, and in Python with and without asyncio.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Folder of the client programs, from the root of the repository.
const PROGRAMS: &str = "crates/dev/chaos/src/bin/chaos";

/// Sources of the Python client, from the root of the repository.
const SOURCES: &str = "python/src";

/// Scenarios whose callers use a gateway, and the one with clients of every kind: no other kind can take
/// the place of their client processes.
const WITHOUT_CLIENT: [&str; 5] = [
    "slow-reader",
    "replica-takes-over",
    "gateway-killed",
    "gateway-and-worker-killed",
    "client-reconnects-by-sequence",
];

/// Kind of a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rust,
    /// `nsbridge.AsyncClient` of the Python package.
    Asyncio,
    /// `nsbridge.Client` of the Python package.
    Blocking,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rust => "client",
            Self::Asyncio => "client.py",
            Self::Blocking => "blocking_client.py",
        }
    }

    /// Returns the program of a client in Python.
    pub(crate) fn program(self) -> Option<&'static str> {
        (self != Self::Rust).then_some(self.name())
    }
}

/// Returns true if the clients of a scenario may be of any kind.
pub(crate) fn has_client(scenario: &str) -> bool {
    !WITHOUT_CLIENT.contains(&scenario)
}

/// Returns a command that runs a client process in Python, with its log in a file.
pub(crate) fn client_command(
    dir: &Path,
    name: &str,
    program: &str,
    python: Option<&Path>,
    config: &Path,
) -> Result<Command> {
    let log = File::create(dir.join(format!("{name}.log")))?;
    let python = python.context("a client in Python needs `--python`, its interpreter")?;
    let mut command = Command::new(python);
    command.arg("-B").arg(in_repository(PROGRAMS).join(program)).arg(config);
    command.env("PYTHONPATH", in_repository(SOURCES));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    Ok(command)
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
}

#[cfg(test)]
mod tests {
    use super::{Kind, PROGRAMS, SOURCES, WITHOUT_CLIENT, in_repository};
    use crate::scenarios::SCENARIOS;

    #[test]
    fn the_programs_their_sources_and_the_scenarios_exist() {
        for program in [Kind::Asyncio, Kind::Blocking].map(|kind| kind.program().unwrap()) {
            assert!(in_repository(PROGRAMS).join(program).is_file(), "{program}");
        }
        assert!(in_repository(SOURCES).is_dir());
        for name in WITHOUT_CLIENT {
            assert!(SCENARIOS.iter().any(|scenario| scenario.name == name), "{name}");
        }
    }
}
