//! Table of the suites, and the programs that run them.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::report::Report;
use crate::cargo::{in_root, root, run};
use crate::{machine, output};

/// Folder of the suites.
const FOLDER: &str = "crates/dev/xtask/src/outside";

/// Suite of others, and the gateway that it needs.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    tool: Tool,
    /// Folder of the suite's program and lists, where it is not that of its name.
    shared: Option<&'static str>,
    /// Program in Python.
    program: &'static str,
    /// The suite sends a key of its own choice, or none, so the gateway must take any.
    pub(crate) any_key: bool,
    /// The suite reads metrics and takes spans: worker and gateway serve and send them, and the worker
    /// has a draft, whose metrics exist only then.
    pub(crate) watches: bool,
    /// The suite needs a model that chats: SmolLM2 instead of the bundled model.
    pub(crate) chats: bool,
    /// The worker of a suite with vLLM starts vLLM's own server, and is in front of it.
    pub(crate) fronts: bool,
    /// Names under which the suite asks for the generating model.
    pub(crate) models: &'static [&'static str],
    /// Names under which the suite asks for the embedding model.
    pub(crate) embedders: &'static [&'static str],
}

/// Package manager of a suite, which also decides the language of its program.
#[derive(Clone, Copy, Debug)]
enum Tool {
    /// `requirements.txt` and `run.py`.
    Pip,
    /// `requirements.txt` and `run.py`, on the system's PyTorch.
    Torch,
    /// `requirements.txt`, which has all packages, and a program, with a worker that runs vLLM.
    Vllm,
    /// `package.json` and `run.mjs`.
    Npm,
}

impl Suite {
    const fn new(name: &'static str, tool: Tool) -> Self {
        Self {
            name,
            tool,
            shared: None,
            program: "run.py",
            any_key: false,
            watches: false,
            chats: false,
            fronts: false,
            models: &[],
            embedders: &[],
        }
    }
}

/// All suites, in the order in which they run.
pub(crate) const SUITES: [Suite; 17] = [
    Suite { embedders: &["text-embedding-3-small"], ..Suite::new("openai-npm", Tool::Npm) },
    Suite { models: &["storyteller"], ..Suite::new("langchain", Tool::Pip) },
    Suite {
        any_key: true,
        models: &["gpt-6-astra", "gpt-3.5-turbo-instruct", "model"],
        embedders: &["text-embedding-3-small"],
        ..Suite::new("openai-python", Tool::Pip)
    },
    Suite { chats: true, ..Suite::new("clients-python", Tool::Pip) },
    Suite { chats: true, ..Suite::new("agents-python", Tool::Pip) },
    Suite::new("codex", Tool::Npm),
    Suite { chats: true, ..Suite::new("clients-npm", Tool::Npm) },
    Suite::new("lm-eval", Tool::Pip),
    Suite::new("aiperf", Tool::Pip),
    Suite::new("schemathesis", Tool::Pip),
    Suite {
        any_key: true,
        models: &["test", "gpt-3.5-turbo-instruct", "davinci-002", "gpt-4.1"],
        ..Suite::new("llama-server", Tool::Pip)
    },
    Suite::new("transformers", Tool::Torch),
    Suite { watches: true, ..Suite::new("prometheus", Tool::Pip) },
    Suite { watches: true, ..Suite::new("phoenix", Tool::Pip) },
    Suite::new("vllm", Tool::Vllm),
    Suite { shared: Some("vllm"), fronts: true, ..Suite::new("vllm-server", Tool::Vllm) },
    Suite { shared: Some("vllm"), program: "cost.py", ..Suite::new("vllm-cost", Tool::Vllm) },
];

impl Suite {
    /// Returns the folder with the suite's program and lists.
    pub(crate) fn folder(&self) -> PathBuf {
        root().join(FOLDER).join(self.shared.unwrap_or(self.name))
    }

    /// Returns the interpreter that has vLLM if the worker of the suite runs it.
    ///
    /// # Errors
    ///
    /// Returns an error if the packages cannot be installed.
    pub(crate) fn engine(&self) -> Result<Option<PathBuf>> {
        let requirements = || self.folder().join("requirements.txt");
        let has_engine = matches!(self.tool, Tool::Vllm);
        has_engine.then(|| machine::outside_in_vllm(&requirements())).transpose()
    }

