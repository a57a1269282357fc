//! Packages that a release publishes: what the registry asks of them, and versions that agree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::tree::{metadata, none, text, texts};

/// Crates that are not published: development and examples.
const UNPUBLISHED: [&str; 7] = [
    "candle-llama",
    "classifier",
    "echo",
    "nsbridge-bench",
    "nsbridge-chaos",
    "nsbridge-testkit",
    "xtask",
];

/// Categories of the registry, as far as this project uses them.
const CATEGORIES: [&str; 20] = [
    "api-bindings",
    "asynchronous",
    "authentication",
    "caching",
    "command-line-utilities",
    "config",
    "cryptography",
    "development-tools::debugging",
    "encoding",
    "filesystem",
    "hardware-support",
    "mathematics",
    "network-programming",
    "parser-implementations",
    "science",
    "simulation",
    "text-processing",
    "visualization",
    "web-programming::http-client",
    "web-programming::http-server",
];

/// Files that each package has.
const FILES: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    manifest_path: PathBuf,
    description: Option<String>,
    documentation: Option<String>,
    readme: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<PathBuf>,
    kind: Option<String>,
}

impl Package {
    fn folder(&self) -> &Path {
        self.manifest_path.parent().expect("a manifest lies in a folder")
    }

    fn is_published(&self) -> bool {
        self.publish.is_none()
    }
}

fn packages() -> Vec<Package> {
    metadata::<Metadata>(&["--no-deps"]).packages
}

