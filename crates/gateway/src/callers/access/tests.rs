//! Tests of access: who is admitted, what a refusal tells, and how reloads change both.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nsbridge_base::Reload;
use tempfile::TempDir;

use super::file::to_json;
use super::{Access, ApiKey, Caller, Denied, Entry, Priority, Refusal, add, disable};

struct Stage {
    _folder: TempDir,
    path: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stage = Self { path: folder.path().join("access.json"), _folder: folder };
        stage.write(&[]);
        stage
    }

    fn write(&self, entries: &[Entry]) {
        self.replace(&to_json(entries).unwrap());
    }

    fn replace(&self, text: &str) {
        let beside = self.path.with_extension("beside");
        fs::write(&beside, text).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(beside, &self.path).unwrap();
    }

    fn open(&self) -> Access {
        Access::of_file(&self.path).unwrap()
    }
}

fn generate() -> (ApiKey, Entry) {
    let key = ApiKey::generate().unwrap();
    let entry = Entry::new(&key, "acme".parse().unwrap());
    (key, entry)
}

fn with_key(access: &Access, key: &ApiKey) -> Result<Arc<Caller>, Denied> {
    access.check(Some(&format!("Bearer {}", key.reveal())), None)
}

#[test]
fn a_key_admits_its_holder_with_the_rights_of_its_entry() {
    let stage = Stage::new();
    let (key, mut entry) = generate();
    entry.models = Some(vec!["tale-7m".parse().unwrap()]);
    entry.admin = true;
    entry.priority = Priority::Bulk;
    entry.obfuscation = Some(true);
    stage.write(&[entry, generate().1]);
    let caller = with_key(&stage.open(), &key).unwrap();
    assert_eq!((caller.id, caller.tenant.as_str()), (key.id(), "acme"));
    assert!(caller.may_use(&"tale-7m".parse().unwrap()));
    assert!(!caller.may_use(&"tale-7".parse().unwrap()));
    assert!(caller.admin && caller.priority == Priority::Bulk);
    assert_eq!(caller.obfuscation, Some(true));
}

#[test]
fn an_entry_without_models_admits_to_all_and_without_rights_to_nothing_else() {
    let stage = Stage::new();
    let (key, entry) = generate();
    stage.write(&[entry]);
    let caller = with_key(&stage.open(), &key).unwrap();
    assert!(caller.may_use(&"any".parse().unwrap()));
    assert!(!caller.admin && caller.priority == Priority::Interactive);
}

#[track_caller]
fn check_headers(access: &Access, headers: [Option<&str>; 2], expected: Result<(), Denied>) {
    let [authorization, x_api_key] = headers;
    assert_eq!(access.check(authorization, x_api_key).map(|_| ()), expected);
}

#[test]
fn the_key_is_read_from_either_header() {
    let stage = Stage::new();
    let ((key, entry), (other, second)) = (generate(), generate());
    stage.write(&[entry, second]);
    let access = stage.open();
    let (key, other) = (key.reveal(), other.reveal());
    let bearer = format!("Bearer {key}");
    check_headers(&access, [Some(&bearer), None], Ok(()));
    check_headers(&access, [Some(&format!("bearer   {key} ")), None], Ok(()));
    check_headers(&access, [None, Some(key)], Ok(()));
    check_headers(&access, [Some(&bearer), Some(key)], Ok(()));
    check_headers(&access, [Some(&bearer), Some("")], Ok(()));
    check_headers(&access, [Some("Bearer "), Some(key)], Ok(()));
    check_headers(&access, [Some(&bearer), Some(other)], Err(Denied::Malformed));
    check_headers(&access, [Some(key), None], Err(Denied::Malformed));
    check_headers(&access, [Some(&format!("Basic {key}")), None], Err(Denied::Malformed));
    check_headers(&access, [Some(&format!("Bearer{key}")), None], Err(Denied::Malformed));
    check_headers(&access, [Some("Bearer sk-other"), None], Err(Denied::Malformed));
    check_headers(&access, [None, Some(&bearer)], Err(Denied::Malformed));
    check_headers(&access, [None, None], Err(Denied::Missing));
    check_headers(&access, [Some("Bearer"), Some(" ")], Err(Denied::Missing));
    check_headers(&access, [Some(" "), None], Err(Denied::Missing));
}

/// Returns the key with its secret changed in the last character.
fn forged(key: &ApiKey) -> ApiKey {
    let (start, last) = key.reveal().split_at(55);
    let last = if last == "A" { "B" } else { "A" };
    ApiKey::parse(&format!("{start}{last}")).unwrap()
}

