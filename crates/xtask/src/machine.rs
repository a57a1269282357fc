//! What the tests need on this machine, and how it gets there.

mod apt;
pub(crate) mod cuda;
mod python;
pub(crate) mod rabbitmq;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cargo::root;
use crate::say;

/// A machine that is ready.
#[derive(Debug)]
pub(crate) struct Machine {
    /// A Python with what the example client imports.
    pub(crate) client: PathBuf,
    /// A Python with a server that speaks the protocols of AWS.
    pub(crate) moto: PathBuf,
    /// A Python with what the trainer imports.
    pub(crate) trainer: Option<PathBuf>,
}

/// Makes the machine ready for the tests.
///
/// # Errors
///
/// One sentence that says what to run, where something is missing and may not be installed.
pub(crate) fn ready(with_trainer: bool) -> Result<Machine> {
    say::step("what the tests need");
    rabbitmq::ready()?;
    let (client, moto) = (client()?, moto()?);
    let trainer = if with_trainer { Some(trainer()?) } else { None };
    Ok(Machine { client, moto, trainer })
}

/// Makes sure of the library that moves a process's clock.
///
/// # Errors
///
/// It is not there, and may not be installed.
pub(crate) fn faketime() -> Result<()> {
    let folders = Path::new("/usr/lib").read_dir().context("reading /usr/lib")?.flatten();
    let there = |folder: &Path| folder.join("faketime/libfaketime.so.1").exists();
    if !folders.map(|entry| entry.path()).any(|folder| there(&folder)) {
        apt::install("libfaketime", &["faketime"])?;
    }
    Ok(())
}

fn client() -> Result<PathBuf> {
    plain("python-client", "examples/python-client/requirements.txt")
}

fn moto() -> Result<PathBuf> {
    plain("moto", "crates/testkit/src/moto/requirements.txt")
}

/// A Python with the systems that a suite's figures stand beside.
///
/// # Errors
///
/// Python is not there, or pip could not get them.
pub(crate) fn peers(suite: &str) -> Result<PathBuf> {
    let requirements = format!("crates/testkit/src/bin/bench-{suite}/peers/requirements.txt");
    match suite {
        // Its one peer wants a PyTorch with CUDA, 5 GB; the system's is enough for it here.
        "load" => on_torch("bench-load-peers", &requirements),
        "engine" => compiled("bench-engine-peers", &requirements),
        _ => plain("bench-peers", &requirements),
    }
}

/// An environment on the system's PyTorch, with what is listed and nothing that the list requires.
fn on_torch(name: &str, requirements: &str) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    python::environment(name, &requirements, |folder| {
        let packages = ["python3", "python3-venv", "python3-torch", "libopenblas0-pthread"];
        let base = find_or_install(python::TORCH, "PyTorch", &packages)?;
        python::create(&base, folder, &["--system-site-packages"])?;
        python::install(folder, &["--no-deps".as_ref(), "-r".as_ref(), requirements.as_ref()])
    })
}

/// An environment with what a list of requirements names, and nothing else.
fn plain(name: &str, requirements: &str) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    python::environment(name, &requirements, |folder| {
        let base = find_or_install(python::VENV, "Python with venv", &["python3", "python3-venv"])?;
        python::create(&base, folder, &[])?;
        python::install(folder, &["-r".as_ref(), requirements.as_ref()])
    })
}

/// An environment with what a list names, where a part of it is compiled for this machine. AMX is
/// left out: on some machines that claim to have it, llama.cpp's kernels for it fault.
fn compiled(name: &str, requirements: &str) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    let native = "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF";
    let amd64 = cfg!(target_arch = "x86_64");
    let without = if amd64 { "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" } else { "" };
    let settings = [("CMAKE_ARGS", native), ("CFLAGS", without), ("CXXFLAGS", without)];
    python::environment(name, &requirements, |folder| {
        let packages = ["python3", "python3-venv", "python3-dev", "g++"];
        let base = find_or_install(python::COMPILER, "Python with venv and g++", &packages)?;
        python::create(&base, folder, &[])?;
        python::install_with(folder, &settings, &["-r".as_ref(), requirements.as_ref()])
    })
}

/// The trainer's README says the same in words.
fn trainer() -> Result<PathBuf> {
    let sources = root().join("examples/train-pair");
    let requirements = sources.join("requirements.txt");
    python::environment("trainer", &requirements, |folder| {
        let packages = ["python3", "python3-venv", "python3-torch", "libopenblas0-pthread"];
        match find_or_install(python::TORCH, "PyTorch", &packages) {
            Ok(base) => python::create(&base, folder, &["--system-site-packages"])?,
            Err(why) => {
                say::line(&format!("{why:#}: taking the large PyTorch that pip has"));
                let base = find_or_install(python::VENV, "Python with venv", &packages[..2])?;
                python::create(&base, folder, &[])?;
                let large = sources.join("requirements-train.txt");
                python::install(folder, &["-r".as_ref(), large.as_ref()])?;
            }
        }
        python::install(folder, &["--no-deps".as_ref(), "-r".as_ref(), requirements.as_ref()])
    })
}

/// A Python for which `program` ends well, from these Debian packages if there is none yet.
fn find_or_install(program: &str, what: &str, packages: &[&str]) -> Result<PathBuf> {
    if let Some(python) = python::find(program) {
        return Ok(python);
    }
    apt::install(what, packages)?;
    python::find(program)
        .with_context(|| format!("{what} was installed, and `{program}` still fails in python3"))
}
