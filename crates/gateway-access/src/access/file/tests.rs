//! Tests of the API key file: what is refused, and that no error shows a key or a hash.

use super::{Entry, Priority, parse, to_json};
use crate::access::{ApiKey, Limits};

const HASH: &str = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff";

fn entry() -> Entry {
    Entry::new(&ApiKey::generate().unwrap(), "acme".parse().unwrap())
}

/// Returns a file with one key that has these further fields.
fn with(fields: &str) -> String {
    let key = format!(r#"{{"id":"0123abcd","hash":"{HASH}","tenant":"acme"{fields}}}"#);
    format!(r#"{{"schema":1,"keys":[{key}]}}"#)
}

#[test]
fn entries_survive_the_file() {
    let full = Entry {
        models: Some(vec!["tale-7m".parse().unwrap(), "b".parse().unwrap()]),
        disabled: true,
        admin: true,
        expires: Some("2027-01-01T00:00:00Z".parse().unwrap()),
        limits: Limits {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(100_000),
            concurrent: Some(8),
        },
        priority: Priority::Bulk,
        obfuscation: Some(false),
        ..entry()
    };
    let text = to_json(&[full.clone(), entry()]).unwrap();
    let read = parse(text.as_bytes()).unwrap();
    assert_eq!(to_json(&read).unwrap(), text);
    let [first, second] = read.as_slice() else { panic!("{read:?}") };
    assert_eq!(format!("{first:?}"), format!("{full:?}"));
    assert!(bool::from(first.hash.matches(&full.hash)));
    assert!(second.models.is_none() && !second.disabled && second.expires.is_none());
}

#[test]
fn the_file_of_the_documentation_is_read() {
    let read = parse(
        with(
            r#","models":["tale-7m"],"disabled":false,"admin":false,"expires":"2027-01-01T00:00:00Z",
            "limits":{"requests_per_minute":60,"tokens_per_minute":100000,"concurrent":8},
            "priority":"interactive","obfuscation":true"#,
        )
        .as_bytes(),
    )
    .unwrap();
    let [entry] = read.as_slice() else { panic!("{read:?}") };
    assert_eq!(entry.limits.tokens_per_minute, Some(100_000));
    assert_eq!(entry.obfuscation, Some(true));
    assert_eq!(entry.hash.to_hex(), HASH);
}

#[track_caller]
fn check_refused(json: &str, says: &str) {
    let error = parse(json.as_bytes()).unwrap_err();
    assert!(error.contains(says), "{error}");
    for secret in ["c0ffee", "nsk_"] {
        assert!(!error.contains(secret), "it quotes a value: {error}");
    }
}

#[test]
fn a_broken_file_is_refused_with_the_place_of_the_error() {
    check_refused("", "line 1, column 0: correct the JSON");
    check_refused("{", "line 1, column 1: correct the JSON");
    check_refused(r#"{"schema":2,"keys":[]}"#, "`schema` must be 1, not 2");
    check_refused(r#"{"keys":[]}"#, "line 1");
    check_refused(r#"{"schema":1,"keys":[]} x"#, "remove what follows the JSON");
    check_refused("\u{feff}{}", "line 1");
}

#[test]
fn an_unknown_or_repeated_field_is_refused_by_its_place() {
    check_refused(&with(r#","modells":[]"#), "keys[0]");
    check_refused(&with(r#","tenant":"b""#), "keys[0]");
    check_refused(&with(r#","limits":{"rpm":1}"#), "keys[0].limits");
    check_refused(&with(r#","priority":"urgent""#), "keys[0].priority");
    check_refused(&with(r#","disabled":"yes""#), "keys[0].disabled");
}

#[test]
fn a_value_of_another_form_is_refused_by_its_field() {
    check_refused(&with("").replace("0123abcd", "nsk_0123"), "`keys[0]`: `id` must be 8");
    check_refused(&with("").replace(HASH, "c0ffee"), "`hash` must be 64 hex digits");
    check_refused(&with("").replace(HASH, "nsk_0123abcd_AAAA"), "`hash` must be 64 hex digits");
    check_refused(&with("").replace("acme", ""), "keys[0].tenant");
    check_refused(&with(r#","expires":"tomorrow""#), "`expires` must be a time such as");
    check_refused(&with(r#","models":["a b"]"#), "keys[0].models[0]");
    check_refused(&with(r#","models":["a","a"]"#), "`models` has a twice");
    check_refused(&with(r#","limits":{"concurrent":0}"#), "`limits.concurrent` must be 1 to");
    check_refused(&with(r#","limits":{"requests_per_minute":-1}"#), "requests_per_minute");
}

#[test]
fn an_id_that_occurs_twice_is_refused() {
    let twice = format!(r#"{{"id":"0123abcd","hash":"{HASH}","tenant":"a"}}"#);
    let json = format!(r#"{{"schema":1,"keys":[{twice},{twice}]}}"#);
    check_refused(&json, "`keys[1]`: the id 0123abcd occurs twice");
}
