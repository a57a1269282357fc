//! Loaders of the benchmark: how to start each one, and its measurements.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::measure::Outcome;
use crate::serve::{BUCKET, PREFIX, Place, Server};

/// Loader with its measurements. The first loader is ours; the second is the reference, whose rows
/// have no suffix.
pub(crate) struct Loader {
    pub(crate) suffix: &'static str,
    pub(crate) about: &'static str,
    /// True if one process loads for all ranks of a host.
    shared: bool,
    program: Result<Program, String>,
    pub(crate) rounds: Vec<Seen>,
    /// Ratio of bytes sent by the store to bytes of the model, by tensor-parallel degree.
    pub(crate) wire: Vec<(usize, f64)>,
}

enum Program {
    /// Client within this binary.
    Own(&'static str),
    /// Peer in Rust that is a project of its own.
    ObjectStore(PathBuf),
    Python(PathBuf),
}

/// Measurement of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) gb_per_s: f64,
    pub(crate) peak_memory_mb: f64,
}

impl Loader {
    /// Returns all loaders, including those that cannot run here.
    pub(crate) fn all() -> Vec<Self> {
        let own = |name| Ok(Program::Own(name));
        vec![
            Self::new("", "ours", true, own("ours")),
            Self::new(
                "",
                "aws-sdk-s3 1.157: ranges of 16 MiB, 16 under way, copied into one buffer",
                false,
                own("raw"),
            ),
            Self::new(
                ".vs_naive",
                "aws-sdk-s3 1.157: files to disk, then mapped and copied, once for all ranks",
                true,
                own("naive"),
            ),
            Self::new(
                ".vs_object_store",
                "object_store 0.14: get_ranges of 8 MiB, 16 under way, each rank for itself",
                false,
                object_store().map(Program::ObjectStore),
            ),
            Self::new(
                ".vs_runai",
                "Run:ai model streamer 0.17, its defaults, tensors on the CPU, each rank for itself",
                false,
                python().map(Program::Python),
            ),
        ]
    }

    fn new(
        suffix: &'static str,
        about: &'static str,
        shared: bool,
        program: Result<Program>,
    ) -> Self {
        let program = program.map_err(|error| format!("{error:#}"));
        Self { suffix, about, shared, program, rounds: Vec::new(), wire: Vec::new() }
    }

    /// Returns the description for a row, with the reason if the loader was not measured.
    pub(crate) fn says(&self) -> String {
        match &self.program {
            Ok(_) => self.about.to_owned(),
            Err(why) => format!("{}; not measured: {why}", self.about),
        }
    }

    /// Measures a round with one rank.
    pub(crate) fn measure(&mut self, server: &mut Server) -> Result<Option<Seen>> {
        let Some((outcomes, wire)) = self.run(server, 1)? else { return Ok(None) };
        let outcome = &outcomes[0];
        let gb = server.place.bytes as f64 / 1e9;
        let seen = Seen {
            cpu_s_per_gb: outcome.cpu_s / gb,
            gb_per_s: gb / outcome.wall_s,
            peak_memory_mb: outcome.peak_mb,
        };
        self.rounds.push(seen);
        if self.wire.is_empty() {
            self.wire.push((1, wire));
        }
        Ok(Some(seen))
    }

    /// Measures the bytes sent by the store for `degree` ranks of one host.
    pub(crate) fn measure_wire(&mut self, server: &mut Server, degree: usize) -> Result<()> {
        if let Some((_, wire)) = self.run(server, degree)? {
            self.wire.push((degree, wire));
        }
        Ok(())
    }

    /// Runs all processes of a load. Returns their results and the ratio of sent bytes to bytes of
    /// the model.
    fn run(&mut self, server: &mut Server, degree: usize) -> Result<Option<(Vec<Outcome>, f64)>> {
        let Ok(program) = &self.program else { return Ok(None) };
        server.traffic()?;
        let count = if self.shared { 1 } else { degree };
        // The processes run one after another. The sent bytes are the same, and memory does not
        // suffice for all at once.
        let run = |_| program.start(&server.place, degree).and_then(outcome);
        let outcomes = (0..count).map(run).collect::<Result<Vec<_>>>();
        match outcomes.and_then(|all| complete(all, &server.place)) {
            Ok(outcomes) => {
                let wire = server.traffic()?.wire_bytes as f64 / server.place.bytes as f64;
                Ok(Some((outcomes, wire)))
            }
            Err(error) if matches!(program, Program::Own("ours")) => Err(error),
            Err(error) => {
                // A partial measurement is not comparable, so the values are discarded.
                self.program = Err(format!("{error:#}"));
                (self.rounds, self.wire) = (Vec::new(), Vec::new());
                Ok(None)
            }
        }
    }
}

/// Checks that every tensor arrived unchanged.
fn complete(outcomes: Vec<Outcome>, place: &Place) -> Result<Vec<Outcome>> {
    for outcome in &outcomes {
        let expected = (place.tensor_bytes, place.words);
        ensure!((outcome.bytes, outcome.words) == expected, "other tensors came than are there");
    }
    Ok(outcomes)
}

impl Program {
    fn start(&self, place: &Place, degree: usize) -> Result<Child> {
        let mut command = match self {
            Self::Own(name) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["client", name, &degree.to_string(), &serde_json::to_string(place)?]);
                command
            }
            Self::ObjectStore(binary) => {
                let mut command = Command::new(binary);
                command.args([BUCKET, PREFIX]);
                command
            }
            Self::Python(python) => {
                let mut command = Command::new(python);
                command.arg(folder().join("runai_peer.py")).arg(format!("s3://{BUCKET}/{PREFIX}"));
                command.env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
        };
        command
            .env("AWS_ENDPOINT_URL", &place.endpoint)
            .env("AWS_ACCESS_KEY_ID", &place.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &place.secret_key)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("RUNAI_STREAMER_S3_ENDPOINT", &place.endpoint)
            .env("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().context("starting a client")
    }
}

fn outcome(client: Child) -> Result<Outcome> {
    let output = client.wait_with_output()?;
    ensure!(output.status.success(), "it failed; it says why above");
    let said = String::from_utf8(output.stdout)?;
    let last = said.lines().last().context("it said nothing")?;
    serde_json::from_str(last).context("it said something else than asked for")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/bench-load/peers")
}

fn python() -> Result<PathBuf> {
    if let Ok(why) = std::env::var("NSBRIDGE_BENCH_NO_PEERS") {
        bail!("{why}");
    }
    let python = std::env::var("NSBRIDGE_BENCH_PYTHON");
    Ok(python
        .context("NSBRIDGE_BENCH_PYTHON names no Python: run `cargo xtask bench load`")?
        .into())
}

/// Builds the peer in Rust that is a project of its own.
fn object_store() -> Result<PathBuf> {
    let project = folder().join("object-store");
    let target = std::env::current_exe()?.with_file_name("bench-load-peers");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(project.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status()
        .context("building it")?;
    ensure!(built.success(), "cargo could not build it");
    Ok(target.join("release/bench-load-object-store"))
}
