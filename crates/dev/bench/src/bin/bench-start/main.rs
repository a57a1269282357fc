//! Benchmark of a fleet's start from zero, and of a worker that is told to leave while another one starts.
//!
//! `cargo xtask bench start` gives the program and the real model, runs this program, and prints the rows.
//! `docs/benchmarks.md` defines them. The parts of a cloud are missing: instance, agent and image.

#![expect(clippy::print_stderr, reason = "progress is for the person who waits")]

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nsbridge_bench::report::{Report, Row, median};
use nsbridge_testkit::Rabbit;
use tempfile::TempDir;

/// Number of rounds. A figure is the median of its rounds.
const ROUNDS: usize = 3;

/// Name of the model and of its queue.
const MODEL: &str = "smollm2";

/// Interval of the scaler in seconds.
const INTERVAL_S: u32 = 5;

/// Number of pieces after which a worker is told to leave.
const PIECES_BEFORE: usize = 20;

/// Time limit of each part. The scaler wants no worker once the tokens that arrived are forgotten.
const PART_LIMIT: Duration = Duration::from_secs(300);

/// Request whose reply is long with the seed [`SEED`].
const ASKED: &str = "Count from one to five hundred in words, with a comma after each number.";

/// Seed of all replies.
const SEED: &str = "1";

/// Times of a round, in seconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// From the request to the scaler's decision.
    decided: f64,
    /// From the start of the process until it takes requests.
    started: f64,
    /// From then until the client has the first piece.
    first_piece: f64,
    /// Longest pause of the stream after the worker was told to leave.
    pause: f64,
    /// Longest pause of the stream before.
    pause_before: f64,
}

fn main() -> Result<()> {
    let out = std::env::args().nth(1).unwrap_or_else(|| "target/bench/start.json".to_owned());
    let fleet = Fleet::new()?;
    let mut rounds = Vec::new();
    for number in 1..=ROUNDS {
        let round = fleet.round()?;
        eprintln!("round {number}: {round:?}");
        rounds.push(round);
    }
    let mut report = Report::new("start")?;
    let mut push = |name: &str, of: fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        report.push(Row {
            name: format!("start.{name}"),
            value: median(&mut values),
            unit: "s",
            better: "lower",
            peer: None,
            peer_value: None,
            ratio: None,
        });
    };
    push("decided", |round| round.decided);
    push("started", |round| round.started);
    push("first_piece", |round| round.first_piece);
    push("pause_of_a_leave", |round| round.pause);
    push("pause_before", |round| round.pause_before);
    report.write(Path::new(&out))
}

/// Child process that is killed on drop.
struct Process(Child);

