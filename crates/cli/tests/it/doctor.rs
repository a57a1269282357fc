//! `nsbridge doctor` before a broker that a worker cannot use: one line with the remedy for each fault.

use std::fs;

use nsbridge_testkit::{Moto, Rabbit};

use crate::place::{Place, nsbridge, output, until};

/// Runs doctor on this virtual host of the node, and checks the line of the broker.
#[track_caller]
fn check(node: &Rabbit, vhost: &str, fault: &str, remedy: &str) {
    let mut place = Place::new();
    place.url = node.url().replace("%2f", vhost);
    place.configure("");
    let (done, out, err) = output(&["doctor", "--config", &place.path("worker.toml")]);
    let broker = out.lines().find(|line| line.contains(" broker: ")).unwrap_or_default();
    assert_eq!(done.status.code(), Some(1), "{out}{err}");
    assert!(broker.starts_with("FAIL broker: "), "{broker}");
    assert!(broker.contains(fault) && broker.contains(remedy), "{broker}");
}

/// Returns an Erlang term that declares something in a virtual host, as another program would.
fn declare(vhost: &str, kind: &str, name: &str, rest: &str) -> String {
    let of_kind = if kind == "queue" { "amqqueue" } else { kind };
    format!("rabbit_{of_kind}:declare(rabbit_misc:r(<<\"{vhost}\">>, {kind}, {name}), {rest}).")
}

#[test]
fn a_broker_that_a_worker_cannot_use_is_one_line_with_its_remedy() {
    let node = Rabbit::start().unwrap();
    let eval = |term: &str| node.ctl(&["eval", term]).unwrap();
    for vhost in ["classic", "fanout", "queues"] {
        eval(&format!("rabbit_vhost:add(<<\"{vhost}\">>, <<\"test\">>)."));
        let all = "<<\".*\">>, <<\".*\">>, <<\".*\">>";
        eval(&format!(
            "rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, <<\"{vhost}\">>, {all}, \
             <<\"test\">>)."
        ));
    }
    // The name of the model differs for each check, that of the exchange does not.
    let exchange = "fanout, true, false, false, [], <<\"test\">>";
    eval(&declare("fanout", "exchange", "<<\"nsbridge.reply\">>", exchange));
    check(&node, "fanout", "the exchange nsbridge.reply is not nsbridge's", "delete it");

    node.ctl(&["set_vhost_limits", "-p", "queues", "{\"max-queues\": 3}"]).unwrap();
    check(&node, "queues", "a limit of the broker is reached", "set_vhost_limits");

    let mut classic = Place::new();
    let queue = format!("<<\"nsbridge.{}\">>", classic.model);
    eval(&declare("classic", "queue", &queue, "true, false, [], none, <<\"test\">>"));
    classic.url = node.url().replace("%2f", "classic");
    classic.configure("");
    let (done, out, _) = output(&["doctor", "--config", &classic.path("worker.toml")]);
    assert_eq!(done.status.code(), Some(1));
    let told = out.contains("exists with other arguments") && out.contains("drain and delete it");
    assert!(told, "{out}");

    eval("vm_memory_monitor:set_vm_memory_high_watermark(0.000001).");
    check(&node, "%2f", "the broker takes no messages", "free its memory or disk");
    eval("vm_memory_monitor:set_vm_memory_high_watermark(0.9).");

    node.ctl(&["set_user_limits", "guest", "{\"max-connections\": 1}"]).unwrap();
    check(&node, "%2f", "a worker needs two connections", "set_user_limits");
}

