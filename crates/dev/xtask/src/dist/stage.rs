//! Installed files below their prefix, from which every artefact is made.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::archive::{below, write};
use super::release::{self, Release};

/// Bundled models: the target and its draft.
pub(super) const MODELS: [&str; 2] = ["tale-7m", "tale-1m"];

/// Shells, each with the place of its completions below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/nsbridge"),
    ("zsh", "share/zsh/site-functions/_nsbridge"),
    ("fish", "share/fish/vendor_completions.d/nsbridge.fish"),
];

/// Folder of documents below the prefix.
const DOCUMENTS: &str = "share/doc/nsbridge";

/// Documents, each with its name in the folder of documents.
const COPIED: [(&str, &str); 10] = [
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("deploy/worker.example.toml", "examples/worker.example.toml"),
    ("deploy/gateway.example.toml", "examples/gateway.example.toml"),
    ("deploy/systemd/nsbridge-worker@.service", "systemd/nsbridge-worker@.service"),
    ("deploy/systemd/nsbridge-gateway.service", "systemd/nsbridge-gateway.service"),
    ("deploy/systemd/sysusers.conf", "systemd/sysusers.conf"),
    ("deploy/prometheus/alerts.yaml", "prometheus/alerts.yaml"),
    ("docs/installing.md", "installing.md"),
];

/// Lays the files below the prefix.
///
/// # Errors
///
/// Returns an error if the command does not run here, or if a file is missing.
pub(super) fn lay(
    release: &Release,
    tree: &Path,
    prefix: &Path,
    program: &Path,
    notices: &str,
    bill: &str,
) -> Result<()> {
    let installed = prefix.join("bin/nsbridge");
    copy(program, &installed)?;
    let say = |arguments: &[&str]| {
        let output = Command::new(&installed).args(arguments).output().context("nsbridge")?;
        let arguments = arguments.join(" ");
        ensure!(output.status.success(), "nsbridge {arguments} failed");
        Ok(output.stdout)
    };
    for (shell, place) in COMPLETIONS {
        write(&prefix.join(place), &say(&["completions", shell])?)?;
    }
    let manual = prefix.join("share/man/man1");
    fs::create_dir_all(&manual).with_context(|| format!("making {}", manual.display()))?;
    say(&["man", "--out", manual.to_str().context("the folder must be UTF-8")?])?;
    for model in MODELS {
        let from = format!("examples/models/{model}");
        // What git ignores, such as a keyring, lies there without being a change.
        for file in release::said(tree, "git", &["ls-files", "--", &from])?.lines() {
            let name = Path::new(file).file_name().context("a file has a name")?;
            let to = prefix.join("share/nsbridge/models").join(model).join(name);
            copy(&tree.join(file), &to)?;
        }
    }
    for (from, name) in COPIED {
        copy(&tree.join(from), &prefix.join(DOCUMENTS).join(name))?;
    }
    let library = PathBuf::from(release::said(tree, "rustc", &["--print", "sysroot"])?);
    let library = library.join("share/doc/rust/COPYRIGHT-library.html");
    copy(&library, &prefix.join(DOCUMENTS).join("rust-std-COPYRIGHT.html"))?;
    write(&prefix.join(DOCUMENTS).join("THIRD-PARTY.txt"), notices.as_bytes())?;
    write(&prefix.join(DOCUMENTS).join("nsbridge.cdx.json"), bill.as_bytes())?;
    // The packages have the times of these files.
    let time = UNIX_EPOCH + Duration::from_secs(release.epoch);
    for path in below(prefix)? {
        let file = File::open(&path).with_context(|| format!("reading {}", path.display()))?;
        file.set_modified(time)
            .with_context(|| format!("setting the time of {}", path.display()))?;
    }
    Ok(())
}

/// Copies a file with its mode, and makes the folder for it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}