impl Process {
    /// Tells the process to leave.
    fn terminate(&self) -> Result<()> {
        let told = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status()?;
        ensure!(told.success(), "a worker cannot be told to leave");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Broker with the management API, a scaler, and the files of workers and clients.
struct Fleet {
    folder: TempDir,
    program: PathBuf,
    rabbit: Rabbit,
    /// Address of the scaler's pages.
    pages: String,
    _scaler: Process,
}

impl Fleet {
    fn new() -> Result<Self> {
        let of = |name: &str| {
            let value = std::env::var_os(name).map(PathBuf::from);
            value.with_context(|| format!("{name} is not set: run `cargo xtask bench start`"))
        };
        let (program, model) = (of("NSBRIDGE_BENCH_NSBRIDGE")?, of("NSBRIDGE_BENCH_SMOLLM2")?);
        let folder = tempfile::tempdir()?;
        let (rabbit, api) = Rabbit::with_management()?;
        let pages = format!("127.0.0.1:{}", free()?);
        let write = |name: &str, text: String| -> Result<()> {
            let path = folder.path().join(name);
            fs::write(&path, text)?;
            Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?)
        };
        write(
            "scaler.toml",
            format!(
                "[server]\nlisten = \"{pages}\"\n[broker]\nurl = \"{}\"\n\
                 [management]\nurl = \"{api}\"\n\
                 [decisions]\ninterval_s = {INTERVAL_S}\n[models.{MODEL}.policy]\nmax = 2\n\
                 idle_s = 1\nscale_in_delay_s = 1\n\
                 rule = {{ kind = \"backlog-seconds\", worker_tokens_per_s = 40.0 }}\n",
                rabbit.url()
            ),
        )?;
        write(
            "worker.toml",
            format!(
                "[worker]\nmodel = \"{MODEL}\"\ngrace_s = 1\n[broker]\nurl = \"{}\"\n\
                 [keys]\nkeyring = \"keys.json\"\n[models]\ntarget = \"{}\"\n",
                rabbit.url(),
                model.display()
            ),
        )?;
        let command = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            nsbridge_bench::without_variables(&mut command);
            command.args(arguments).current_dir(folder.path()).stdin(Stdio::null());
            command
        };
        let made = command(&["keys", "generate", "--out", "keys.json"]).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let log = fs::File::create(folder.path().join("scaler.log"))?;
        let mut scaler = command(&["scaler", "--config", "scaler.toml"]);
        let scaler = Process(scaler.stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(Self { folder, program, rabbit, pages, _scaler: scaler })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        nsbridge_bench::without_variables(&mut command);
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Number of workers that the scaler wants, once it has decided.
    fn desired(&self) -> Option<u64> {
        let page = format!("http://{}/v1/desired/{MODEL}", self.pages);
        let answer = Command::new("curl").args(["-s", &page]).output().ok()?;
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).ok()?;
        answer["desired"].as_u64()
    }

    /// Starts a worker, and returns it with the seconds until it takes requests.
    fn worker(&self, log: &str) -> Result<(Process, f64)> {
        let path = self.folder.path().join(log);
        let mut command = self.command(&["worker", "--config", "worker.toml"]);
        let began = Instant::now();
        let worker = Process(command.stderr(fs::File::create(&path)?).spawn()?);
        until("a worker", || {
            fs::read_to_string(&path).is_ok_and(|log| log.contains("taking requests"))
        })?;
        Ok((worker, began.elapsed().as_secs_f64()))
    }

    fn round(&self) -> Result<Round> {
        until("the scaler's zero", || self.desired() == Some(0))?;
        let asked = Instant::now();
        let mut ask = self.command(&["ask", "--model", MODEL, "--broker", &self.rabbit.url()]);
        ask.args(["--keyring", "keys.json", "--max-tokens", "400", "--seed", SEED, ASKED]);
        let log = fs::File::create(self.folder.path().join("ask.log"))?;
        let mut ask = Process(ask.stdout(Stdio::piped()).stderr(log).spawn()?);
        let mut text = ask.0.stdout.take().context("stdout is a pipe")?;
        let (sender, pieces) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(1..) = text.read(&mut buffer) {
                if sender.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        until("the scaler's decision", || self.desired() >= Some(1))?;
        let decided = asked.elapsed().as_secs_f64();
        let (first, started) = self.worker("first.log")?;
        let ready = Instant::now();
        let mut before = vec![next(&pieces)?.context("the reply is empty")?];
        let first_piece = before[0].duration_since(ready).as_secs_f64();
        for _ in 0..PIECES_BEFORE {
            before.push(next(&pieces)?.context("the reply is too short")?);
        }
        first.terminate()?;
        let left = Instant::now();
        let (mut second, _) = self.worker("second.log")?;
        let mut after = vec![left];
        while let Some(piece) = next(&pieces)? {
            after.push(piece);
        }
        // A killed worker may not have acked the request, which would then wait in the queue.
        second.terminate()?;
        second.0.wait()?;
        ensure!(after.len() > PIECES_BEFORE, "the reply ended before the worker had left");
        let (pause, pause_before) = (longest(&after), longest(&before));
        Ok(Round { decided, started, first_piece, pause, pause_before })
    }
}

/// Returns the time of the next piece, or `None` at the end of the reply.
fn next(pieces: &Receiver<Instant>) -> Result<Option<Instant>> {
    match pieces.recv_timeout(PART_LIMIT) {
        Ok(at) => Ok(Some(at)),
        Err(RecvTimeoutError::Disconnected) => Ok(None),
        Err(RecvTimeoutError::Timeout) => bail!("no piece came within {PART_LIMIT:?}"),
    }
}

/// Returns the longest time between two of these, in seconds.
fn longest(times: &[Instant]) -> f64 {
    let pauses = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64());
    pauses.fold(0.0, f64::max)
}

fn until(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !done() {
        ensure!(began.elapsed() < PART_LIMIT, "{what} does not come within {PART_LIMIT:?}");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Returns a port that was free a moment ago.
fn free() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
