//! Worker with the bundled model or with SmolLM2, also in vLLM, and gateway, on a private broker.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::suite::Suite;
use crate::cargo::root;
use crate::machine;

/// Name of the embedding model and of its queue. The bundled model was not made for embeddings, but
/// vectors of any quality have the right form.
const EMBEDDER: &str = "tale-7m-embed";

/// Bundled model, and its draft.
const FILES: &str = "examples/models/tale-7m";
const DRAFT: &str = "examples/models/tale-1m";

/// Time for a process to start. vLLM takes minutes on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(400);

/// Options of vLLM. The suite's program starts vLLM's server with them, too.
const ENGINE_OPTIONS: [(&str, &str); 4] = [
    ("dtype", "\"float32\""),
    ("max_model_len", "2048"),
    ("max_num_seqs", "64"),
    ("enforce_eager", "true"),
];

/// Environment of each vLLM of a suite: one thread, 1 GiB for prompts and replies, nothing fetched.
///
/// Without `nobind` each vLLM pins its thread to the first core, so two of them share that core.
const ENGINE_ENVIRONMENT: [(&str, &str); 4] = [
    ("OMP_NUM_THREADS", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("HF_HUB_OFFLINE", "1"),
];

/// Shell that runs a command and ends it when its standard input closes, because the starter ended
/// it or is gone.
const KEEPER: &str = r#""$@" </dev/null & cat >/dev/null; kill "$!"; wait "$!""#;

/// Generating model of a suite.
#[derive(Debug)]
struct Model {
    /// Name of the model and of its queue.
    name: &'static str,
    /// Folder or GGUF file.
    files: PathBuf,
    /// Lines of its table in the configuration of the gateway.
    table: &'static str,
    /// Interpreter that has vLLM, if the worker runs it.
    engine: Option<PathBuf>,
}

impl Model {
    /// Returns the model that a suite needs. Downloads SmolLM2 once per machine.
    fn of(suite: &Suite) -> Result<Self> {
        let engine = suite.engine()?;
        Ok(if let Some(python) = &engine {
            let files = machine::models::smollm2_folder(python)?;
            Self { name: "smollm2", files, table: "context = 2048\n", engine }
        } else if suite.chats {
            // The chat template shows no format of calls. Without one, a strict tool that the model
            // need not call is refused.
            let table = "context = 8192\ntools = \"hermes\"\n";
            Self { name: "smollm2", files: machine::models::smollm2()?, table, engine }
        } else {
            Self { name: "tale-7m", files: bundled(), table: "context = 1024\n", engine }
        })
    }

    /// Returns the variables of the processes of a suite.
    fn environment(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.engine.iter().flat_map(|_| ENGINE_ENVIRONMENT)
    }
}

/// Running system of a suite. Dropping it ends its processes; the folder stays for its logs.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    binary: PathBuf,
    broker: String,
    key: String,
    model: Model,
    port: u16,
    watched: Watched,
    keepers: Vec<Child>,
}

/// Addresses at which a suite watches worker and gateway.
#[derive(Debug)]
struct Watched {
    /// Metrics of the worker and of the gateway.
    metrics: [String; 2],
    /// Collector of spans, which the suite starts.
    collector: String,
}

impl Watched {
    fn new() -> Result<Self> {
        let address = || Ok::<_, anyhow::Error>(format!("127.0.0.1:{}", free_port()?));
        Ok(Self { metrics: [address()?, address()?], collector: format!("http://{}", address()?) })
    }

    fn worker(&self) -> String {
        let draft = root().join(DRAFT);
        format!("draft = \"{}\"\n{}{}", draft.display(), self.health(), self.telemetry())
    }

    /// Returns the lines of a worker that runs vLLM.
    fn engine(&self, python: &Path) -> String {
        let options = ENGINE_OPTIONS.map(|(name, value)| format!("{name} = {value}\n")).concat();
        format!(
            "{}[handler]\nengine = \"vllm\"\npython = \"{}\"\noutput = \"vllm.log\"\n\
             [handler.options]\n{options}",
            self.health(),
            python.display()
        )
    }