    /// Installs the packages of the suite, runs its program and returns the report. `tell` adds the
    /// gateway's address to the command, and `log` is the path of its log.
    ///
    /// # Errors
    ///
    /// Returns an error if a package cannot be installed, or if the program fails, which it does not
    /// because of a test that fails.
    pub(crate) fn run(
        &self,
        tell: impl FnOnce(Command) -> Command,
        log: impl Display,
    ) -> Result<Report> {
        let target = root().join("target/outside");
        let room = target.join(self.name);
        fs::create_dir_all(&room).with_context(|| format!("making {}", room.display()))?;
        let report = target.join(format!("{}.ndjson", self.name));
        for stale in [report.clone(), target.join(format!("{}.json", self.name))] {
            remove(&stale)?;
        }
        let mut command = match self.tool {
            Tool::Pip | Tool::Torch | Tool::Vllm => self.python()?,
            Tool::Npm => self.node(&room)?,
        };
        command
            .current_dir(&room)
            .env("OUTSIDE_REPORT", &report)
            .env("OUTSIDE_LEFT_OUT", self.folder().join("left-out.json"))
            .env("PYTHONPATH", root().join(FOLDER))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let ran = run(tell(command))?;
        ensure!(ran, "its program failed; it says why above, and the gateway in {log}");
        Report::read(&report)
    }

    fn python(&self) -> Result<Command> {
        if self.name == "prometheus" {
            machine::promtool()?;
        }
        let requirements = self.folder().join("requirements.txt");
        let python = match self.tool {
            Tool::Torch => machine::outside_on_torch(self.name, &requirements)?,
            Tool::Vllm => machine::outside_in_vllm(&requirements)?,
            _ => machine::outside(self.name, &requirements)?,
        };
        let mut command = Command::new(python);
        command.arg(self.folder().join(self.program));
        Ok(command)
    }

    /// Installs the packages beside copies of the suite's modules, because Node.js looks for them
    /// there.
    fn node(&self, room: &Path) -> Result<Command> {
        machine::browser::node()?;
        let manifest = fs::read(self.folder().join("package.json"))
            .with_context(|| format!("reading package.json of {}", self.name))?;
        let installed = room.join("package.json");
        if fs::read(&installed).ok().as_ref() != Some(&manifest) {
            output::line(&format!(
                "installing the packages of {} in {}",
                self.name,
                room.display()
            ));
            fs::write(room.join("wanted.json"), &manifest)?;
            remove(&installed)?;
            let mut npm = in_root("npm");
            npm.current_dir(room).args(["install", "--no-save", "--no-package-lock"]);
            npm.args(["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]);
            npm.args(packages(&manifest)?);
            ensure!(run(npm)?, "npm failed; it says why above");
            // The manifest comes last, so an installation that was interrupted is repeated.
            fs::rename(room.join("wanted.json"), installed)?;
        }
        for folder in [self.folder(), root().join(FOLDER)] {
            copy_modules(&folder, room)
                .with_context(|| format!("copying the modules of {}", folder.display()))?;
        }
        let mut command = Command::new("node");
        command.arg(room.join("run.mjs"));
        Ok(command)
    }
}

/// Copies the JavaScript modules of a folder into another one.
fn copy_modules(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if Path::new(&entry.file_name()).extension().is_some_and(|end| end == "mjs") {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Returns the dependencies of a manifest as npm's arguments.
fn packages(manifest: &[u8]) -> Result<Vec<String>> {
    let manifest: serde_json::Value =
        serde_json::from_slice(manifest).context("package.json is not JSON")?;
    let dependencies = manifest["dependencies"].as_object().context("it lists no dependencies")?;
    let package = |(name, version): (&String, &serde_json::Value)| {
        version.as_str().map(|version| format!("{name}@{version}"))
    };
    Ok(dependencies.iter().filter_map(package).collect())
}

/// Removes a file that may be absent.
fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::super::left_out;
    use super::{FOLDER, SUITES, Tool, packages, root};

    #[test]
    fn each_suite_has_a_folder_and_each_folder_a_suite() {
        let entries = fs::read_dir(root().join(FOLDER)).unwrap().flatten();
        let folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
        let folders: BTreeSet<_> =
            folders.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        let named = SUITES.iter().map(|suite| suite.shared.unwrap_or(suite.name).to_owned());
        assert_eq!(folders, named.collect());
        for suite in SUITES {
            left_out::read(&suite.folder().join("left-out.json")).unwrap();
            let files = match suite.tool {
                Tool::Pip | Tool::Torch | Tool::Vllm => ["requirements.txt", suite.program],
                Tool::Npm => ["package.json", "run.mjs"],
            };
            assert!(files.iter().all(|file| suite.folder().join(file).is_file()), "{}", suite.name);
        }
    }

    #[test]
    fn npm_installs_exact_versions() {
        let manifest = br#"{"dependencies": {"openai": "7.55.0", "@openai/codex": "0.169.0"}}"#;
        assert_eq!(packages(manifest).unwrap(), ["openai@7.55.0", "@openai/codex@0.169.0"]);
        assert!(packages(b"{}").is_err());
    }
}
