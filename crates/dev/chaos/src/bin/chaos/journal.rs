//! Journal of a round: one JSON object a line, in one file that every process of the round appends
//! to.
//!
//! Each line is one write to a file opened with `O_APPEND`. Lines of several processes therefore do
//! not interleave, and lines written before a process was killed are kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nsbridge_protocol::FinishReason;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::plan::Plan;

/// File name of the journal in the folder of a round.
pub(crate) const FILE: &str = "journal.jsonl";

/// Line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Time of the event, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) what: What,
}

/// Event of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub(crate) enum What {
    // Events written by the driver.
    Plan(Plan),
    /// Injection of a fault.
    Fault {
        fault: String,
        on: String,
    },
    /// End of a process.
    Gone {
        pid: u32,
        name: String,
        status: String,
    },
    /// Dead letter found at the end of the round.
    Dead {
        request: String,
        reason: String,
    },
    /// Error because of which the scenario could not be carried out.
    Broken {
        why: String,
    },
    /// Resource use of a process.
    Sample {
        name: String,
        memory_kib: u64,
        descriptors: usize,
    },
    /// Peak memory of a process when it was first looked at, and at its end or that of the scenario.
    Peak {
        name: String,
        first_kib: u64,
        last_kib: u64,
        /// Maximum growth.
        most_kib: u64,
    },
    /// End of the round; processes that still run at this point are killed afterwards.
    Over,

    // Events written by a worker.
    /// Subscription of the worker to its queue, for the first time or again.
    Taking {
        pid: u32,
    },
    /// Loss of the connection of that subscription.
    NotTaking {
        pid: u32,
    },
    /// Request that waits in this worker until it can run alone.
    Alone {
        pid: u32,
        request: String,
    },
    /// Start of a call of the handler.
    Start {
        run: Run,
        n: usize,
        resumed: usize,
    },
    /// End of a call of the handler.
    End {
        run: Run,
        n: usize,
        pieces: usize,
        how: String,
    },

    /// Seed of a request, which its gateway drew.
    Seed {
        request: String,
        seed: u64,
    },

    // Event written by a gateway.
    /// Gateway that takes requests at this address.
    Serving {
        pid: u32,
        address: String,
    },

    // Events written by a client. Of a client of a gateway, the driver writes them.
    /// Client that is connected and consumes its reply queue.
    Client {
        pid: u32,
        name: String,
        reply_queue: String,
    },
    /// Subscription of the client to its reply queue, or loss of the connection of that
    /// subscription.
    Listening {
        pid: u32,
        hears: bool,
    },
    /// Sealed request that is about to be published; `frame` is its bytes in hex.
    Enqueue {
        request: String,
        frame: String,
    },
    /// Submitted request.
    Asked {
        n: usize,
        request: String,
    },
    Piece {
        n: usize,
        request: String,
        index: usize,
        text: String,
        #[serde(default)]
        choice: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<FinishReason>,
    },
    Restarted {
        n: usize,
        request: String,
        kept: usize,
    },
    Waiting {
        n: usize,
        request: String,
    },
    Hint {
        n: usize,
        request: String,
        code: String,
    },
    Done {
        n: usize,
        request: String,
    },
    Failed {
        n: usize,
        request: String,
        code: String,
        message: String,
    },
    Cancelled {
        n: usize,
        request: String,
    },

    // Event written by the wire tap: a copy of a frame on its way to a client.
    /// Reply frame; `open` is the whole frame in hex, if it opens a stream.
    Frame {
        request: String,
        stream: String,
        seq: u64,
        hash: u64,
        open: Option<String>,
    },
}

/// Call of the handler, in one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) pid: u32,
    /// Number of the call in its process.
    pub(crate) call: u64,
    pub(crate) worker: String,
    pub(crate) request: String,
    pub(crate) attempt: u32,
}

/// Writer that appends to a journal.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    /// Opens the journal of the round in `dir`, and creates it if it does not exist.
    pub(crate) fn in_dir(dir: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(dir.join(FILE)).map(Self)
    }

    /// Appends an event with the current time.
    pub(crate) fn note(&self, what: What) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line { at: clock::now(), what })?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }
}

/// Reads all lines of the round in `dir`, sorted by time.
pub(crate) fn read(dir: &Path) -> Result<Vec<Line>> {
    let path = dir.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let bad = || format!("{}: line {} is no line of a journal", path.display(), number + 1);
        lines.push(serde_json::from_str::<Line>(line).with_context(bad)?);
    }
    lines.sort_by_key(|line| line.at);
    Ok(lines)
}

/// Returns the folders with a journal below `dir`, or `dir` itself if it has one.
pub(crate) fn rounds_below(dir: &Path) -> Result<Vec<PathBuf>> {
    if dir.join(FILE).exists() {
        return Ok(vec![dir.to_owned()]);
    }
    let mut rounds = Vec::new();
    for entry in dir.read_dir().with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            rounds.extend(rounds_below(&path)?);
        }
    }
    rounds.sort();
    Ok(rounds)
}

/// Encodes bytes as hex.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hex; `None` if the text is invalid.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(digits).collect()
}
