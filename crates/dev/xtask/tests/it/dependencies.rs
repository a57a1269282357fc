//! Rules of `.deny.toml` about dependencies that need no database and no other tool.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::tree::{metadata, none, text};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
}

/// Returns the quoted entries of a list in `.deny.toml`.
fn list(name: &str) -> BTreeSet<String> {
    let rules = text(".deny.toml");
    let from = rules.split_once(&format!("\n{name} = [")).map_or("", |(_, from)| from);
    let list = from.split_once("\n]").map_or("", |(list, _)| list);
    assert!(!list.is_empty(), "{name} is no list of .deny.toml");
    let entries = list.lines().filter_map(|line| line.split('"').nth(1));
    entries.map(str::to_owned).collect()
}

/// Returns the values of a field in `Cargo.lock`.
fn values<'a>(lock: &'a str, field: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("{field} = \"");
    let lines = lock.lines();
    lines.filter_map(move |line| line.strip_prefix(start.as_str())?.strip_suffix('"'))
}

#[test]
fn there_is_one_crypto_library_under_tls() {
    let (lock, banned) = (text("Cargo.lock"), list("deny"));
    assert!(banned.contains("aws-lc-rs") && banned.contains("openssl"), "{banned:?}");
    let names: BTreeSet<&str> = values(&lock, "name").collect();
    assert!(names.contains("ring") && names.contains("rustls"));
    let found: Vec<_> = banned.into_iter().filter(|name| names.contains(name.as_str())).collect();
    none(&found);
}

#[test]
fn all_packages_come_from_the_registry() {
    let lock = text("Cargo.lock");
    // Rust's own registry is recognized by the address of its index.
    let is_rusts = |source: &str| {
        source.starts_with("registry+https://github.com/rust-lang/") && source.ends_with("-index")
    };
    let others = values(&lock, "source").filter(|source| !is_rusts(source));
    none(&others.map(str::to_owned).collect::<Vec<_>>());
    assert!(values(&lock, "source").count() > 100, "the lock file is read");
}

#[test]
fn all_licences_are_allowed() {
    // Packages for other systems may not have been downloaded.
    let arguments = ["--locked", "--offline", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let metadata: Metadata = metadata(&arguments);
    let allowed = list("allow");
    let bad = metadata.packages.iter().filter_map(|package| {
        let license = package.license.as_deref().unwrap_or("no license");
        (!permits(license, &allowed)).then(|| format!("{}: {license}", package.name))
    });
    none(&bad.collect::<Vec<_>>());
}

/// Returns true if the allowed licenses satisfy an SPDX expression.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Older manifests write `/` for OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().collect::<Vec<_>>().into_iter().peekable();
    let kept = any_of(&mut words, allowed);
    kept && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::vec::IntoIter<&'a str>>;

fn any_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut kept = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        kept |= all_of(words, allowed);
    }
    kept
}

fn all_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut kept = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        kept &= one(words, allowed);
    }
    kept
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let kept = any_of(words, allowed);
        return kept && words.next() == Some(")");
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(&format!("{word} WITH {exception}")),
        None => allowed.contains(word),
    }
}

#[test]
fn an_expression_of_licences_is_read() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "MIT AND ISC",
        "(GPL-3.0 OR MIT) AND ISC",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
    ] {
        assert!(permits(good, &allowed), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND GPL-3.0",
        "Apache-2.0",
        "MIT WITH Something",
        "",
    ] {
        assert!(!permits(bad, &allowed), "{bad}");
    }
}
