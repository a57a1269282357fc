//! Form of the source files, and the layout of the repository.

use crate::tree::{none, texts, top_level};

/// Maximum number of lines of a file. From 350 on, look whether it is two files by meaning: the maximum
/// is no length to fill.
const MAX_FILE_LINES: usize = 800;

/// Texts that a line of Rust must not contain, with the reason. Each text is split in two, so that
/// this file does not contain it.
const NOT_IN_RUST: [([&str; 2], &str); 6] = [
    (["#[ig", "nore"], "a test that does not run tests nothing"),
    (["#[should", "_panic"], "assert on what is returned"),
    (["to", "do!("], "finish it or leave it out"),
    (["unimple", "mented!("], "finish it or leave it out"),
    (["TO", "DO"], "what is missing belongs into an issue"),
    (["FIX", "ME"], "what is broken belongs into an issue"),
];

/// Paths that may read the environment.
const EDGES: [&str; 7] = [
    "crates/cli/",
    "crates/bridge/src/serve.rs",
    "crates/base/src/config/environment.rs",
    "crates/dev/",
    // Cargo speaks to a build script by variables, and CUDA is found by one.
    "crates/gpu/build.rs",
    // It decides which variables a child process must not inherit.
    "crates/base/src/child.rs",
    // Its Python is named by `cargo xtask test`.
    "examples/classifier/tests/",
];

/// Paths of a particular machine, and names of package registries, which no file may contain.
const STRANGE: [[&str; 2]; 10] = [
    ["/wo", "rk/"],
    ["/fa", "rm/"],
    ["/tmp/bash", "_jobs"],
    ["../sh", "ared"],
    ["crates", ".io"],
    ["pypi", ".org"],
    ["pythonhosted", ".org"],
    ["npmjs", ".org"],
    ["npmjs", ".com"],
    ["deb.debian", ".org"],
];

/// Allowed names at the top level, except for dot files.
const TOP: [&str; 12] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "crates",
    "deploy",
    "docs",
    "python",
];

/// Returns the problems with the form of a Rust file.
fn form(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        problems.push(format!("{path}: begin with `//!` and what the file is for"));
    }
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        problems.push(format!("{path}: {lines} lines; more than {MAX_FILE_LINES} are two files"));
    }
    if path.ends_with("/mod.rs") {
        problems.push(format!("{path}: name it after its folder, beside it"));
    }
    for (number, line) in text.lines().enumerate() {
        for (halves, why) in NOT_IN_RUST {
            let word = halves.concat();
            if line.contains(&word) {
                problems.push(format!("{path}:{}: `{word}`: {why}", number + 1));
            }
        }
    }
    problems
}

/// Returns the places where a file outside of `EDGES` reads the environment.
fn environment(path: &str, text: &str) -> Vec<String> {
    if EDGES.iter().any(|edge| path.starts_with(edge)) {
        return Vec::new();
    }
    let read = ["env::var", "env::set_var", "use std::env;", "env::{"];
    let lines = text.lines().enumerate();
    let bad = lines.filter(|(_, line)| read.iter().any(|word| line.contains(word)));
    bad.map(|(number, _)| {
        format!("{path}:{}: only the edges read the environment; pass the value", number + 1)
    })
    .collect()
}

/// Returns the strings of `STRANGE` in a file.
fn strange_words(path: &str, text: &str) -> Vec<String> {
    // A lock file names the registry of every package. The fuzz targets have a copy of it.
    if path.rsplit('/').next() == Some("Cargo.lock") {
        return Vec::new();
    }
    let words = STRANGE.iter().map(|halves| halves.concat());
    let found = words.filter(|word| text.contains(word));
    found.map(|word| format!("{path}: `{word}` does not belong into this repository")).collect()
}

/// Returns the top-level names that are not allowed.
fn strangers(names: &[String]) -> Vec<String> {
    let known =
        |name: &String| name.starts_with('.') || name == "examples" || TOP.contains(&name.as_str());
    let bad = names.iter().filter(|name| !known(name));
    bad.map(|name| format!("{name}: the top level is closed; find it a place below")).collect()
}

fn rust() -> impl Iterator<Item = (String, String)> {
    texts().into_iter().filter(|(path, _)| path.ends_with(".rs"))
}

#[test]
fn every_rust_file_is_tidy() {
    none(&rust().flat_map(|(path, text)| form(&path, &text)).collect::<Vec<_>>());
}

#[test]
fn only_the_edges_read_the_environment() {
    none(&rust().flat_map(|(path, text)| environment(&path, &text)).collect::<Vec<_>>());
}

#[test]
fn no_file_tells_of_the_machine_it_was_written_on() {
    none(&texts().iter().flat_map(|(path, text)| strange_words(path, text)).collect::<Vec<_>>());
}

#[test]
fn the_top_level_is_closed() {
    none(&strangers(&top_level()));
}

#[track_caller]
fn check_form(path: &str, text: &str, expected: &str) {
    let said = form(path, text);
    assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
}

#[test]
fn each_fault_of_form_is_found() {
    assert_eq!(form("src/a.rs", "//! A file.\nfn a() {}\n"), Vec::<String>::new());
    check_form("src/a.rs", "fn a() {}\n", "begin with");
    check_form("src/a.rs", &format!("//! A file.{}", "\n//".repeat(MAX_FILE_LINES)), "801 lines");
    check_form("src/a/mod.rs", "//! A file.\n", "after its folder");
    for (halves, why) in NOT_IN_RUST {
        let text = format!("//! A file.\n\n    {}\n", halves.concat());
        check_form("src/a.rs", &text, &format!("src/a.rs:3: `{}`: {why}", halves.concat()));
    }
}

#[test]
fn a_reader_of_the_environment_is_found_unless_it_is_an_edge() {
    let text = "//! A file.\nlet a = std::env::var(\"A\");\n";
    assert_eq!(environment("crates/queue/src/a.rs", text).len(), 1);
    assert_eq!(environment("crates/bridge/src/config.rs", text).len(), 1);
    assert_eq!(environment("crates/queue/src/a.rs", "use std::env;\n").len(), 1);
    assert_eq!(environment("crates/base/src/config/environment.rs", text).len(), 0);
    assert_eq!(environment("crates/queue/src/a.rs", "env!(\"CARGO_MANIFEST_DIR\")").len(), 0);
}

#[test]
fn strange_words_are_found() {
    for halves in STRANGE {
        assert_eq!(strange_words("docs/a.md", &format!("see {}x", halves.concat())).len(), 1);
    }
    assert_eq!(strange_words("docs/a.md", "https://docs.rs/tokio"), Vec::<String>::new());
    assert_eq!(strange_words("Cargo.lock", &STRANGE[4].concat()), Vec::<String>::new());
    assert_eq!(strange_words("a/b/Cargo.lock", &STRANGE[4].concat()), Vec::<String>::new());
    assert_eq!(strange_words("a/NotCargo.lock", &STRANGE[4].concat()).len(), 1);
}

#[test]
fn a_stranger_at_the_top_is_found() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(strangers(&names(&["crates", "examples", ".ci", "LICENSE-MIT"])).len(), 0);
    assert_eq!(strangers(&names(&["crates", "scripts", "keys.json"])).len(), 2);
}
