//! Tests of keyrings: which ones are refused, and that no error shows a key.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::{Entry, Keyring, KeyringError, State};
use crate::key::Key;
use crate::provider::{KeyError, KeyProvider, Scope};
use crate::request::{RequestFrame, RequestHead};
use crate::seal_request;

fn entry(id: &str, state: State) -> Entry {
    Entry::new(id.parse().unwrap(), Key::generate().unwrap(), state)
}

fn scope(model: &str, tenant: &str) -> Scope {
    Scope { model: model.parse().unwrap(), tenant: tenant.parse().unwrap() }
}

/// Returns the result of a worker with `ring` for a request sealed by a client with `client`.
fn open_with(ring: &Keyring, client: &Keyring, scope: &Scope) -> Result<(), KeyError> {
    futures_block(async {
        let data = client.data_key(scope).await?;
        let head = RequestHead {
            id: nsbridge_protocol::RequestId::from_bytes([1; 16]),
            created_at_ms: 0,
            expires_at_ms: 1,
            model: scope.model.clone(),
            tenant: scope.tenant.clone(),
            key_id: data.id,
        };
        let sealed = seal_request(&data.key, &head, b"x").unwrap();
        let frame = RequestFrame::parse(&sealed.frame).unwrap();
        let key = ring.open_key(&frame).await?;
        frame.open(&key).unwrap();
        Ok(())
    })
}

/// Polls the future once, which is enough because a keyring never waits.
fn futures_block<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a keyring waited"),
    }
}

#[test]
fn a_keyring_survives_its_file() {
    let mut derived = entry("b", State::Decrypt);
    derived.is_master = true;
    derived.models = Some(vec!["m".parse().unwrap()]);
    let ring = Keyring::of(vec![entry("a", State::Primary), derived]).unwrap();
    let again = Keyring::from_json(&ring.to_json()).unwrap();
    assert_eq!(again.to_json(), ring.to_json());
}

#[test]
fn a_file_that_others_can_read_is_refused_with_what_to_do() {
    let dir = std::env::temp_dir().join(format!("nsbridge-keyring-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("keys.json");
    let ring = Keyring::of(vec![entry("a", State::Primary)]).unwrap();
    fs::write(&path, ring.to_json().as_bytes()).unwrap();
    // A group may read a file of root alone: the tests may run as root.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let is_root = fs::metadata(&path).unwrap().uid() == 0;
    assert_eq!(Keyring::load(&path).is_ok(), is_root);
    for mode in [0o644, 0o660] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = Keyring::load(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("mode {mode:o}")) && error.contains("chmod 600"),
            "{error}"
        );
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Keyring::load(&path).is_ok());
    fs::remove_dir_all(&dir).unwrap();
    assert!(matches!(Keyring::load(&path), Err(KeyringError::Missing { .. })));
}

#[test]
fn a_keyring_of_another_user_is_refused() {
    let path = std::env::temp_dir().join(format!("nsbridge-foreign-{}.json", std::process::id()));
    let ring = Keyring::of(vec![entry("a", State::Primary)]).unwrap();
    fs::write(&path, ring.to_json().as_bytes()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give a file away.
    let given = chown(&path, Some(1), None).is_ok();
    let loaded = Keyring::load(&path);
    fs::remove_file(&path).unwrap();
    match loaded {
        Err(KeyringError::Foreign { owner, .. }) => assert_eq!(owner, 1),
        other => assert!(!given, "{other:?}"),
    }
}

#[track_caller]
fn check_refused(json: &str, says: &str) {
    let error = Keyring::from_json(json).unwrap_err().to_string();
    assert!(error.contains(says), "{error}");
    assert!(!error.contains("c2VjcmV0"), "it shows the key: {error}");
}

#[test]
fn a_broken_keyring_is_refused_without_showing_a_key() {
    check_refused("{", "line 1");
    check_refused(r#"{"schema":2,"keys":[]}"#, "schema 2");
    check_refused(r#"{"schema":1,"keys":[]}"#, "0 keys are primary");
    check_refused(
        r#"{"schema":1,"keys":[{"id":"a","state":"primary","key":"c2VjcmV0"}]}"#,
        "has 6",
    );
    check_refused(
        r#"{"schema":1,"keys":[{"id":"a","state":"primary","key":"c2VjcmV0*"}]}"#,
        "base64",
    );
    check_refused(r#"{"schema":1,"keys":[{"id":"a","state":"c2VjcmV0","key":""}]}"#, "line 1");
    let twice = vec![entry("a", State::Primary), entry("a", State::Decrypt)];
    assert!(Keyring::of(twice).unwrap_err().to_string().contains("twice"));
    let both = vec![entry("a", State::Primary), entry("b", State::Primary)];
    assert!(Keyring::of(both).unwrap_err().to_string().contains("2 keys are primary"));
}

#[test]
fn a_key_that_was_pasted_wrong_is_caught_by_its_check_value() {
    let ring = Keyring::of(vec![entry("a", State::Primary)]).unwrap();
    let right = ring.to_json();
    let check = ring.entries()[0].check_value();
    let wrong = right.replace(&check, "0000000000000000");
    let error = Keyring::from_json(&wrong).unwrap_err().to_string();
    assert!(error.contains("check value"), "{error}");
}

#[test]
fn scope_state_and_name_of_a_key_are_enforced() {
    let mut narrow = entry("a", State::Primary);
    let client = Keyring::of(vec![narrow.clone()]).unwrap();
    narrow.models = Some(vec!["m".parse().unwrap()]);
    narrow.tenants = Some(vec!["t".parse().unwrap()]);
    let worker = Keyring::of(vec![narrow]).unwrap();
    assert_eq!(open_with(&worker, &client, &scope("m", "t")), Ok(()));
    for (model, tenant) in [("other", "t"), ("m", "other")] {
        let refused = open_with(&worker, &client, &scope(model, tenant));
        assert!(matches!(refused, Err(KeyError::OutOfScope { .. })));
    }
    let stranger = Keyring::of(vec![entry("z", State::Primary)]).unwrap();
    let refused = open_with(&stranger, &client, &scope("m", "t"));
    assert!(matches!(refused, Err(KeyError::Unknown { .. })));
}

#[test]
fn a_tenants_derived_key_opens_at_the_master_and_serves_nobody_else() {
    let mut master = entry("a", State::Primary);
    master.is_master = true;
    let worker = Keyring::of(vec![master.clone()]).unwrap();
    let acme = Keyring::of(vec![master.derive(&scope("m", "acme"))]).unwrap();
    assert_eq!(open_with(&worker, &acme, &scope("m", "acme")), Ok(()));
    assert!(matches!(
        open_with(&worker, &acme, &scope("m", "other")),
        Err(KeyError::OutOfScope { .. })
    ));
    let other = master.derive(&scope("m", "other"));
    assert_ne!(other.check_value(), master.derive(&scope("m", "acme")).check_value());
}
