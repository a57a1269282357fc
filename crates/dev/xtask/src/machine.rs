//! Prerequisites of the tests on this machine, and their installation.

mod apt;
pub(crate) mod browser;
pub(crate) mod cuda;
pub(crate) mod models;
mod python;
pub(crate) mod rabbitmq;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{has, in_root, root, succeeds};
use crate::output;

/// Variable that names a Python with the packages of the suites with vLLM, and that replaces their
/// installation.
const VLLM: &str = "NSBRIDGE_TEST_VLLM";

/// Keys of Debian's archive, which Ubuntu has in a package.
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Python interpreters for the tests.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Python with the packages of the Python client and of its tests.
    pub(crate) client: PathBuf,
    /// Python with a server for the protocols of AWS.
    pub(crate) moto: PathBuf,
    /// Python with OpenAI's official client.
    pub(crate) openai: PathBuf,
    /// Python with Anthropic's official client.
    pub(crate) anthropic: PathBuf,
    /// Python with a validator of JSON schemas and with pydantic.
    pub(crate) schemas: PathBuf,
    /// Python with onnx and onnxruntime.
    pub(crate) onnx: PathBuf,
    /// Python with the packages of the trainer.
    pub(crate) trainer: Option<PathBuf>,
    /// GGUF file of SmolLM2-135M-Instruct.
    pub(crate) smollm2: PathBuf,
}

/// Installs the prerequisites of the tests.
///
/// # Errors
///
/// Returns an error with the command to run if something is missing and may not be installed.
pub(crate) fn ready(with_trainer: bool) -> Result<Machine> {
    output::step("what the tests need");
    rabbitmq::ready()?;
    let (client, moto) = (client()?, moto()?);
    let (openai, anthropic) = (openai()?, anthropic()?);
    let (schemas, onnx) = (schemas()?, onnx()?);
    let trainer = if with_trainer { Some(trainer()?) } else { None };
    let smollm2 = models::smollm2()?;
    Ok(Machine { client, moto, openai, anthropic, schemas, onnx, trainer, smollm2 })
}

/// Makes sure that the library for shifting a process's clock is installed.
///
/// # Errors
///
/// Returns an error if the library is missing and may not be installed.
pub(crate) fn faketime() -> Result<()> {
    let folders = Path::new("/usr/lib").read_dir().context("reading /usr/lib")?.flatten();
    let there = |folder: &Path| folder.join("faketime/libfaketime.so.1").exists();
    if !folders.map(|entry| entry.path()).any(|folder| there(&folder)) {
        apt::install("libfaketime", &["faketime"])?;
    }
    Ok(())
}

/// Makes sure that `python3` is installed.
///
/// # Errors
///
/// Returns an error if it is missing and may not be installed.
pub(crate) fn python3() -> Result<()> {
    if !has("python3") {
        apt::install("Python", &["python3"])?;
    }
    Ok(())
}

/// Makes sure that the shells and the programs for downloads are installed with which the installer is
/// tested.
///
/// # Errors
///
/// Returns an error if one is missing and may not be installed.
pub(crate) fn installer() -> Result<()> {
    const PROGRAMS: [&str; 4] = ["busybox", "curl", "dash", "wget"];
    // Not all of them know `--version`.
    let mut look = in_root("sh");
    look.args(["-c", "for it; do command -v $it || exit; done", "look"]).args(PROGRAMS);
    if !succeeds(look) {
        apt::install("shells and programs for downloads", &PROGRAMS)?;
    }
    Ok(())
}

/// Returns a Python with the packages that check the templates in `deploy`.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn deploy() -> Result<PathBuf> {
    plain("deploy", "deploy/tests/templates/requirements.txt")
}

/// Makes sure that Prometheus's tool for rules is installed.
///
/// # Errors
///
/// Returns an error if the tool is missing and may not be installed.
pub(crate) fn promtool() -> Result<()> {
    if !has("promtool") {
        apt::install("promtool", &["prometheus"])?;
    }
    Ok(())
}

/// Returns a Python with the packages of the Python client and of its tests.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn client() -> Result<PathBuf> {
    plain("python-client", "python/requirements.txt")
}

fn moto() -> Result<PathBuf> {
    plain("moto", "crates/dev/testkit/src/moto/requirements.txt")
}

fn openai() -> Result<PathBuf> {
    plain("openai", "crates/cli/tests/openai/requirements.txt")
}

