//! Keyrings on the command line.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::place::{Place, output};

#[test]
fn a_generated_keyring_is_private_and_never_overwritten() {
    let place = Place::new();
    let path = place.path("keys.json");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = fs::read(&path).unwrap();
    let (again, _, err) = output(&["keys", "generate", "--out", &path]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err.contains("exists: name another file"), "{err}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// A shared key lets each client read and forge the requests of all, so it must be asked for.
#[test]
fn a_generated_key_is_derived_unless_it_is_to_be_shared() {
    let dir = tempfile::tempdir().unwrap();
    for (name, shared) in [("keys.json", None), ("shared.json", Some("--shared"))] {
        let path = dir.path().join(name);
        let path = path.to_str().unwrap();
        let mut arguments = vec!["keys", "generate", "--out", path];
        arguments.extend(shared);
        assert!(output(&arguments).0.status.success());
        let (_, out, _) = output(&["keys", "list", path, "--json"]);
        let key: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(key["derived"], shared.is_none(), "{key}");
        let mut derive = vec!["keys", "derive", path, "--tenant", "acme", "--model", "tale-7m"];
        let own = format!("{path}.acme");
        derive.extend(["--out", &own]);
        assert_eq!(output(&derive).0.status.success(), shared.is_none());
    }
}

#[test]
fn list_shows_everything_but_the_keys() {
    let place = Place::new();
    let path = place.path("keys.json");
    let ring: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for json in [None, Some("--json")] {
        let mut arguments = vec!["keys", "list", &path];
        arguments.extend(json);
        let (_, out, _) = output(&arguments);
        assert!(out.contains(ring["keys"][0]["check"].as_str().unwrap()), "{out}");
        assert!(!out.contains(ring["keys"][0]["key"].as_str().unwrap()), "{out}");
    }
}

#[test]
fn a_rotation_adds_promotes_and_disables() {
    let place = Place::new();
    // A new id is the time in seconds, so the first key has an id that no time has.
    let path = place.path("rotated.json");
    let made = output(&["keys", "generate", "--out", &path, "--id", "first"]);
    assert!(made.0.status.success(), "{}", made.2);
    let states = || {
        let ring: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let keys = ring["keys"].as_array().unwrap().clone();
        keys.iter().map(|key| (key["id"].clone(), key["state"].clone())).collect::<Vec<_>>()
    };
    let old = states()[0].0.as_str().unwrap().to_owned();
    assert!(output(&["keys", "rotate", &path]).0.status.success());
    let new = states()[1].0.as_str().unwrap().to_owned();
    assert_eq!([&states()[0].1, &states()[1].1], ["primary", "decrypt"]);
    assert!(output(&["keys", "rotate", &path, "--promote", &new]).0.status.success());
    assert_eq!([&states()[0].1, &states()[1].1], ["decrypt", "primary"]);
    let (_, _, err) = output(&["keys", "rotate", &path, "--disable", &new]);
    assert!(err.contains("promote another key first"), "{err}");
    assert!(output(&["keys", "rotate", &path, "--disable", &old]).0.status.success());
    assert_eq!([&states()[0].1, &states()[1].1], ["disabled", "primary"]);
    let (_, _, err) = output(&["keys", "rotate", &path, "--promote", &old]);
    assert!(err.contains("is disabled"), "{err}");
    assert_eq!([&states()[0].1, &states()[1].1], ["disabled", "primary"]);
}