/// Returns the fields that the manifest of a published package lacks, or that the registry refuses.
fn without_fields(package: &Package) -> Vec<String> {
    let mut problems = Vec::new();
    let mut wrong = |is_wrong: bool, what: &str| {
        if is_wrong {
            problems.push(format!("{}: {what}", package.name));
        }
    };
    let empty = |field: Option<&str>| field.is_none_or(str::is_empty);
    wrong(empty(package.description.as_deref()), "no description");
    wrong(empty(package.documentation.as_deref()), "no documentation");
    wrong(package.readme.as_deref() != Some("README.md"), "its readme is not README.md");
    let is_keyword = |word: &String| {
        word.len() <= 20
            && word.starts_with(|first: char| first.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let keywords = &package.keywords;
    wrong(keywords.is_empty() || keywords.len() > 5, "one to five keywords");
    wrong(!keywords.iter().all(is_keyword), "a keyword that the registry refuses");
    let is_known = |name: &String| CATEGORIES.contains(&name.as_str());
    let categories = &package.categories;
    wrong(categories.is_empty() || categories.len() > 5, "one to five categories");
    wrong(!categories.iter().all(is_known), "a category that is not in CATEGORIES");
    problems
}

/// Returns the dependencies on crates of this project that a published package must not have.
fn wrong_dependencies(package: &Package, unpublished: &BTreeSet<&str>) -> Vec<String> {
    let exact = format!("={}", package.version);
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.filter_map(|dependency| {
        let (name, req) = (&dependency.name, &dependency.req);
        let is_dev = dependency.kind.as_deref() == Some("dev");
        let is_own = unpublished.contains(name.as_str()) || *name == package.name;
        let why = match (is_own, is_dev) {
            (true, false) => "is not published",
            // Cargo leaves a development dependency without a version out of the package.
            (true, true) if req != "*" => "has a version, so it stands in the package",
            (false, _) if *req != exact => "is not required at exactly this version",
            _ => return None,
        };
        Some(format!("{}: {name} {why}", package.name))
    })
    .collect()
}

/// Returns the first block of Rust in text, without the lines that rustdoc hides.
fn example(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !["```", "```rust", "```no_run"].contains(line));
    lines.next()?;
    let block = lines.take_while(|line| *line != "```");
    Some(
        block.filter(|line| *line != "#" && !line.starts_with("# ")).collect::<Vec<_>>().join("\n"),
    )
}

/// Returns the documentation of a crate's root module.
fn documentation(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// Returns the versions of nsbridge in names of files, images and requirements, such as
/// `nsbridge-1.2.3.tar.gz`, `nsbridge:1.2.3` and `nsbridge==1.2.3`.
fn named_versions(text: &str) -> Vec<&str> {
    let after = text.split("nsbridge").skip(1);
    let starts = after.filter_map(|rest| {
        let rest = rest.strip_prefix("==").or_else(|| rest.strip_prefix(['-', ':', '_']))?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        Some(rest[..end].trim_end_matches('.'))
    });
    starts
        .filter(|version| version.split('.').filter(|part| !part.is_empty()).count() == 3)
        .collect()
}

#[test]
fn only_development_and_examples_stay_unpublished() {
    let packages = packages();
    let unpublished: BTreeSet<_> =
        packages.iter().filter(|package| !package.is_published()).map(|it| &*it.name).collect();
    assert_eq!(unpublished, BTreeSet::from(UNPUBLISHED));
    assert!(packages.len() > UNPUBLISHED.len() + 20, "the workspace is read");
}

#[test]
fn each_package_has_what_the_registry_asks_for() {
    let mut problems = Vec::new();
    for package in packages().iter().filter(|package| package.is_published()) {
        problems.extend(without_fields(package));
        for file in FILES {
            let there = std::fs::read_to_string(package.folder().join(file)).unwrap_or_default();
            let is_right =
                if file == "README.md" { !there.is_empty() } else { there == text(file) };
            if !is_right {
                problems.push(format!("{}: no {file}, or another one", package.name));
            }
        }
    }
    none(&problems);
}

#[test]
fn no_package_needs_an_unpublished_crate() {
    let packages = packages();
    let unpublished = BTreeSet::from(UNPUBLISHED);
    let published = packages.iter().filter(|package| package.is_published());
    none(&published.flat_map(|it| wrong_dependencies(it, &unpublished)).collect::<Vec<_>>());
}

#[test]
fn the_example_of_a_readme_is_that_of_the_documentation() {
    let mut problems = Vec::new();
    let mut compared = 0;
    for package in packages().iter().filter(|package| package.is_published()) {
        let read = |file: &str| std::fs::read_to_string(package.folder().join(file));
        let Ok(source) = read("src/lib.rs") else { continue };
        let shown = read("README.md").unwrap_or_default();
        let Some(shown) = shown.contains("```rust\n").then(|| example(&shown)).flatten() else {
            continue;
        };
        compared += 1;
        if example(&documentation(&source)) != Some(shown) {
            problems
                .push(format!("{}: README.md has another example than src/lib.rs", package.name));
        }
    }
    none(&problems);
    assert!(compared >= 10, "only {compared} examples were compared");
}

#[test]
fn all_versions_agree() {
    let packages = packages();
    let version = &packages.iter().find(|package| package.name == "nsbridge").unwrap().version;
    let crates = packages.iter().filter(|package| package.version != *version);
    let mut problems: Vec<_> =
        crates.map(|package| format!("{} has {}", package.name, package.version)).collect();
    if !text("python/src/nsbridge/__init__.py").contains(&format!("__version__ = \"{version}\"\n"))
    {
        problems.push("python/src/nsbridge/__init__.py has another version".to_owned());
    }
    let (minor, _) = version.rsplit_once('.').unwrap();
    if !text("docs/versioning.md").contains(&format!("| {minor} |")) {
        problems.push(format!("docs/versioning.md does not say whether {minor} is supported"));
    }
    let mut named = 0;
    for (path, text) in texts() {
        let is_text =
            [".json", ".md", ".toml", ".yaml", ".yml"].iter().any(|end| path.ends_with(end));
        if !is_text || path.starts_with("CHANGELOG") || path.starts_with("docs/decisions/") {
            continue;
        }
        let versions = named_versions(&text);
        named += versions.len();
        let others = versions.into_iter().filter(|named| named != version);
        problems.extend(others.map(|other| format!("{path} names nsbridge {other}")));
    }
    none(&problems);
    assert!(named >= 2, "the task definitions of ECS name an image");
}

fn sample() -> Package {
    let manifest = r#"{
        "name": "a", "version": "1.2.3", "manifest_path": "/a/Cargo.toml", "description": "A crate",
        "documentation": "https://docs.rs/a", "readme": "README.md", "keywords": ["llm"],
        "categories": ["science"], "publish": null, "dependencies": [
            {"name": "serde", "req": "^1", "path": null, "kind": null},
            {"name": "b", "req": "=1.2.3", "path": "/b", "kind": null},
            {"name": "kit", "req": "*", "path": "/kit", "kind": "dev"}
        ]
    }"#;
    serde_json::from_str(manifest).expect("a package of cargo metadata")
}

#[test]
fn a_field_that_the_registry_refuses_is_found() {
    assert_eq!(without_fields(&sample()), Vec::<String>::new());
    let check = |expected: &str, change: &dyn Fn(&mut Package)| {
        let mut package = sample();
        change(&mut package);
        assert_eq!(without_fields(&package), [format!("a: {expected}")]);
    };
    check("no description", &|it| it.description = None);
    check("no documentation", &|it| it.documentation = Some(String::new()));
    check("its readme is not README.md", &|it| it.readme = Some("../README.md".to_owned()));
    check("one to five keywords", &|it| it.keywords = vec!["llm".to_owned(); 6]);
    check("a keyword that the registry refuses", &|it| it.keywords = vec!["a b".to_owned()]);
    check("one to five categories", &|it| it.categories.clear());
    check("a category that is not in CATEGORIES", &|it| it.categories = vec!["ai".to_owned()]);
}

#[test]
fn a_dependency_that_cannot_be_published_is_found() {
    let unpublished = BTreeSet::from(["kit"]);
    assert_eq!(wrong_dependencies(&sample(), &unpublished), Vec::<String>::new());
    let check = |expected: &str, change: &dyn Fn(&mut [Dependency])| {
        let mut package = sample();
        change(&mut package.dependencies);
        assert_eq!(wrong_dependencies(&package, &unpublished), [format!("a: {expected}")]);
    };
    check("kit is not published", &|them| them[2].kind = None);
    check("kit is not published", &|them| them[2].kind = Some("build".to_owned()));
    check("kit has a version, so it stands in the package", &|them| {
        them[2].req = "=1.2.3".to_owned();
    });
    check("b is not required at exactly this version", &|them| them[1].req = "^1.2.3".to_owned());
}

#[test]
fn another_example_and_another_version_are_found() {
    let source = "//! A crate.\n//!\n//! ```no_run\n//! # use a::b;\n//! b();\n//!\n//! c();\n//! ```\nfn x() {}\n";
    let shown = example("# a\n```rust\nb();\n\nc();\n```\n");
    assert_eq!(shown.as_deref(), Some("b();\n\nc();"));
    assert_eq!(example(&documentation(source)), shown);
    assert_ne!(example(&documentation(&source.replace("c()", "d()"))), shown);
    let text = "nsbridge-1.2.3-x86_64.tar.gz, nsbridge:1.2.4 and nsbridge==1.2.5. nsbridge-cli, nsbridge 1.2.6, \
                nsbridge_1.2.7_amd64.deb, nsbridge-1.2";
    assert_eq!(named_versions(text), ["1.2.3", "1.2.4", "1.2.5", "1.2.7"]);
}
