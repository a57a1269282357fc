//! Tests of the services that the configuration and the environment turn on.

use nsbridge_testkit::http::{Answer, Server};

use super::{EcsAddresses, Notice, Platform};
use crate::config::FleetConfig;

fn ecs() -> EcsAddresses {
    EcsAddresses { metadata: Some("http://m".into()), agent: Some("http://a".into()) }
}

#[track_caller]
fn check(spot: bool, use_ecs: Option<bool>, addresses: EcsAddresses, on: [bool; 3]) {
    let config = FleetConfig { spot, ecs: use_ecs, ..FleetConfig::default() };
    let platform = Platform::new(&config, addresses).unwrap();
    assert_eq!(
        [platform.spot.is_some(), platform.task.is_some(), platform.protection.is_some()],
        on
    );
}

#[test]
fn ecs_is_asked_where_it_says_that_it_is_there() {
    check(false, None, EcsAddresses::default(), [false, false, false]);
    check(true, None, EcsAddresses::default(), [true, false, false]);
    check(false, None, ecs(), [false, true, true]);
    check(false, None, EcsAddresses { agent: None, ..ecs() }, [false, true, false]);
    check(true, Some(false), ecs(), [true, false, false]);
    check(false, Some(true), ecs(), [false, true, true]);
}

#[test]
fn ecs_that_is_wanted_and_not_there_is_one_sentence() {
    let config = FleetConfig { ecs: Some(true), ..FleetConfig::default() };
    let said = Platform::new(&config, EcsAddresses::default()).unwrap_err().to_string();
    assert!(said.contains("ECS_AGENT_URI") && said.ends_with("this is no ECS task"), "{said}");
}

#[tokio::test]
async fn whichever_notice_comes_first_is_told() {
    let server = Server::start(|seen| match seen.line.as_str() {
        "GET /v4/task" => Answer::new(200, r#"{"DesiredStatus":"STOPPED"}"#),
        _ => Answer::never(),
    })
    .await
    .unwrap();
    let config = FleetConfig { spot: true, imds: server.url(""), ..FleetConfig::default() };
    let addresses = EcsAddresses { metadata: Some(server.url("/v4")), agent: None };
    let mut platform = Platform::new(&config, addresses).unwrap();
    assert_eq!(platform.notice().await, Notice::TaskStops);
}