#[test]
fn a_wrong_secret_is_told_like_an_unknown_id() {
    let stage = Stage::new();
    let ((key, entry), (off, mut disabled), (old, mut expired)) =
        (generate(), generate(), generate());
    disabled.disabled = true;
    expired.expires = Some(Timestamp::now() - SignedDuration::from_secs(1));
    stage.write(&[entry, disabled, expired]);
    let access = stage.open();
    for wrong in [forged(&key), forged(&off), forged(&old), generate().0] {
        assert_eq!(with_key(&access, &wrong).unwrap_err(), Denied::Unknown, "{wrong:?}");
    }
    assert_eq!(with_key(&access, &off).unwrap_err(), Denied::Disabled);
    assert_eq!(with_key(&access, &old).unwrap_err(), Denied::Expired);
    assert!(with_key(&access, &key).is_ok());
}

#[test]
fn a_key_is_valid_until_its_time_and_refused_from_then_on() {
    let (key, mut entry) = generate();
    let expires: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    entry.expires = Some(expires);
    let table = super::Table::of(vec![entry], None);
    let nanosecond = SignedDuration::from_nanos(1);
    assert!(table.check(&key, expires - nanosecond).is_ok());
    assert_eq!(table.check(&key, expires).unwrap_err(), Denied::Expired);
}

#[test]
fn a_key_comes_and_goes_with_the_file() {
    let stage = Stage::new();
    let access = stage.open();
    let (key, entry) = generate();
    assert_eq!(with_key(&access, &key).unwrap_err(), Denied::Unknown);
    add(&stage.path, entry).unwrap();
    assert_eq!(with_key(&access, &key).unwrap_err(), Denied::Unknown, "read without a reload");
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Taken);
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Unchanged);
    assert!(with_key(&access, &key).is_ok());
    disable(&stage.path, key.id()).unwrap();
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Taken);
    assert_eq!(with_key(&access, &key).unwrap_err(), Denied::Disabled);
    stage.write(&[]);
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Taken);
    assert_eq!(with_key(&access, &key).unwrap_err(), Denied::Unknown);
}

#[test]
fn a_broken_file_leaves_the_keys_and_is_told_once() {
    let stage = Stage::new();
    let (key, entry) = generate();
    stage.write(std::slice::from_ref(&entry));
    let access = stage.open();
    stage.replace("{");
    let error = access.reload_if_changed().unwrap_err().to_string();
    assert!(error.contains("access.json is not valid: line 1"), "{error}");
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Unchanged);
    assert!(with_key(&access, &key).is_ok());
    fs::remove_file(&stage.path).unwrap();
    let error = access.reload_if_changed().unwrap_err().to_string();
    assert!(error.starts_with("there is no API key file"), "{error}");
    assert!(access.reload_if_changed().is_ok() && with_key(&access, &key).is_ok());
    stage.write(&[entry]);
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Taken);
}

#[tokio::test(start_paused = true)]
async fn the_account_of_a_key_survives_a_reload_with_its_new_limits() {
    let stage = Stage::new();
    let ((key, mut entry), (other, second)) = (generate(), generate());
    entry.limits.tokens_per_minute = Some(100);
    stage.write(&[entry.clone(), second]);
    let access = stage.open();
    let before = with_key(&access, &key).unwrap();
    before.limiter.reserve(80).unwrap().settle(80);
    let gone = Arc::downgrade(&with_key(&access, &other).unwrap().limiter);

    entry.limits.tokens_per_minute = Some(1_000);
    stage.write(&[entry]);
    access.reload_if_changed().unwrap();
    assert!(gone.upgrade().is_none(), "the account of a removed key is kept");
    let after = with_key(&access, &key).unwrap();
    assert!(Arc::ptr_eq(&before.limiter, &after.limiter));
    let refusal = after.limiter.reserve(201).map(|_| ()).unwrap_err();
    assert!(matches!(refusal, Refusal::Limited { .. }), "{refusal}");
    after.limiter.reserve(200).unwrap().settle(200);
}

#[test]
fn an_open_gateway_admits_all_as_one_tenant() {
    let access = Access::open_to_all("dev".parse().unwrap());
    assert!(access.is_open());
    for header in [None, Some("Bearer x"), Some("Basic x")] {
        let caller = access.check(header, None).unwrap();
        assert_eq!(caller.tenant.as_str(), "dev");
        assert!(caller.admin && caller.may_use(&"any".parse().unwrap()));
        caller.limiter.reserve(u64::MAX).unwrap().settle(1);
    }
    assert_eq!(access.reload_if_changed().unwrap(), Reload::Unchanged);
}

#[test]
fn debug_shows_no_hash() {
    let stage = Stage::new();
    let (key, entry) = generate();
    let hash = entry.hash.to_hex();
    stage.write(&[entry]);
    let access = stage.open();
    let shown = format!("{access:?} {:?}", with_key(&access, &key));
    assert!(!shown.contains(&hash) && !shown.contains(key.reveal()), "{shown}");
}
