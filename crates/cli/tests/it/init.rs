//! `nsbridge init`: the folder that it writes is one that `nsbridge worker` accepts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::place::{Place, Process, nsbridge, output};

/// Runs the command and returns what it says.
#[track_caller]
fn init(arguments: &[&str]) -> String {
    let (done, out, err) = output(&[&["init"], arguments].concat());
    assert!(done.status.success() && out.is_empty(), "{arguments:?}: {err}");
    err
}

/// Runs the command, which must fail, and returns its sentence.
#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let (done, _, err) = output(&[&["init"], arguments].concat());
    assert!(done.status.code() == Some(1) && err.lines().count() == 1, "{arguments:?}: {err}");
    err
}

#[test]
fn a_worker_starts_from_the_files_unchanged_and_answers() {
    let place = Place::new();
    let out = place.path("tale");
    let said = init(&["--out", &out, "--name", &place.model]);
    for name in ["compose.yaml up --wait", "nsbridge worker --config", "nsbridge ask --keyring"] {
        assert!(said.contains(name), "{said}");
    }
    let keys = fs::metadata(format!("{out}/keys.json")).unwrap();
    assert_eq!(keys.permissions().mode() & 0o777, 0o600);
    // The broker of the tests, and a port of the pages that is free.
    let environment = [
        ("NSBRIDGE_BROKER__URL", place.url.clone()),
        ("NSBRIDGE_HEALTH__LISTEN", "127.0.0.1:0".to_owned()),
    ];
    let mut worker = nsbridge(&["worker", "--config", &format!("{out}/worker.toml")]);
    worker.envs(environment);
    let _worker = place.start(worker);
    let keyring = format!("{out}/keys.json");
    let mut ask = nsbridge(&["ask", "--model", &place.model, "--broker", &place.url]);
    ask.args(["--keyring", &keyring, "--max-tokens", "8", "Once a bear"]);
    let text: Vec<String> = Process(ask.spawn().unwrap()).lines().map(Result::unwrap).collect();
    assert!(!text.concat().trim().is_empty());
}

#[test]
fn a_model_in_python_is_named_relative_to_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("parrot.py"), "class Parrot: pass\n").unwrap();
    let model = format!("{}:Parrot", path("parrot.py"));
    let said = init(&["--python", &model, "--model", "s3://bucket/weights", "--out", &path("")]);
    assert!(said.contains("--model parrot --input"), "{said}");
    let text = fs::read_to_string(path("worker.toml")).unwrap();
    for line in [
        "model = \"parrot\"",
        "entry_point = \"parrot.py:Parrot\"",
        "target = \"s3://bucket/weights\"",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn with_a_broker_there_is_no_compose_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a").to_str().unwrap().to_owned();
    let said = init(&["--broker", "amqps://mq.example/%2f", "--out", &out]);
    assert!(
        !said.contains("compose") && said.contains("--broker amqps://mq.example/%2f"),
        "{said}"
    );
    assert!(!dir.path().join("a/compose.yaml").exists());
    let text = fs::read_to_string(dir.path().join("a/worker.toml")).unwrap();
    assert!(text.contains("url = \"amqps://mq.example/%2f\""), "{text}");
}

#[test]
fn nothing_is_overwritten_and_nothing_written_beside_a_file_that_exists() {
    for existing in ["worker.toml", "keys.json", "compose.yaml"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(existing);
        fs::write(&path, "mine").unwrap();
        let said = refused(&["--out", dir.path().to_str().unwrap()]);
        assert!(said.contains(existing) && said.contains("nothing was written"), "{said}");
        assert_eq!(fs::read_to_string(path).unwrap(), "mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{existing}");
    }
}

#[test]
fn what_cannot_be_a_worker_is_one_sentence_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new");
    let check = |arguments: &[&str], parts: &[&str]| {
        let said = refused(&[arguments, &["--out", out.to_str().unwrap()]].concat());
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(!out.exists(), "{arguments:?}");
    };
    check(&["--model", "/nowhere"], &["--model", "/nowhere", "a folder or a .gguf file"]);
    check(&["--python", "/nowhere.py:A"], &["--python", "/nowhere.py"]);
    let odd = dir.path().join("a b");
    fs::create_dir(&odd).unwrap();
    check(&["--model", odd.to_str().unwrap()], &["a b", "--name"]);
    let (done, _, err) = output(&["init", "--broker", "amqps://me:canary@mq/%2f"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(err.contains("NSBRIDGE_BROKER__URL") && !err.contains("canary"), "{err}");
}

/// The compose file has the broker of the one that the project deploys.
#[test]
fn the_broker_is_that_of_the_deployment() {
    let ours = include_str!("../../src/init/compose.yaml");
    let deployed = include_str!("../../../../deploy/compose.yaml");
    for field in
        ["image: rabbitmq", "hostname: rabbitmq", "- \"127.0.0.1:5672:5672\"", "test: [\"CMD\""]
    {
        let line = |text: &str| {
            let found = text.lines().find(|line| line.contains(field));
            found.unwrap_or_else(|| panic!("there is no {field}")).trim().to_owned()
        };
        assert_eq!(line(ours), line(deployed));
    }
    let ports =
        ours.lines().filter(|line| line.trim_start().starts_with("- \"") && line.contains(':'));
    assert!(ports.clone().count() == 2 && ports.clone().all(|line| line.contains("127.0.0.1")));
}
