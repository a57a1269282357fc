//! Bills of materials of the command and of its image, in CycloneDX 1.6 (ECMA-424).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::binary::Tools;
use super::closure::{Id, Part};
use super::release::Release;
use super::stage::MODELS;
use crate::cargo;

/// Package of the command.
const COMMAND: &str = "nsbridge-cli";

/// Program that checks the bills of materials whose paths are its arguments.
const CHECK: &str = "\
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for path in sys.argv[1:]:
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(path).read())
    sys.exit(f'{path}: {wrong}') if wrong else None
";

/// Checks files with CycloneDX's own schema.
///
/// # Errors
///
/// Returns an error if one does not fit it.
pub(super) fn check(tools: &Tools, files: &[PathBuf]) -> Result<()> {
    let mut python = Command::new(&tools.python);
    python.args(["-c", CHECK]).args(files);
    ensure!(cargo::run(python)?, "a bill of materials does not fit the schema; it says why above");
    Ok(())
}

/// Returns the bill of materials of the command as JSON.
pub(super) fn of(release: &Release, parts: &BTreeMap<Id, Part>) -> String {
    bill(release, parts, Vec::new())
}

/// Returns that of the image: the command and the packages of Debian in its root.
///
/// # Errors
///
/// Returns an error if the root does not tell its packages.
pub(super) fn of_image(
    release: &Release,
    parts: &BTreeMap<Id, Part>,
    root: &Path,
) -> Result<String> {
    let folder = root.join("var/lib/dpkg/status.d");
    let mut packages = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("reading {}", folder.display()))? {
        let text = fs::read_to_string(entry?.path())?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.with_context(|| format!("a package of the image has no {name}"))
        };
        let (name, version, processor) =
            (field("Package")?, field("Version")?, field("Architecture")?);
        let escaped = version.replace('+', "%2B").replace(':', "%3A");
        let purl = format!("pkg:deb/debian/{name}@{escaped}?arch={processor}");
        packages.push(json!({
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
            "scope": "required",
        }));
    }
    packages.sort_by_key(|package| package["name"].to_string());
    Ok(bill(release, parts, packages))
}

fn bill(release: &Release, parts: &BTreeMap<Id, Part>, others: Vec<Value>) -> String {
    let mut components: Vec<Value> =
        parts.values().filter(|part| part.name != COMMAND).map(component).collect();
    components.extend(MODELS.map(|model| {
        json!({
            "type": "machine-learning-model",
            "bom-ref": model,
            "name": model,
            "version": release.version,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
        })
    }));
    components.push(json!({
        "type": "library",
        "bom-ref": "rust-std",
        "name": "std",
        "version": release.rust,
        "description": "Rust's standard library",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }));
    components.extend(others);
    let dependencies: Vec<Value> = parts
        .values()
        .map(|part| {
            let needs: Vec<_> =
                part.needs.iter().map(|(name, version)| purl(name, version)).collect();
            json!({"ref": purl(&part.name, &part.version), "dependsOn": needs})
        })
        .collect();
    let command = purl(COMMAND, &release.version);
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.time,
            "tools": {"components": [{"type": "application", "name": "cargo xtask dist"}]},
            "component": {
                "type": "application",
                "bom-ref": command,
                "name": "nsbridge",
                "version": release.version,
                "purl": command,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "properties": [
                    {"name": "nsbridge:commit", "value": release.commit},
                    {"name": "nsbridge:target", "value": release.triple},
                ],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    format!("{bill:#}\n")
}

fn component(part: &Part) -> Value {
    let address = purl(&part.name, &part.version);
    let mut component = json!({
        "type": "library",
        "bom-ref": address,
        "name": part.name,
        "version": part.version,
        "purl": address,
        "scope": "required",
    });
    if !part.license.is_empty() {
        component["licenses"] = json!([{"expression": part.license}]);
    }
    if let Some(checksum) = &part.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}
