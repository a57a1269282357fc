//! Errors end a command with one sentence and a non-zero exit code.

use std::fs;

use nsbridge_queue::{AmqpBroker, Broker as _, Message};

use crate::place::{Place, nsbridge, output};

/// Runs a worker that must fail at once and returns its error sentence.
#[track_caller]
fn refused(place: &Place) -> String {
    let (output, out, err) = output(&["worker", "--config", &place.path("worker.toml")]);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(out.is_empty(), "{out}");
    let errors: Vec<&str> = err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{err}");
    assert!(!err.contains("panicked"), "{err}");
    errors[0].to_owned()
}

#[track_caller]
fn check(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
}

#[test]
fn a_typo_in_the_configuration_is_named_with_a_suggestion() {
    let place = Place::new();
    place.configure("[reply]\ncoalesce_mss = 5\n");
    check(&refused(&place), &["worker.toml", "`coalesce_mss`", "did you mean `coalesce_ms`?"]);
    place.configure("[handler]\ntemprature = 1.0\n");
    check(&refused(&place), &["worker.toml", "[handler]", "`temprature`"]);
    place.configure("[handler]\nmax_tokens = \"many\"\n");
    check(&refused(&place), &["worker.toml", "[handler] max_tokens", "\"many\""]);
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    let (output, _, err) = output(&["worker", "--config", "/nowhere/worker.toml"]);
    assert_eq!(output.status.code(), Some(1));
    check(&err, &["/nowhere/worker.toml", "No such file", "--config"]);
}

#[test]
fn a_model_without_its_files_is_named() {
    let place = Place::new();
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let text = fs::read_to_string(place.path("worker.toml")).unwrap();
    let target = text.lines().find(|line| line.starts_with("target")).unwrap();
    fs::write(place.path("worker.toml"), text.replace(target, "target = \"empty\"")).unwrap();
    check(&refused(&place), &["empty", "no other file"]);
    fs::write(place.path("empty/notes.txt"), "what shall be a model").unwrap();
    check(&refused(&place), &["empty", "no .safetensors and no .gguf file"]);
    fs::write(place.path("worker.toml"), text.replace(target, "target = \"nowhere\"")).unwrap();
    check(&refused(&place), &["[models] target", "nowhere"]);
}

#[test]
fn a_broker_that_is_down_at_the_start_is_an_error_without_its_password() {
    let mut place = Place::new();
    place.url = "amqp://user:canary@127.0.0.1:1/%2f".into();
    place.configure("");
    let said = refused(&place);
    check(&said, &["cannot reach the broker", "127.0.0.1:1"]);
    assert!(!said.contains("canary"), "{said}");
}

#[test]
fn a_login_that_is_refused_says_so() {
    let mut place = Place::new();
    place.url = place.url.replace("guest:guest", "guest:wrong");
    place.configure("");
    check(&refused(&place), &["refused the login"]);
}

#[test]
fn a_keyring_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(place.path("keys.json"), open).unwrap();
    check(&refused(&place), &["keys.json", "chmod 600"]);
}

#[test]
fn a_model_that_nobody_serves_is_named() {
    let place = Place::new();
    let output = place.ask(&["hello"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    check(&err, &["there is no queue for the model", &place.model]);
}

#[test]
fn what_the_model_cannot_do_is_told_to_whoever_asked() {
    let place = Place::new();
    let _worker = place.worker();
    let output = place.ask(&["--top-p", "7", "hello"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    check(&err, &["top_p", "(bad-input)"]);
}

#[test]
fn a_wrong_flag_is_a_usage_error() {
    let code = |arguments: &[&str]| nsbridge(arguments).output().unwrap().status.code();
    assert_eq!(code(&["ask", "--frobnicate"]), Some(2));
    assert_eq!(code(&["ask", "--model", "m", "--input", "no json"]), Some(2));
    assert_eq!(code(&["ask", "--model", "m", "--input", "{}", "--temperature", "1"]), Some(2));
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&["--help"]), Some(0));
}

/// Returns true if the broker accepts a message of 17 MiB.
fn takes_17_mib(url: &str) -> bool {
    let sent = async {
        let connection = AmqpBroker::new(url)?.connect("a test").await?;
        let publisher = connection.publisher().await?;
        publisher.publish("", "nsbridge.nobody", Message::new(vec![0; 17 << 20])).await?.await
    };
    tokio::runtime::Runtime::new().unwrap().block_on(sent).is_ok()
}

#[test]
fn doctor_names_what_is_wrong_and_what_is_fine() {
    let place = Place::new();
    let config = place.path("worker.toml");
    let (healthy, out, err) = output(&["doctor", "--config", &config]);
    assert!(healthy.status.success(), "{out}{err}");
    check(&out, &["ok   configuration", "ok   keys: 1 key; ", "ok   broker", "ok   model"]);
    // RabbitMQ 3 accepts 128 MiB by default, RabbitMQ 4 accepts 16 MiB.
    let broker = out.lines().find(|line| line.starts_with("ok   broker")).unwrap();
    let large = broker.contains("it takes messages of 17 MiB and more")
        && broker.contains("set its max_message_size to 16777216");
    assert_eq!(large, takes_17_mib(&place.url), "{broker}");
    fs::remove_file(place.path("keys.json")).unwrap();
    let (ill, out, _) = output(&["doctor", "--config", &config]);
    assert_eq!(ill.status.code(), Some(1));
    check(&out, &["FAIL keys", "ok   broker"]);
}
