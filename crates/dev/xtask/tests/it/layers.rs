//! Layers of crates. They are those of `docs/architecture.md`.

use std::collections::BTreeSet;
use std::process::Command;

use serde::Deserialize;

use crate::tree::{none, root};

/// Returns the layer of a crate by its folder; a crate imports only lower layers.
fn layer(folder: &str) -> Option<u8> {
    Some(match folder {
        "crates/protocol" | "crates/kernels" | "crates/base" | "crates/aws"
        | "crates/reply-text" | "crates/scaling" => 0,
        "crates/gpu"
        | "crates/crypto"
        | "crates/queue"
        | "crates/handler"
        | "crates/observe"
        | "crates/gateway-access" => 1,
        "crates/checkpoint" | "crates/client" | "crates/telemetry" => 2,
        "crates/store" => 3,
        "crates/bridge" | "crates/gateway-replies" | "crates/import" | "crates/scaler" => 4,
        "crates/gateway" | "crates/import-djl" | "crates/import-vllm" | "crates/top" => 5,
        "crates/cli" => 6,
        TESTKIT => 7,
        "crates/dev/bench" | "crates/dev/chaos" | "crates/dev/xtask" => 8,
        _ if folder.starts_with("crates/handlers/") => 3,
        _ if folder.starts_with("examples/") => 7,
        _ => return None,
    })
}

/// Library of the tests.
const TESTKIT: &str = "crates/dev/testkit";

/// All that an engine may import of this project.
const FOR_HANDLERS: [&str; 6] = [
    "crates/handler",
    "crates/checkpoint",
    "crates/kernels",
    "crates/gpu",
    "crates/protocol",
    "crates/base",
];

/// Crates and features that authors of models must not have to build.
const NOT_FOR_AUTHORS: [&str; 7] = [
    "tokio feature \"net\"",
    "tokio feature \"full\"",
    "mio ",
    "lapin ",
    "rustls ",
    "reqwest ",
    "hyper ",
];

/// Crates that the wire types must not depend on: no input or output, and nothing asynchronous.
const NOT_FOR_PROTOCOL: [&str; 4] = ["tokio ", "futures-util ", "mio ", "async-trait "];

/// Crates that the arithmetic must not depend on.
const NOT_FOR_KERNELS: [&str; 5] =
    ["nsbridge-checkpoint ", "nsbridge-handler ", "candle-core ", "tokenizers ", "tokio "];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Dev,
}

/// Returns an error message if the crate in `from` may not import the one in `to`.
fn problem(from: &str, to: &str, kind: Kind) -> Option<String> {
    let says = |why: &str| Some(format!("{from} imports {to}: {why}"));
    let (Some(above), Some(below)) = (layer(from), layer(to)) else {
        return says(
            "one of them has no layer yet; give it one in crates/dev/xtask/tests/it/layers.rs",
        );
    };
    match (kind, to) {
        (Kind::Dev, TESTKIT) => None,
        (Kind::Dev, _) if from == to => None,
        (Kind::Normal, TESTKIT) if !from.starts_with("crates/dev/") => says("testkit is for tests"),
        (_, "crates/cli") => says("nothing imports the command line"),
        _ if from.starts_with("crates/handlers/") && !FOR_HANDLERS.contains(&to) => {
            says("a handler knows the trait and nothing else of the bridge")
        }
        _ if below >= above => says(&format!("layer {above} may import only lower ones")),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    path: Option<String>,
    kind: Option<String>,
}

#[track_caller]
fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(root()).output();
    let output = output.expect("cargo runs these tests");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("cargo prints text")
}

fn folder(path: &str) -> String {
    let root = root().display().to_string();
    let inside = path.strip_prefix(&root).unwrap_or(path).trim_start_matches('/');
    inside.trim_end_matches("/Cargo.toml").to_owned()
}

/// Returns the crates of `forbidden` that occur in the tree that cargo prints.
fn found_in(tree: &str, forbidden: &[&str]) -> BTreeSet<String> {
    let lines = tree.lines().map(str::trim);
    let bad = lines.filter(|line| forbidden.iter().any(|start| line.starts_with(start)));
    bad.map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

fn tree_of(package: &str) -> String {
    let prefix = ["--prefix", "none", "--edges", "normal,features", "--all-features"];
    cargo(&[&["tree", "--locked", "--package", package], &prefix[..]].concat())
}

#[test]
fn every_crate_imports_only_lower_layers() {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Metadata = serde_json::from_str(&metadata).unwrap();
    assert!(metadata.packages.len() > 5);
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let from = folder(&package.manifest_path);
        for dependency in &package.dependencies {
            let Some(to) = &dependency.path else { continue };
            let dev = dependency.kind.as_deref() == Some("dev");
            let kind = if dev { Kind::Dev } else { Kind::Normal };
            problems.extend(problem(&from, &folder(to), kind));
        }
    }
    none(&problems);
}