fn anthropic() -> Result<PathBuf> {
    plain("anthropic", "crates/cli/tests/anthropic/requirements.txt")
}

fn schemas() -> Result<PathBuf> {
    plain("schemas", "crates/handlers/python/tests/requirements.txt")
}

fn onnx() -> Result<PathBuf> {
    plain("onnx", "examples/python/onnx/requirements.txt")
}

const ENGINE_PEERS: &str = "crates/dev/bench/src/bin/bench-engine/peers/requirements.txt";
/// Returns a Python with the packages that read and write vocabularies.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn vocabularies() -> Result<PathBuf> {
    plain("vocabularies", "crates/handlers/llama/tests/vocabularies/requirements.txt")
}

/// Returns a Python with the package that renders chat templates.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn templates() -> Result<PathBuf> {
    plain("templates", "crates/handlers/llama/tests/templates/requirements.txt")
}

/// Returns a Python with mdBook's command beside it.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the package.
pub(crate) fn book() -> Result<PathBuf> {
    plain("book", "crates/dev/xtask/src/book/requirements.txt")
}

/// Returns a Python with the tools of a release beside it.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the tools.
pub(crate) fn dist() -> Result<PathBuf> {
    plain("dist", "crates/dev/xtask/src/dist/requirements.txt")
}

/// Makes sure that this machine can build container images.
///
/// # Errors
///
/// Returns an error if this process does not run as root, or if a tool is missing and may not be installed.
pub(crate) fn image() -> Result<()> {
    if apt::as_root().is_none() {
        bail!("the files of an image have owners, which takes root: or pass --without-image");
    }
    if !Path::new(DEBIAN_KEYRING).exists() {
        apt::install("the keys of Debian's archive", &["debian-archive-keyring"])?;
    }
    Ok(())
}

/// Returns a command that runs as root the program that is its next argument.
///
/// # Errors
///
/// Returns an error if that is not permitted.
pub(crate) fn as_root() -> Result<Command> {
    apt::as_root().context("this takes root, or sudo without a password")
}

/// Makes sure that this machine can start other systems in folders.
///
/// # Errors
///
/// Returns an error if this process does not run as root, or if a tool is missing and may not be installed.
pub(crate) fn fresh() -> Result<()> {
    if !apt::is_root() {
        bail!("systems in folders are started by systemd-nspawn, which takes root");
    }
    if !["mmdebstrap", "systemd-nspawn", "podman", "buildah"].into_iter().all(has) {
        let packages = ["mmdebstrap", "systemd-container", "podman", "crun", "buildah"];
        apt::install("mmdebstrap, systemd-nspawn and podman", &packages)?;
    }
    Ok(())
}

/// Returns a Python with the packages of an outside suite.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn outside(suite: &str, requirements: &Path) -> Result<PathBuf> {
    plain(&format!("outside-{suite}"), requirements)
}

/// Returns a Python with PyTorch and with the packages of an outside suite.
///
/// # Errors
///
/// Returns an error if PyTorch is missing and may not be installed, or if pip could not install the
/// packages.
pub(crate) fn outside_on_torch(suite: &str, requirements: &Path) -> Result<PathBuf> {
    on_torch(&format!("outside-{suite}"), requirements, &[])
}

/// Returns a Python with vLLM and the other packages of its outside suites, from a list that has all of
/// them.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the packages.
pub(crate) fn outside_in_vllm(requirements: &Path) -> Result<PathBuf> {
    if let Some(python) = std::env::var_os(VLLM).map(PathBuf::from) {
        ensure!(python.is_file(), "{VLLM} names {}, which is no file", python.display());
        return Ok(python);
    }
    // vLLM's build for CPUs requires a build of PyTorch that the package index does not have.
    listed("outside-vllm", requirements, &["--no-deps"])
}

/// Returns a Python with the systems that a benchmark suite compares with.
///
/// # Errors
///
/// Returns an error if Python is missing or pip could not install the systems.
pub(crate) fn peers(suite: &str) -> Result<PathBuf> {
    let requirements = format!("crates/dev/bench/src/bin/bench-{suite}/peers/requirements.txt");
    match suite {
        // The only compared system requires a PyTorch with CUDA, 5 GB. The system's PyTorch is
        // enough here.
        "load" => on_torch("bench-load-peers", &requirements, &["--no-deps"]),
        // Building llama.cpp takes minutes, so both suites share one environment.
        "engine" | "quality" => compiled("bench-engine-peers", ENGINE_PEERS, ""),
        // llama-server without libraries of its own, which its package leaves without their names.
        "gateway" => compiled("bench-gateway-peers", &requirements, "-DBUILD_SHARED_LIBS=OFF"),
        "batch" => bail!("no other system is compared"),
        _ => plain("bench-peers", &requirements),
    }
}

