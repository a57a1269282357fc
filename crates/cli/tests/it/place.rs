//! Temporary folder with a keyring and a configuration, and the binary under test.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nsbridge_protocol::topology::model_queue;
use nsbridge_queue::{AmqpBroker, Broker as _, Depth};
use tempfile::TempDir;

/// Returns a command that runs the binary under test with its streams captured.
pub(crate) fn nsbridge(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nsbridge"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the binary and returns its output, with stdout and stderr as text.
#[track_caller]
pub(crate) fn output(arguments: &[&str]) -> (Output, String, String) {
    let output = nsbridge(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

/// Returns the folder of the bundled model.
pub(crate) fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/tale-7m")
}

/// Time after which a test gives up.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Log line of a worker that takes requests.
const READY: &str = "taking requests";

pub(crate) struct Place {
    dir: TempDir,
    pub(crate) model: String,
    pub(crate) url: String,
}

impl Place {
    /// Creates a keyring, and a worker configuration with a model name of its own.
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let model = format!("cli-{}", dir.path().file_name().unwrap().to_string_lossy());
        let place =
            Self { dir, model: model.replace(".tmp", ""), url: nsbridge_testkit::amqp_url() };
        let keys = place.path("keys.json");
        let made = nsbridge(&["keys", "generate", "--out", &keys]).status().unwrap();
        assert!(made.success());
        place.configure("");
        place
    }

    /// Writes the configuration with `more` at its end.
    pub(crate) fn configure(&self, more: &str) {
        self.configure_for(&model(), more);
    }

    /// Writes the configuration with another target model and with `more` at its end.
    pub(crate) fn configure_for(&self, target: &Path, more: &str) {
        let (model, url) = (&self.model, &self.url);
        let text = format!(
            "[worker]\nmodel = \"{model}\"\ngrace_s = 1\n[broker]\nurl = \"{url}\"\n\
             [keys]\nkeyring = \"keys.json\"\n[models]\ntarget = \"{}\"\n{more}",
            target.display()
        );
        fs::write(self.path("worker.toml"), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts a worker and waits until it takes requests.
    pub(crate) fn worker(&self) -> Process {
        self.worker_in(&[])
    }

    /// Starts a worker with these environment variables and waits until it takes requests.
    pub(crate) fn worker_in(&self, environment: &[(&str, String)]) -> Process {
        let mut worker = nsbridge(&["worker", "--config", &self.path("worker.toml")]);
        worker.envs(environment.iter().map(|(name, value)| (name, value)));
        self.start(worker)
    }

    /// Starts this worker and waits until it takes requests.
    pub(crate) fn start(&self, mut worker: Command) -> Process {
        // Stderr goes to a file, because a pipe that is not read would fill up. The file tells when
        // the worker is ready.
        let log = self.log();
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let before = self.logged(READY);
        let process = Process(worker.stderr(file).spawn().unwrap());
        until(|| self.logged(READY) > before);
        process
    }

    /// Returns the path of the log of all workers.
    fn log(&self) -> String {
        self.path(&format!("worker-{}.log", std::process::id()))
    }

    /// Returns the number of times that the workers have logged this text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        fs::read_to_string(self.log()).unwrap_or_default().matches(text).count()
    }

    /// Waits until the broker knows that the last worker is gone. Returns true if the queue has a
    /// request again, so that worker had not ended its reply.
    pub(crate) fn has_request_again(&self) -> bool {
        let queue = model_queue(&self.model.parse().unwrap());
        self.until_queue(&queue, |depth| depth.consumers == 0).messages > 0
    }

    /// Waits until a queue is in this state.
    pub(crate) fn until_queue(&self, queue: &str, is: impl Fn(&Depth) -> bool) -> Depth {
        let until = async {
            let connection = AmqpBroker::new(&self.url).unwrap().connect("a test").await.unwrap();
            let start = Instant::now();
            loop {
                let depth = connection.depth(queue).await.unwrap();
                if is(&depth) {
                    connection.close().await;
                    return depth;
                }
                assert!(start.elapsed() < TEST_TIMEOUT, "{depth:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::runtime::Runtime::new().unwrap().block_on(until)
    }

    /// Returns an `ask` command for this model.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Command {
        let mut ask = nsbridge(&["ask", "--model", &self.model, "--broker", &self.url]);
        ask.args(["--keyring", &self.path("keys.json")]).args(arguments);
        ask
    }
}

/// Waits until the condition holds, for at most 60 s.
#[track_caller]
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TEST_TIMEOUT, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Child process that is killed on drop.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Returns the lines of its stdout as they arrive.
    pub(crate) fn lines(&mut self) -> Lines<BufReader<ChildStdout>> {
        BufReader::new(self.0.stdout.take().unwrap()).lines()
    }

    /// Waits for the process and returns its exit code.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
