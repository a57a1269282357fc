//! CUDA's compiler, headers and libraries, without an installation of CUDA and without a GPU.
//!
//! They come from Python wheels. The rest of an installation is created here: the names that a
//! linker looks for, and a driver library to link with.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{find_or_install, python};
use crate::cargo::{Cargo, has, root, run};

/// Script that stands in for nvcc and creates empty output files.
const STAND_IN: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then
    printf 'a stand-in\nfor nvcc\nof\nCuda compilation tools, release 13.0, V13.0.88\n'
    exit
fi
while [ $# -gt 0 ]; do
    case $1 in
    -o) : > "$2" ;;
    --output-directory) folder=$2 ;;
    *.cu) [ -z "$folder" ] || : > "$folder/$(basename "$1" .cu).ptx" ;;
    esac
    shift
done
"#;

/// Folder with the layout of a CUDA installation, in a Python environment.
#[derive(Debug)]
pub(crate) struct Toolkit {
    environment: PathBuf,
    cuda: PathBuf,
}

impl Toolkit {
    /// Creates the environment if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if Python is missing, pip could not install a package, or there is no C
    /// compiler.
    pub(crate) fn ready(cargo: &Cargo) -> Result<Self> {
        needs("cc", "a C compiler, gcc or clang")?;
        let requirements = root().join("crates/dev/xtask/src/machine/cuda/requirements.txt");
        let python = python::environment("cuda", &requirements, |folder| {
            let packages = ["python3", "python3-venv"];
            let base = find_or_install(python::VENV, "Python with venv", &packages)?;
            python::create(&base, folder, &[])?;
            python::install(folder, &["--no-deps".as_ref(), "-r".as_ref(), requirements.as_ref()])?;
            complete(&site_packages(folder)?.join("nvidia"))
        })?;
        let environment = python.ancestors().nth(2).context("an environment without a folder")?;
        let packages = site_packages(environment)?;
        let cuda = packages.join("nvidia/cu13");
        // These steps run each time: they depend on the versions of crates, which the environment
        // does not record.
        link_driver(cargo, &cuda)?;
        Ok(Self { environment: environment.to_owned(), cuda })
    }

    /// Creates a toolkit in this folder with a stand-in compiler that produces empty files. It
    /// suffices for checking the Rust code.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be written.
    pub(crate) fn stand_in(folder: &Path) -> Result<Self> {
        let cuda = folder.join("cuda");
        let compiler = cuda.join("bin/nvcc");
        if !fs::read_to_string(&compiler).is_ok_and(|there| there == STAND_IN) {
            make(&cuda.join("bin"))?;
            let new = compiler.with_extension("new");
            fs::write(&new, STAND_IN).with_context(|| writing(&new))?;
            fs::set_permissions(&new, Permissions::from_mode(0o755))
                .with_context(|| writing(&new))?;
            fs::rename(&new, &compiler).with_context(|| writing(&compiler))?;
        }
        Ok(Self { environment: folder.to_owned(), cuda })
    }

    /// Returns a command of the toolkit that finds the others.
    pub(crate) fn command(&self, program: &str) -> Command {
        let bin = self.cuda.join("bin");
        let mut command = Command::new(bin.join(program));
        command.env("PATH", before(bin, "PATH"));
        command
    }

    /// Configures `cargo` to build with this toolkit for the GPUs of `capability`, such as 90.
    pub(crate) fn cargo(&self, cargo: Cargo, capability: &str) -> Cargo {
        let homes = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"];
        let cargo = homes.into_iter().fold(cargo, |cargo, name| cargo.with(name, &self.cuda));
        cargo
            .with("PATH", before(self.cuda.join("bin"), "PATH"))
            // Programs that run from here, such as tests on a machine with a GPU, find the
            // libraries that they are linked with.
            .with("LD_LIBRARY_PATH", before(self.cuda.join("lib"), "LD_LIBRARY_PATH"))
            .with("CUDA_COMPUTE_CAP", capability)
            .with("CUDAFORGE_HOME", self.environment.join("cudaforge"))
    }
}