    /// Returns the lines of a worker that starts vLLM's own server.
    fn server(&self, python: &Path, model: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let port = url.rsplit(':').next().unwrap_or_default();
        Ok(format!(
            "{}[handler]\nengine = \"openai\"\nurl = \"{url}\"\noutput = \"vllm.log\"\n\
             command = [\"{}\", \"-m\", \"vllm.entrypoints.openai.api_server\", \"--model\", \"{{target}}\", \
             \"--served-model-name\", \"{model}\", \"--host\", \"127.0.0.1\", \"--port\", \"{port}\", \"{}\"]\n",
            self.health(),
            python.display(),
            arguments().join("\", \"")
        ))
    }

    fn health(&self) -> String {
        let [metrics, _] = &self.metrics;
        format!("[health]\nlisten = \"{metrics}\"\n")
    }

    fn telemetry(&self) -> String {
        format!("[telemetry]\notlp = \"{}\"\n", self.collector)
    }
}

impl Place {
    /// Starts workers and a gateway for a suite.
    ///
    /// # Errors
    ///
    /// Returns an error with the end of a process's log if it does not start.
    pub(crate) fn start(binary: &Path, broker: &str, suite: &Suite) -> Result<Self> {
        let folder = root().join("target/outside/places").join(suite.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("removing {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let (port, watched) = (free_port()?, Watched::new()?);
        let mut place = Self {
            folder,
            binary: binary.to_owned(),
            broker: broker.to_owned(),
            key: String::new(),
            model: Model::of(suite)?,
            port,
            watched,
            keepers: Vec::new(),
        };
        place.nsbridge(&["keys", "generate", "--out", "keys.json"])?;
        let add = ["gateway", "keys", "add", "api-keys.json", "--tenant", "outside"];
        place.key = place.nsbridge(&add)?.trim().to_owned();
        let Model { name, files, engine, .. } = &place.model;
        let more = match engine {
            Some(python) if suite.fronts => place.watched.server(python, name)?,
            Some(python) => place.watched.engine(python),
            None if suite.watches => place.watched.worker(),
            None => String::new(),
        };
        place.write("worker.toml", &worker(broker, name, files, &more))?;
        place.launch("worker", &["worker", "--config", "worker.toml"])?;
        if !suite.embedders.is_empty() {
            let options = "[handler]\ntask = \"embed\"\npooling = \"mean\"\n";
            place.write("embedder.toml", &worker(broker, EMBEDDER, &bundled(), options))?;
            place.launch("embedder", &["worker", "--config", "embedder.toml"])?;
            place.taking_requests("embedder")?;
        }
        place.write("gateway.toml", &gateway(&place, suite))?;
        place.launch("gateway", &["gateway", "--config", "gateway.toml"])?;
        place.taking_requests("worker")?;
        place.wait("gateway", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
        Ok(place)
    }

    /// Passes the address and the key of the gateway to a command, and more that a suite may need.
    pub(crate) fn tell(&self, mut command: Command) -> Command {
        command
            .env("OUTSIDE_URL", format!("http://127.0.0.1:{}", self.port))
            .env("OUTSIDE_KEY", &self.key)
            .env("OUTSIDE_MODEL", self.model.name)
            .env("OUTSIDE_MODEL_FOLDER", &self.model.files)
            .env("OUTSIDE_ENGINE_ARGUMENTS", arguments().join(" "))
            .env("OUTSIDE_BINARY", &self.binary)
            .env("OUTSIDE_PLACE", &self.folder)
            .env("OUTSIDE_BROKER", &self.broker)
            .env("OUTSIDE_ROOT", root())
            .env("OUTSIDE_METRICS", self.watched.metrics.join(","))
            .env("OUTSIDE_OTLP", &self.watched.collector)
            .envs(self.model.environment());
        command
    }

    /// Returns the path of the gateway's log.
    pub(crate) fn log(&self) -> String {
        self.folder.join("gateway.log").display().to_string()
    }

    /// Runs the command to its end and returns its output.
    fn nsbridge(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.binary);
        let output = command.args(arguments).current_dir(&self.folder).output();
        let output = output.with_context(|| format!("starting {}", self.binary.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nsbridge {}: {}", arguments.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Writes a configuration. Only the owner may read it, because it has the broker's URL.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        let mut file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))
    }

    /// Starts a process that ends with this one. Its log is `NAME.log`.
    fn launch(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let log = File::create(self.folder.join(format!("{name}.log")))?;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "keeper"]).arg(&self.binary).args(arguments);
        command.current_dir(&self.folder).envs(self.model.environment()).stdin(Stdio::piped());
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        self.keepers.push(command.spawn().with_context(|| format!("starting the {name}"))?);
        Ok(())
    }

    /// Waits until a worker takes requests.
    fn taking_requests(&self, name: &str) -> Result<()> {
        self.wait(name, || said(&self.folder, name).contains("taking requests"))
    }

    fn wait(&self, name: &str, ready: impl Fn() -> bool) -> Result<()> {
        let began = Instant::now();
        while !ready() {
            if began.elapsed() > START_WITHIN {
                let said = said(&self.folder, name);
                bail!("the {name} did not start: {}", said.lines().last().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The pipes close first, so that the processes end at the same time.
        for keeper in &mut self.keepers {
            drop(keeper.stdin.take());
        }
        for keeper in &mut self.keepers {
            let _ = keeper.wait();
        }
    }
}

/// Returns the options of vLLM as arguments of its server.
fn arguments() -> Vec<String> {
    let argument = |(name, value): (&str, &str)| {
        let flag = format!("--{}", name.replace('_', "-"));
        let value = (value != "true").then(|| value.trim_matches('"').to_owned());
        [Some(flag), value].into_iter().flatten()
    };
    ENGINE_OPTIONS.into_iter().flat_map(argument).collect()
}

/// Returns a port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Returns the log of a process.
fn said(folder: &Path, name: &str) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(folder.join(format!("{name}.log"))) {
        let _ = file.read_to_string(&mut text);
    }
    text
}

/// Returns the folder of the bundled model.
fn bundled() -> PathBuf {
    root().join(FILES)
}

/// Returns the configuration of a worker.
fn worker(broker: &str, model: &str, files: &Path, more: &str) -> String {
    format!(
        "[worker]\nmodel = \"{model}\"\ngrace_s = 1\n[broker]\nurl = \"{broker}\"\n\
         [keys]\nkeyring = \"keys.json\"\n[models]\ntarget = \"{}\"\n{more}",
        files.display()
    )
}

/// Returns the configuration of the gateway.
fn gateway(place: &Place, suite: &Suite) -> String {
    let Place { broker, port, watched, model: Model { name, table, .. }, .. } = place;
    let access = if suite.any_key { "open_to = \"outside\"" } else { "file = \"api-keys.json\"" };
    let aliases = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
        names.join(", ")
    };
    let [_, metrics] = &watched.metrics;
    let metrics = if suite.watches { format!("metrics = \"{metrics}\"\n") } else { String::new() };
    let mut text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\ngrace_s = 1\ndefault_model = \"{name}\"\n{metrics}\
         [broker]\nurl = \"{broker}\"\n[keys]\nkeyring = \"keys.json\"\n[access]\n{access}\n\
         [store]\npath = \"gateway.redb\"\nkey_file = \"gateway.key\"\n\
         [models.{name}]\naliases = [{}]\n{table}",
        aliases(suite.models)
    );
    if !suite.embedders.is_empty() {
        text += &format!(
            "[models.{EMBEDDER}]\ntask = \"embed\"\naliases = [{}]\n",
            aliases(suite.embedders)
        );
    }
    if suite.watches {
        text += &watched.telemetry();
    }
    text
}
