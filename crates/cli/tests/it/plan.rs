//! `nsbridge plan`, compared with what a broker counts.

use nsbridge_testkit::Rabbit;
use serde_json::Value;

use crate::door::Door;
use crate::place::{output, until};

fn plan(arguments: &[&str]) -> Value {
    let (ended, out, err) = output(&[&["plan", "--json"], arguments].concat());
    assert!(ended.status.success(), "{err}");
    serde_json::from_str(&out).unwrap()
}

/// Returns the number of lines that `rabbitmqctl` lists.
fn count(rabbit: &Rabbit, arguments: &[&str], of: &str) -> u64 {
    let listed = rabbit.ctl(&[arguments, &["--quiet", "--no-table-headers"]].concat()).unwrap();
    listed.lines().filter(|line| line.contains(of)).count() as u64
}

#[test]
fn a_broker_counts_what_was_planned() {
    let rabbit = Rabbit::start().unwrap();
    let mut door = Door::new();
    door.place.url = rabbit.url();
    door.place.configure("");
    let url = rabbit.url();
    let _worker = door.place.worker();
    let _gateway = door.open_in(&[("NSBRIDGE_BROKER__URL", &url)]);
    door.check("completion", &[]);
    let planned = plan(&["--workers", "1", "--gateways", "1"]);
    let queues = |kind: &str| count(&rabbit, &["list_queues", "name", "type"], kind);
    until(|| Some(queues("quorum")) == planned["quorum_queues"].as_u64());
    until(|| Some(queues("classic")) == planned["classic_queues"].as_u64());
    let connections = || count(&rabbit, &["list_connections", "pid"], "<");
    until(|| Some(connections()) == planned["connections"].as_u64());
    let channels = count(&rabbit, &["list_channels", "pid"], "<");
    assert!(channels <= planned["most_channels"].as_u64().unwrap(), "{channels}");
}

#[test]
fn a_plan_is_a_table_and_refuses_what_no_fleet_has() {
    let (_, out, _) = output(&["plan", "--models", "3", "--workers", "12", "--nodes", "3"]);
    for line in [
        "quorum queues            27 ",
        "their replicas           81 ",
        "connections              24 ",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let (ended, _, err) = output(&["plan", "--workers", "1000001"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(err.contains("--workers is 1000001: set it to at most 1000000"), "{err}");
}