/// Runs doctor --deep with this configuration, and returns its lines.
fn deep(place: &Place, more: &[&str]) -> String {
    let config = place.path("worker.toml");
    let arguments = [&["doctor", "--deep", "--config", &config], more].concat();
    let mut command = nsbridge(&arguments);
    command.env("AWS_ACCESS_KEY_ID", "canary").env("AWS_SECRET_ACCESS_KEY", "canary");
    let (config_file, none) = (place.path("aws"), "true");
    command.env("AWS_CONFIG_FILE", config_file).env("AWS_EC2_METADATA_DISABLED", none);
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that a check fails with one line that has all these parts.
#[track_caller]
fn fails(out: &str, check: &str, parts: &[&str]) {
    let start = format!("FAIL {check}: ");
    let lines: Vec<_> = out.lines().filter(|line| line.starts_with(&start)).collect();
    assert!(lines.len() == 1 && parts.iter().all(|part| lines[0].contains(part)), "{out}");
    assert!(!out.contains("canary"), "{out}");
}

#[test]
fn a_deep_look_compares_the_queues_and_says_what_a_policy_or_a_missing_right_does() {
    let (node, api) = Rabbit::with_management().unwrap();
    let mut place = Place::new();
    place.url = node.url();
    place.configure("");
    let out = deep(&place, &["--management", &api]);
    let well = "ok   queues: all queues of the model have nsbridge's arguments, and 1 replica each";
    assert!(out.contains(well) && !out.contains("FAIL"), "{out}");
    assert!(out.contains("ok   kms: no key of AWS KMS is configured"), "{out}");

    let pattern = format!("^nsbridge\\.{}$", place.model);
    node.ctl(&["set_policy", "short", &pattern, "{\"max-length-bytes\": 1000}"]).unwrap();
    let told = || deep(&place, &["--management", &api]);
    until(|| told().contains("FAIL"));
    fails(&told(), "queues", &["a policy sets max-length-bytes = 1000 on the queue nsbridge."]);
    node.ctl(&["clear_policy", "short"]).unwrap();

    // A user of workers has neither the tag nor the rights on run records.
    node.ctl(&["add_user", "tale", "canary"]).unwrap();
    let rights =
        format!("^nsbridge\\.(control|reply|control\\..*|{}(\\.[a-z0-9.]*)?)$", place.model);
    let rights = rights.replace("[a-z0-9.]*", "(bulk|dead|(bulk\\.)?retry\\.(1s|10s|60s))");
    node.ctl(&["set_permissions", "-p", "/", "tale", &rights, ".*", ".*"]).unwrap();
    place.url = node.url().replace("guest:guest", "tale:canary");
    place.configure("");
    let out = deep(&place, &["--management", &api]);
    fails(&out, "broker", &["cannot keep run records", "nsbridge.<model>.runs.*"]);
    fails(&out, "queues", &["it refused the login", "the tag `management`"]);
    let out = deep(&place, &[]);
    fails(&out, "queues", &["http://127.0.0.1:15672/", "give its address by --management"]);
}

#[test]
fn a_deep_look_says_which_service_cannot_be_reached() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = Place::new();
    let (model, amqp) = (&place.model, place.url.replace("amqp://", "amqps://"));
    let text = format!(
        "[worker]\nmodel = \"{model}\"\n[broker]\nurl = \"{amqp}\"\n[keys]\n\
         kms_keys = [\"alias/none\"]\nregion = \"eu-central-1\"\nendpoint_url = \"http://{closed}\"\n\
         [store]\nregion = \"eu-central-1\"\nendpoint_url = \"http://{closed}\"\npatience_s = 2\n\
         [models]\ntarget = \"s3://bucket/bear\"\n"
    );
    fs::write(place.path("worker.toml"), &text).unwrap();
    let out = deep(&place, &[]);
    fails(
        &out,
        "kms",
        &["the key service cannot answer now", "it cannot be reached", "kms:Decrypt"],
    );
    fails(&out, "broker", &["nothing there speaks TLS", "5671"]);
    fails(&out, "model", &["s3://bucket/bear", "the store cannot be asked"]);

    let moto = Moto::start().unwrap();
    moto.kms_key("alias/tale").unwrap();
    let open = text.replace(&closed.to_string(), &moto.url().replace("http://", ""));
    fs::write(place.path("worker.toml"), &open).unwrap();
    fails(&deep(&place, &[]), "kms", &["the key `alias/none` was refused", "NotFoundException"]);
    fs::write(place.path("worker.toml"), open.replace("alias/none", "alias/tale")).unwrap();
    let out = deep(&place, &[]);
    assert!(out.contains("ok   kms: AWS KMS answers and would decrypt with 1 key"), "{out}");
    fails(&out, "model", &["s3://bucket/bear"]);
}
