//! Object store in a process of its own, so that its cost is not counted.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use nsbridge::store::{CHUNK_BYTES, MANIFEST, Manifest, ManifestFile};
use nsbridge_testkit::s3::S3Server;
use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::measure::sum_of_words;

/// Bucket of the checkpoint, and its folder there.
pub(crate) const BUCKET: &str = "models";
pub(crate) const PREFIX: &str = "llama/";

/// Location of the checkpoint, credentials, and expected sums.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Place {
    pub(crate) endpoint: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    /// Size of all files in bytes.
    pub(crate) bytes: u64,
    /// Size of all tensors in bytes, and the wrapping sum of their words.
    pub(crate) tensor_bytes: u64,
    pub(crate) words: u64,
}

/// Traffic since the last query.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Traffic {
    pub(crate) gets: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) connections: u64,
}

/// Server process.
pub(crate) struct Server {
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub(crate) place: Place,
}

/// Serves until standard input closes; each line on it is a query for the traffic.
pub(crate) fn run(megabytes: usize) -> Result<()> {
    let server = S3Server::start()?;
    let (mut bytes, mut tensor_bytes, mut words) = (0, 0, 0_u64);
    let mut files = Vec::new();
    for (name, file) in checkpoint::files(megabytes << 20) {
        bytes += file.len() as u64;
        if name.ends_with(".safetensors") {
            let tensors = checkpoint::tensors_of(&file);
            tensor_bytes += tensors.len() as u64;
            words = words.wrapping_add(sum_of_words(tensors));
        }
        // Our client verifies each chunk against this manifest; the peers do not use it.
        files.push(ManifestFile::of(&name, &file, CHUNK_BYTES));
        server.put(BUCKET, &format!("{PREFIX}{name}"), file);
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let manifest = Manifest::new("bench", "1", files);
    server.put(BUCKET, &format!("{PREFIX}{MANIFEST}"), manifest.to_json());
    let place = Place {
        endpoint: server.endpoint(),
        access_key: server.access_key().into(),
        secret_key: server.secret_key().into(),
        bytes,
        tensor_bytes,
        words,
    };
    println!("{}", serde_json::to_string(&place)?);
    for line in std::io::stdin().lines() {
        line?;
        let counts = server.counts();
        server.reset_counts();
        let (gets, wire_bytes) = (counts.gets, counts.wire_bytes);
        let traffic = Traffic { gets, wire_bytes, connections: counts.connections };
        println!("{}", serde_json::to_string(&traffic)?);
    }
    Ok(())
}

impl Server {
    pub(crate) fn start(megabytes: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(megabytes.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take();
        let mut answers = BufReader::new(process.stdout.take().context("its output is a pipe")?);
        let place = answer(&mut answers)?;
        Ok(Self { process, questions, answers, place })
    }

    /// Returns the traffic since the last call.
    pub(crate) fn traffic(&mut self) -> Result<Traffic> {
        writeln!(self.questions.as_mut().context("it takes questions until it ends")?)?;
        answer(&mut self.answers)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.questions.take());
        let _ = self.answers.read_to_end(&mut Vec::new());
        let _ = self.process.wait();
    }
}

fn answer<T: serde::de::DeserializeOwned>(answers: &mut BufReader<ChildStdout>) -> Result<T> {
    let mut line = String::new();
    answers.read_line(&mut line)?;
    serde_json::from_str(&line).context("the server ended without an answer")
}