#[test]
fn a_handler_brings_no_network() {
    let tree = tree_of("nsbridge-handler");
    assert!(tree.contains("tokio v"));
    assert_eq!(found_in(&tree, &NOT_FOR_AUTHORS), BTreeSet::new());
}

#[test]
fn the_kernels_know_no_model_and_no_tensor_library() {
    let tree = tree_of("nsbridge-kernels");
    assert!(tree.contains("half v"));
    assert_eq!(found_in(&tree, &NOT_FOR_KERNELS), BTreeSet::new());
}

#[test]
fn the_command_line_brings_no_candle() {
    // The engine's own kernels do without, and candle costs a newcomer minutes of compilation.
    let tree = cargo(&["tree", "--locked", "--package", "nsbridge-cli", "--edges", "normal"]);
    assert!(tree.contains("nsbridge-llama v"));
    assert!(!tree.contains("candle"), "a dependency of nsbridge-cli enables candle");
}

#[test]
fn the_protocol_does_no_input_or_output() {
    let tree = tree_of("nsbridge-protocol");
    assert!(tree.contains("serde v"));
    assert_eq!(found_in(&tree, &NOT_FOR_PROTOCOL), BTreeSet::new());
}

#[track_caller]
fn check(from: &str, to: &str, kind: Kind, expected: Option<&str>) {
    let said = problem(from, to, kind);
    match expected {
        Some(part) => assert!(said.as_ref().is_some_and(|why| why.contains(part)), "{said:?}"),
        None => assert_eq!(said, None),
    }
}

#[test]
fn an_import_of_the_same_layer_or_a_higher_one_is_a_problem() {
    check("crates/protocol", "crates/crypto", Kind::Normal, Some("layer 0"));
    check("crates/queue", "crates/crypto", Kind::Normal, Some("layer 1"));
    check("crates/queue", "crates/bridge", Kind::Dev, Some("layer 1"));
    check("crates/client", "crates/bridge", Kind::Dev, Some("layer 2"));
    check(TESTKIT, "crates/dev/xtask", Kind::Normal, Some("layer 7"));
    check("crates/store", "crates/handlers/llama", Kind::Dev, Some("layer 3"));
    check("crates/handlers/llama", "crates/queue", Kind::Normal, Some("knows the trait"));
    check("crates/kernels", "crates/protocol", Kind::Normal, Some("layer 0"));
    check("crates/handlers/a", "crates/handlers/b", Kind::Normal, Some("knows the trait"));
    check("examples/echo", "crates/cli", Kind::Normal, Some("command line"));
    check("crates/queue", TESTKIT, Kind::Normal, Some("for tests"));
    check("crates/new", "crates/protocol", Kind::Normal, Some("no layer yet"));
}

#[test]
fn lower_layers_the_testkit_and_a_crate_itself_may_be_imported() {
    check("crates/bridge", "crates/handler", Kind::Normal, None);
    check("crates/handlers/llama", "crates/handler", Kind::Dev, None);
    check("crates/queue", TESTKIT, Kind::Dev, None);
    check("crates/queue", "crates/queue", Kind::Dev, None);
    check("crates/handlers/llama", "crates/kernels", Kind::Normal, None);
    check("crates/cli", "crates/handlers/llama", Kind::Normal, None);
    check(TESTKIT, "crates/bridge", Kind::Normal, None);
    check("crates/dev/chaos", TESTKIT, Kind::Normal, None);
    check("examples/echo", "crates/bridge", Kind::Normal, None);
}

#[test]
fn a_network_in_a_tree_is_found() {
    let tree = "serde v1.0.1\n  tokio feature \"net\" (*)\ntokio feature \"sync\"\nlapin v4.12.3\n";
    let expected = ["lapin v4.12.3", "tokio feature \"net\""].map(str::to_owned);
    assert_eq!(found_in(tree, &NOT_FOR_AUTHORS), BTreeSet::from(expected));
}