/// Creates an environment on the system's PyTorch with the listed packages.
fn on_torch(
    name: &str,
    requirements: impl AsRef<Path>,
    options: &[&'static str],
) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    python::environment(name, &requirements, |folder| {
        let packages = ["python3", "python3-venv", "python3-torch", "libopenblas0-pthread"];
        let base = find_or_install(python::TORCH, "PyTorch", &packages)?;
        python::create(&base, folder, &["--system-site-packages"])?;
        python::install(folder, &from_list(options, &requirements))
    })
}

/// Creates an environment with only the packages of a list of requirements.
fn plain(name: &str, requirements: impl AsRef<Path>) -> Result<PathBuf> {
    listed(name, requirements, &[])
}

/// Creates an environment with only the packages of a list, which pip installs with these options.
fn listed(name: &str, requirements: impl AsRef<Path>, options: &[&'static str]) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    python::environment(name, &requirements, |folder| {
        let base = find_or_install(python::VENV, "Python with venv", &["python3", "python3-venv"])?;
        python::create(&base, folder, &[])?;
        python::install(folder, &from_list(options, &requirements))
    })
}

/// Returns the arguments of pip for a list of requirements.
fn from_list<'a>(options: &[&'a str], requirements: &'a Path) -> Vec<&'a OsStr> {
    let options = options.iter().map(|&option| OsStr::new(option));
    options.chain([OsStr::new("-r"), requirements.as_os_str()]).collect()
}

/// Creates an environment from a list of which some packages are compiled for this machine.
///
/// `options` are more options of CMake. AMX is disabled: llama.cpp's AMX kernels crash on some
/// machines that report AMX.
fn compiled(name: &str, requirements: &str, options: &str) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    let native = "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF";
    let native = format!("{native} {options}");
    let amd64 = cfg!(target_arch = "x86_64");
    let without = if amd64 { "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" } else { "" };
    let settings = [
        ("CMAKE_ARGS", &*native),
        ("CFLAGS", without),
        ("CXXFLAGS", without),
        // The package of llama-server starts a compiler for each file at once by default.
        ("LLAMA_CPP_BUILD_JOBS", "2"),
    ];
    python::environment(name, &requirements, |folder| {
        let packages = ["python3", "python3-venv", "python3-dev", "g++"];
        let base = find_or_install(python::COMPILER, "Python with venv and g++", &packages)?;
        python::create(&base, folder, &[])?;
        python::install_with(folder, &settings, &["-r".as_ref(), requirements.as_ref()])
    })
}

/// Creates the environment of the trainer, like the steps in the trainer's README.
fn trainer() -> Result<PathBuf> {
    let sources = root().join("examples/train-pair");
    let requirements = sources.join("requirements.txt");
    python::environment("trainer", &requirements, |folder| {
        let packages = ["python3", "python3-venv", "python3-torch", "libopenblas0-pthread"];
        match find_or_install(python::TORCH, "PyTorch", &packages) {
            Ok(base) => python::create(&base, folder, &["--system-site-packages"])?,
            Err(why) => {
                output::line(&format!("{why:#}: taking the large PyTorch that pip has"));
                let base = find_or_install(python::VENV, "Python with venv", &packages[..2])?;
                python::create(&base, folder, &[])?;
                let large = sources.join("requirements-train.txt");
                python::install(folder, &["-r".as_ref(), large.as_ref()])?;
            }
        }
        python::install(folder, &["--no-deps".as_ref(), "-r".as_ref(), requirements.as_ref()])
    })
}

/// Returns a Python for which `program` succeeds. Installs these Debian packages if there is none.
fn find_or_install(program: &str, what: &str, packages: &[&str]) -> Result<PathBuf> {
    if let Some(python) = python::find(program) {
        return Ok(python);
    }
    apt::install(what, packages)?;
    python::find(program)
        .with_context(|| format!("{what} was installed, and `{program}` still fails in python3"))
}
