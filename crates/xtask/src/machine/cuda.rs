//! CUDA's compiler, headers and libraries, without an installation of CUDA and without a GPU.
//!
//! They are in wheels. What an installation has beside them is made here: the names that a linker
//! looks for, a driver's library to link with, and CUTLASS where candle-flash-attn looks for it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{find_or_install, python};
use crate::cargo::{Cargo, root, run, succeeds};

/// The commit of CUTLASS that candle-flash-attn asks for; the wheel in the list has its headers.
const CUTLASS: &str = "7d49e6c7e2f8896c47f586706e67e1fb215529dc";

/// Makes the files that it is asked for, and leaves them empty.
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

/// A folder as an installation of CUDA has it, in an environment of Python.
#[derive(Debug)]
pub(crate) struct Toolkit {
    environment: PathBuf,
    cuda: PathBuf,
}

impl Toolkit {
    /// Gets it ready.
    ///
    /// # Errors
    ///
    /// Python is not there, pip could not get something, or there is no C compiler.
    pub(crate) fn ready(cargo: &Cargo) -> Result<Self> {
        needs("git", "git: candle-flash-attn's build asks it for CUTLASS's version")?;
        needs("cc", "a C compiler, gcc or clang")?;
        let requirements = root().join("crates/xtask/src/machine/cuda/requirements.txt");
        let python = python::environment("cuda", &requirements, |folder| {
            let packages = ["python3", "python3-venv"];
            let base = find_or_install(python::VENV, "Python with venv", &packages)?;
            python::create(&base, folder, &[])?;
            // CUTLASS's wheel would bring half of SciPy for its generator.
            python::install(folder, &["--no-deps".as_ref(), "-r".as_ref(), requirements.as_ref()])?;
            complete(&site_packages(folder)?.join("nvidia"))
        })?;
        let environment = python.ancestors().nth(2).context("an environment without a folder")?;
        let packages = site_packages(environment)?;
        let cuda = packages.join("nvidia/cu13");
        // Each time: they go with the versions of crates, of which the environment knows nothing.
        link_driver(cargo, &cuda)?;
        place_cutlass(environment, &packages)?;
        Ok(Self { environment: environment.to_owned(), cuda })
    }

    /// One whose compiler makes nothing of whatever it is given, in this folder: enough to have the
    /// Rust around it read.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to, or there is no git.
    pub(crate) fn stand_in(folder: &Path) -> Result<Self> {
        let cuda = folder.join("cuda");
        let compiler = cuda.join("bin/nvcc");
        if !fs::read_to_string(&compiler).is_ok_and(|there| there == STAND_IN) {
            needs("git", "git: candle-flash-attn's build asks it for CUTLASS's version")?;
            let packages = folder.join("packages");
            for part in ["include", "tools"] {
                make(&packages.join("cutlass_library/source").join(part))?;
            }
            place_cutlass(folder, &packages)?;
            make(&cuda.join("bin"))?;
            let new = compiler.with_extension("new");
            fs::write(&new, STAND_IN).with_context(|| writing(&new))?;
            fs::set_permissions(&new, Permissions::from_mode(0o755))
                .with_context(|| writing(&new))?;
            fs::rename(&new, &compiler).with_context(|| writing(&compiler))?;
        }
        Ok(Self { environment: folder.to_owned(), cuda })
    }

    /// `cargo` as it builds with this one, for the GPUs of `capability`, such as 90.
    pub(crate) fn cargo(&self, cargo: Cargo, capability: &str) -> Result<Cargo> {
        let before = |folder: PathBuf, name| {
            let mut path = OsString::from(folder);
            if let Some(all) = std::env::var_os(name) {
                path.push(":");
                path.push(all);
            }
            path
        };
        // Hours of compiling are kept.
        let kernels = self.environment.join(format!("flash-attention-{capability}"));
        make(&kernels)?;
        let homes = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"];
        let cargo = homes.into_iter().fold(cargo, |cargo, name| cargo.with(name, &self.cuda));
        Ok(cargo
            .with("PATH", before(self.cuda.join("bin"), "PATH"))
            // What is run from here, such as tests on a machine with a GPU, finds what it is linked with.
            .with("LD_LIBRARY_PATH", before(self.cuda.join("lib"), "LD_LIBRARY_PATH"))
            .with("CUDA_COMPUTE_CAP", capability)
            .with("CUDAFORGE_HOME", self.environment.join("cudaforge"))
            .with("CANDLE_FLASH_ATTN_BUILD_DIR", kernels))
    }
}

fn needs(program: &str, what: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("--version");
    ensure!(succeeds(command), "this needs {what}; there is no `{program}` here");
    Ok(())
}

fn site_packages(folder: &Path) -> Result<PathBuf> {
    let lib = folder.join("lib");
    let entries = lib.read_dir().with_context(|| format!("reading {}", lib.display()))?;
    let folders = entries.flatten().map(|entry| entry.path().join("site-packages"));
    let mut there = folders.filter(|folder| folder.is_dir());
    there.next().with_context(|| format!("no site-packages in {}", lib.display()))
}

/// The folders and names that an installation has and wheels have not.
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

/// A library to link with in place of the driver's, as NVIDIA's own toolkit has it in `stubs`: only
/// a machine with a GPU has a driver.
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

/// The file of cudarc that declares what a driver has.
fn driver_interface(cargo: &Cargo) -> Result<PathBuf> {
    let metadata = cargo.metadata(&["--all-features"])?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let cudarc = packages.into_iter().find(|package| package["name"] == "cudarc");
    let manifest = cudarc.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.context("cudarc is not among the dependencies")?;
    Ok(Path::new(manifest).with_file_name("src/driver/sys/mod.rs"))
}

/// The functions that a file declares, each once.
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

/// CUTLASS's headers where its build script keeps what it clones, so that it does not clone.
fn place_cutlass(folder: &Path, packages: &Path) -> Result<()> {
    let checkout =
        folder.join("cudaforge/git/checkouts").join(format!("cutlass-{}", &CUTLASS[..16]));
    if checkout.exists() {
        fs::remove_dir_all(&checkout)
            .with_context(|| format!("removing {}", checkout.display()))?;
    }
    make(&checkout)?;
    // From the checkout up to the environment, where it may be moved to.
    let up = "../../../..";
    let packages = packages.strip_prefix(folder)?.display();
    for part in ["include", "tools"] {
        let source = format!("{up}/{packages}/cutlass_library/source/{part}");
        link(&source, &checkout.join(part))?;
    }
    let mut git = Command::new("git");
    git.args(["init", "--quiet"]).arg(&checkout);
    ensure!(run(git)?, "git init failed; it says why above");
    fs::write(checkout.join(".git/HEAD"), CUTLASS).context("writing CUTLASS's version")
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
