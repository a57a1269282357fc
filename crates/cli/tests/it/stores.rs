//! Other S3 services, and credentials that expire.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Output;
use std::time::Duration;

use nsbridge_testkit::Moto;
use nsbridge_testkit::s3::{EcsCredentials, Fault, Faults, Lifetime, Rule, S3Server};
use serde_json::Value;

use crate::place::{model, nsbridge};

const PLACE: &str = "s3://models/tale-7m";

#[track_caller]
fn good(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks the features that every S3 service must have: multipart uploads, resumed pushes,
/// conditional requests, ranges.
fn check(environment: &[(&str, String)]) {
    let run = |arguments: &[&str]| {
        let mut command = nsbridge(&[&["model"], arguments, &["--json"]].concat());
        command.envs(environment.iter().map(|(name, value)| (name, value))).output().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    for file in model().read_dir().unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    // This file is uploaded in two parts.
    let large: Vec<u8> =
        (0..20_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(folder.path().join("large.bin"), large).unwrap();
    let folder = folder.path().to_str().unwrap();
    let push = ["push", folder, PLACE, "--revision", "r1"];
    let pushed = good(&run(&push));
    assert_eq!(good(&run(&push))["manifest"], pushed["manifest"]);
    assert_eq!(good(&run(&["verify", PLACE]))["good"], true);
    let copy = tempfile::tempdir().unwrap();
    good(&run(&["pull", PLACE, copy.path().to_str().unwrap()]));
    for file in ["large.bin", "model.safetensors", "config.json"] {
        let right = std::fs::read(format!("{folder}/{file}")).unwrap();
        assert!(std::fs::read(copy.path().join(file)).unwrap() == right, "{file}");
    }
    assert_eq!(good(&run(&["inspect", PLACE]))["revision"], "r1");
    let other = format!("{}/../tale-1m", model().display());
    let refused = run(&["push", &other, PLACE, "--revision", "r1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("holds another model"));
    good(&run(&["push", &other, PLACE, "--revision", "r2", "--no-alias"]));
    assert_eq!(good(&run(&["inspect", PLACE]))["revision"], "r1");
    good(&run(&["point", &format!("{PLACE}@r2")]));
    assert_eq!(good(&run(&["inspect", PLACE]))["revision"], "r2");
    let missing = run(&["inspect", "s3://models/nothing"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no model"));
}

#[test]
fn moto_is_an_object_store_as_good_as_ours() {
    let moto = Moto::start().unwrap();
    let addr: SocketAddr = moto.url().strip_prefix("http://").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(addr).unwrap();
    let bucket =
        "PUT /models HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    stream.write_all(bucket.as_bytes()).unwrap();
    let mut made = String::new();
    stream.read_to_string(&mut made).unwrap();
    assert!(made.starts_with("HTTP/1.1 200"), "{made}");
    check(&[
        ("AWS_ENDPOINT_URL", moto.url()),
        ("AWS_ACCESS_KEY_ID", "anybody".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "anything".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]);
}

#[test]
fn our_own_store_is_one_too() {
    let server = S3Server::start().unwrap();
    server.bucket("models");
    check(&[
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_ACCESS_KEY_ID", server.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", server.secret_key().to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]);
}

#[test]
fn a_tasks_credentials_are_refreshed_while_a_model_is_read() {
    let server = S3Server::start().unwrap();
    server.bucket("models");
    let ecs = EcsCredentials::start(&server, Lifetime::of(Duration::from_secs(12))).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = nsbridge(&[&["model"], arguments, &["--json"]].concat());
        command
            .env("AWS_ENDPOINT_URL", server.endpoint())
            .env("AWS_REGION", "us-east-1")
            .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", ecs.uri())
            .env("AWS_CONTAINER_AUTHORIZATION_TOKEN", ecs.authorization())
            .env_remove("AWS_ACCESS_KEY_ID");
        command.output().unwrap()
    };
    good(&run(&["push", model().to_str().unwrap(), PLACE, "--revision", "r1"]));
    // The weights are read before the tokenizer, for longer than the credentials live.
    let slow = Rule::new(Fault::Slow(1_000_000)).of("safetensors");
    server.faults(Faults::none().with(slow));
    server.reset_counts();
    assert_eq!(good(&run(&["verify", PLACE, "--in-flight", "1"]))["good"], true);
    let keys: std::collections::BTreeSet<_> =
        server.seen().into_iter().filter_map(|seen| seen.access_key).collect();
    assert!(keys.len() > 1, "{keys:?}");
}
