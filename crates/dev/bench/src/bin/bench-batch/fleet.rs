//! Workers and batch as processes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::time::sleep;

/// Name of the model and of its queue.
pub(crate) const MODEL: &str = "tale-1m";

/// Number of workers.
pub(crate) const WORKERS: usize = 3;

/// Bundled model.
const FILES: &str = "../../../examples/models/tale-1m";

/// Time limit for the start of a worker.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Running program. Dropping it kills it.
pub(crate) struct Program {
    process: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Program {
    fn start(log: PathBuf, command: &mut Command) -> Result<Self> {
        let file = fs::File::create(&log)?;
        nsbridge_bench::without_variables(command);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = command.spawn().context("starting nsbridge")?;
        Ok(Self { process, log, status: None })
    }

    /// Kills the program (SIGKILL) and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        self.status = self.process.try_wait()?;
        Ok(self.status.is_some())
    }

    pub(crate) fn succeeded(&mut self) -> Result<bool> {
        Ok(self.has_ended()? && self.status.is_some_and(|status| status.success()))
    }

    /// Returns the resident memory in KiB.
    pub(crate) fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
        Ok(kib.trim().parse()?)
    }

    pub(crate) fn last_line(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.trim().lines().last().unwrap_or("it has said nothing").to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Workers with the bundled model, and the files of the batch.
pub(crate) struct Fleet {
    folder: TempDir,
    program: PathBuf,
    url: String,
    workers: Vec<Program>,
}

impl Fleet {
    pub(crate) fn new(url: &str) -> Result<Self> {
        let program = std::env::var_os("NSBRIDGE_BENCH_NSBRIDGE")
            .context("NSBRIDGE_BENCH_NSBRIDGE is not set: run `cargo xtask bench batch`")?;
        let (folder, program) = (tempfile::tempdir()?, PathBuf::from(program));
        let fleet = Self { folder, program, url: url.to_owned(), workers: Vec::new() };
        let mut keys = fleet.command(&["keys", "generate", "--out", "keys.json"]);
        let done = keys.output().context("running nsbridge keys generate")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(fleet)
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.folder.path().join("keys.json")
    }

    pub(crate) fn input(&self) -> PathBuf {
        self.folder.path().join("requests.jsonl")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.folder.path().join("results.jsonl")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// Starts a worker and waits until it consumes requests.
    pub(crate) async fn start_worker(&mut self, number: usize) -> Result<()> {
        let worker = self.worker(number)?;
        self.workers.push(worker);
        let began = Instant::now();
        loop {
            let log = self.folder.path().join(format!("worker{number}.log"));
            let log = fs::read_to_string(log)?;
            if log.contains("taking requests") {
                return Ok(());
            }
            ensure!(began.elapsed() < READY_WITHIN, "a worker is not ready; it says:\n{log}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills a worker and starts it again. It is ready some time later, as a new task would be.
    pub(crate) fn restart_worker(&mut self, number: usize) -> Result<()> {
        self.workers.get_mut(number).context("no such worker")?.kill();
        let next = self.worker(number)?;
        *self.workers.get_mut(number).context("no such worker")? = next;
        Ok(())
    }

    fn worker(&self, number: usize) -> Result<Program> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILES).canonicalize()?;
        let text = format!(
            "[worker]\nmodel = \"{MODEL}\"\nname = \"worker{number}\"\n\
             [broker]\nurl = \"{}\"\n[keys]\nkeyring = \"keys.json\"\n[models]\ntarget = \"{}\"\n\
             [handler]\nthreads = 1\n",
            self.url,
            model.display(),
        );
        let config = format!("worker{number}.toml");
        let path = self.folder.path().join(&config);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let log = self.folder.path().join(format!("worker{number}.log"));
        Program::start(log, &mut self.command(&["worker", "--config", &config]))
    }

    /// Starts the batch, or continues it. Its log is `NAME.log`. It stands for a process on another
    /// machine, so it leaves the processor to the workers.
    pub(crate) fn start_batch(&self, name: &str) -> Result<Program> {
        let mut command = Command::new("nice");
        command.current_dir(self.folder.path()).args(["-n", "19"]).arg(&self.program);
        command.args(["batch", "run", "requests.jsonl"]);
        command.args(["--out", "results.jsonl", "--tenant", "bench", "--broker", &self.url]);
        Program::start(self.folder.path().join(format!("{name}.log")), &mut command)
    }
}