/// Returns the value of a variable with a list of folders, with this one before them.
fn before(folder: PathBuf, name: &str) -> OsString {
    let mut path = OsString::from(folder);
    if let Some(all) = std::env::var_os(name) {
        path.push(":");
        path.push(all);
    }
    path
}

fn needs(program: &str, what: &str) -> Result<()> {
    ensure!(has(program), "this needs {what}; there is no `{program}` here");
    Ok(())
}

fn site_packages(folder: &Path) -> Result<PathBuf> {
    let lib = folder.join("lib");
    let entries = lib.read_dir().with_context(|| format!("reading {}", lib.display()))?;
    let folders = entries.flatten().map(|entry| entry.path().join("site-packages"));
    let mut there = folders.filter(|folder| folder.is_dir());
    there.next().with_context(|| format!("no site-packages in {}", lib.display()))
}

/// Creates the folders and names that an installation has and wheels lack.
fn complete(nvidia: &Path) -> Result<()> {
    let cuda = nvidia.join("cu13");
    link("lib", &cuda.join("lib64"))?;
    link("../../nccl/include/nccl.h", &cuda.join("include/nccl.h"))?;
    link("../../nccl/lib/libnccl.so.2", &cuda.join("lib/libnccl.so.2"))?;
    let libraries = cuda.join("lib");
    let entries = libraries.read_dir().with_context(|| format!("reading {}", libraries.display()));
    let names = entries?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for versioned in names.collect::<Vec<_>>() {
        if let Some((name, version)) = versioned.split_once(".so.")
            && version.bytes().all(|byte| byte.is_ascii_digit())
        {
            link(&versioned, &libraries.join(format!("{name}.so")))?;
        }
    }
    Ok(())
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

fn writing(file: &Path) -> String {
    format!("writing {}", file.display())
}

fn link(to: &str, from: &Path) -> Result<()> {
    symlink(to, from).with_context(|| format!("linking {} to {to}", from.display()))
}

/// Builds a library to link with in place of the driver's, like the `stubs` in NVIDIA's toolkit.
/// Only a machine with a GPU has a driver.
fn link_driver(cargo: &Cargo, cuda: &Path) -> Result<()> {
    let mut source = String::new();
    for name in functions(&fs::read_to_string(driver_interface(cargo)?)?) {
        writeln!(source, "void {name}(void) {{}}")?;
    }
    ensure!(!source.is_empty(), "cudarc declares nothing of a driver where it did");
    let stubs = cuda.join("lib/stubs");
    make(&stubs)?;
    let file = stubs.join("cuda.c");
    fs::write(&file, source).with_context(|| writing(&file))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    compiler.arg(stubs.join("libcuda.so")).arg(&file);
    ensure!(run(compiler)?, "cc failed; it says why above");
    Ok(())
}

/// Returns the file of cudarc that declares the driver's functions.
fn driver_interface(cargo: &Cargo) -> Result<PathBuf> {
    let metadata = cargo.metadata(&["--all-features"])?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let cudarc = packages.into_iter().find(|package| package["name"] == "cudarc");
    let manifest = cudarc.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.context("cudarc is not among the dependencies")?;
    Ok(Path::new(manifest).with_file_name("src/driver/sys/mod.rs"))
}

/// Returns the functions that a file declares, each once.
fn functions(source: &str) -> Vec<&str> {
    let declared = source.split(" fn ").skip(1).filter_map(|rest| rest.split_once('('));
    let mut names: Vec<_> = declared.map(|(name, _)| name).collect();
    names.retain(|name| {
        name.starts_with("cu")
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    });
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::functions;

    #[test]
    fn functions_are_found_once_and_nothing_else_is() {
        let source = r#"
            pub unsafe fn cuInit(flags: u32) -> CUresult {
                extern "C" {
                    fn cuInit(flags: u32) -> CUresult;
                }
                cuInit(flags)
            }
            pub unsafe fn cuCtxSetFlags(
                flags: u32,
            ) -> CUresult {}
            pub unsafe fn culib<T>() -> T {}
            pub fn is_culib_present() -> bool {}
        "#;
        assert_eq!(functions(source), ["cuCtxSetFlags", "cuInit"]);
    }
}
