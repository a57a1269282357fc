//! Child processes of a worker: their environment and their end.

use std::env;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

/// Prefix of the environment variables that configure the worker. They may hold keys and passwords.
const OF_THE_WORKER: &[u8] = b"NSBRIDGE_";

/// Variables of the worker's service manager: a child that speaks to it would speak for the worker.
const OF_THE_SERVICE_MANAGER: [&[u8]; 3] = [b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"];

/// Removes the variables from the environment of a child that are the worker's alone.
pub fn remove_worker_variables(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let bytes = name.as_bytes();
        if bytes.starts_with(OF_THE_WORKER) || OF_THE_SERVICE_MANAGER.contains(&bytes) {
            command.env_remove(name);
        }
    }
}

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// Code that the process returned.
    Code(i32),
    /// Number of the signal that ended it.
    Signal(i32),
    /// Nothing is known.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(9) => f.write_str("signal 9, as when memory runs out"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("no exit status"),
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        let code = status.code().map(Self::Code);
        code.or_else(|| status.signal().map(Self::Signal)).unwrap_or(Self::Unknown)
    }
}
