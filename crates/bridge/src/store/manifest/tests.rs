//! Valid and hostile manifests.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Manifest, ManifestFile, STANDARD, hex};
use base64::Engine as _;

const CHUNK: u64 = 64 << 10;

fn file(path: &str, bytes: &[u8]) -> ManifestFile {
    ManifestFile::of(path, bytes, CHUNK)
}

fn manifest() -> Manifest {
    Manifest {
        model: "tale-7m".to_owned(),
        revision: "2026-11-21".to_owned(),
        chunk_bytes: CHUNK,
        files: vec![
            file("config.json", b"{}"),
            file("empty", b""),
            file("model.safetensors", &vec![7; 200_000]),
        ],
    }
}

fn json() -> Value {
    serde_json::from_slice(&manifest().to_json()).unwrap()
}

#[test]
fn what_is_written_is_read_again_and_a_files_hash_is_that_of_b3sum() {
    let manifest = manifest();
    assert_eq!(Manifest::parse(&manifest.to_json()).as_ref(), Ok(&manifest));
    let whole: [u8; 32] = blake3::hash(&[7; 200_000]).into();
    assert_eq!(manifest.files[2].blake3, whole);
}

/// Changes one field and checks that the manifest is refused with this reason.
#[track_caller]
fn check(pointer: &str, value: Value, reason: &str) {
    let mut json = json();
    *json.pointer_mut(pointer).unwrap() = value;
    let refused = Manifest::parse(json.to_string().as_bytes()).unwrap_err();
    assert!(refused.contains(reason), "{refused}");
}

#[test]
fn a_path_that_leads_elsewhere_is_refused() {
    let paths = [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "a//b",
        "./a",
        "",
        ".",
        "a/..",
        "C:x",
        "a\\b",
        "a\nb",
        "nsb-manifest.json",
    ];
    for path in paths {
        check("/files/0/path", json!(path), "is not one within a folder");
    }
    check("/files/0/path", json!("x".repeat(2000)), "is not one within a folder");
    check("/files/0/path", json!("empty"), "twice");
    check("/files/0/path", json!("empty/x"), "a file in it and a folder");
}

#[test]
fn sizes_and_chunks_that_do_not_agree_are_refused() {
    check("/schema", json!(2), "schema");
    check("/revision", json!("../x"), "not a revision");
    for size in [0, 1, 12345, 70_000] {
        check("/chunk_bytes", json!(size), "chunk_bytes");
    }
    check("/chunk_bytes", json!(1u64 << 40), "chunk_bytes");
    check("/files/2/size", json!(u64::MAX), "claims");
    check("/files/2/size", json!(1u64 << 60), "chunks");
    check("/files/2/size", json!(200_000_000), "chunks");
    check("/files/1/size", json!(1), "0 chunks");
    check("/files/2/chunks", json!(""), "0 chunks");
    check("/files/2/chunks", json!("%%"), "cannot be read");
    check("/files/2/chunks", json!("AAAA"), "cannot be read");
    check("/files/2/chunks", json!(STANDARD.encode([0; 128])), "do not make its blake3");
    check("/files/2/blake3", json!("xyz"), "no hash");
    check("/files/2/blake3", json!(hex(&[1; 32])), "do not make its blake3");
    check("/files/0/size", json!(-1), "no manifest");
}

#[test]
fn what_is_no_manifest_is_refused() {
    for text in ["", "null", "[]", "{}", "\u{0}", "{\"schema\": 1}"] {
        assert!(Manifest::parse(text.as_bytes()).is_err(), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(Manifest::parse(deep.as_bytes()).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
        let _ = Manifest::parse(&bytes);
    }

    #[test]
    fn a_manifest_with_a_changed_byte_is_refused_or_means_the_same_bytes(at in 0usize..1000, to: u8) {
        let mut bytes = manifest().to_json();
        let at = at % bytes.len();
        bytes[at] = to;
        if let Ok(read) = Manifest::parse(&bytes) {
            // The file may have another path, and so another place in the order. A wrong size is
            // found when the bytes do not match their digest.
            let files = |manifest: &Manifest| -> BTreeSet<_> {
                manifest.files.iter().map(|file| file.blake3).collect()
            };
            prop_assert_eq!(files(&read), files(&manifest()));
        }
    }
}

#[test]
fn l13_paths_are_bounded_in_depth_and_together() {
    check("/files/0/path", json!(format!("{}x", "a/".repeat(9))), "is not one within a folder");
    let with = |count: usize, length: usize| {
        let mut json = json();
        let empty = json["files"][1].clone();
        let files = (0..count).map(|number| {
            let mut file = empty.clone();
            file["path"] = json!(format!("{number:0length$}"));
            file
        });
        json["files"] = files.collect();
        Manifest::parse(json.to_string().as_bytes()).map(|manifest| manifest.files.len())
    };
    assert_eq!(with(8000, 1000), Ok(8000));
    assert!(with(9000, 1000).unwrap_err().contains("by 9000000 bytes of paths"));
    assert!(with(100_001, 6).unwrap_err().contains("names 100001 files"));
}
