//! `nsbridge doctor` before a broker that a worker cannot use: one line with the remedy for each fault.

use nsbridge_testkit::Rabbit;

use crate::place::{Place, output};

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
