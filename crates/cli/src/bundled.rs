//! Folders of the bundled models, which come with the program.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Name of the bundled model.
pub(crate) const TARGET: &str = "tale-7m";

/// Name of its draft model.
pub(crate) const DRAFT: &str = "tale-1m";

/// Folder of the models below the folder that the program is installed in.
const SHARE: &str = "share/nsbridge/models";

/// Folder of the models in the sources.
const IN_SOURCES: &str = "examples/models";

/// Returns the folder of a bundled model.
///
/// # Errors
///
/// Returns an error that names the folders without it.
pub(crate) fn bundled(name: &str) -> Result<PathBuf> {
    find(name, &folders(env::current_exe().ok().as_deref(), &sources()))
}

/// Returns the folders that may have the models, in the order in which they are searched: that of the
/// installed program, those of this machine, and the sources.
fn folders(executable: Option<&Path>, sources: &[PathBuf]) -> Vec<PathBuf> {
    let real = executable.and_then(|path| path.canonicalize().ok());
    let prefix = real.as_deref().and_then(|path| path.parent()?.parent());
    let installed = prefix.map(|prefix| prefix.join(SHARE));
    let known = [IN_SOURCES, "/models", "/usr/share/nsbridge/models"].map(PathBuf::from);
    let sources =
        sources.iter().filter_map(|package| Some(package.ancestors().nth(2)?.join(IN_SOURCES)));
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in installed.into_iter().chain(known).chain(sources) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Returns the folders of this crate's sources: as `cargo run` tells them, and of a debug build.
fn sources() -> Vec<PathBuf> {
    let run = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    // A release does not tell where it was built.
    let built = if cfg!(debug_assertions) { Some(env!("CARGO_MANIFEST_DIR").into()) } else { None };
    run.into_iter().chain(built).collect()
}

fn find(name: &str, folders: &[PathBuf]) -> Result<PathBuf> {
    let mut places = folders.iter().map(|folder| folder.join(name));
    let Some(found) = places.find(|place| place.is_dir()) else {
        let searched: Vec<String> = folders.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "the bundled model {name} is in none of {}: install it with nsbridge, or name a model \
             with --model",
            searched.join(", ")
        );
    };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::{find, folders};

    #[test]
    fn the_models_of_the_installed_program_are_found_through_a_link_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let models = real.join("opt/share/nsbridge/models");
        for folder in [real.join("opt/bin"), real.join("bin"), models.join("tale-7m")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(real.join("opt/bin/nsbridge"), "").unwrap();
        let link = real.join("bin/nsbridge");
        symlink(real.join("opt/bin/nsbridge"), &link).unwrap();
        let folders = folders(Some(&link), &[]);
        assert_eq!(folders[0], models);
        assert_eq!(find("tale-7m", &folders).unwrap(), models.join("tale-7m"));
    }

    #[test]
    fn the_folders_of_this_machine_come_before_the_sources() {
        let sources = [PathBuf::from("/src/crates/cli")];
        let folders = folders(None, &[sources.clone(), sources].concat());
        let expected =
            ["examples/models", "/models", "/usr/share/nsbridge/models", "/src/examples/models"];
        assert_eq!(folders, expected.map(PathBuf::from));
    }

    #[test]
    fn a_model_that_is_nowhere_is_one_sentence_with_the_folders() {
        let said = find("tale-7m", &["/a".into(), "/b".into()]).unwrap_err().to_string();
        assert!(
            said.contains("tale-7m is in none of /a, /b: ") && said.contains("--model"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1);
    }
}
