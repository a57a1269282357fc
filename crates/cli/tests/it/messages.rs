//! Anthropic's Messages API of a gateway with a worker, through the official Python client.

use std::fs;

use crate::door::{Door, Official};

#[test]
fn anthropics_client_reads_messages_and_streams() {
    let door = Door::for_client(Official::Anthropic);
    let (_worker, _gateway) = (door.place.worker(), door.open());
    door.check("message", &[]);
    door.check("blocks", &[]);
    door.check("stop_sequence", &[]);
    door.check("prefill", &[]);
    assert!(door.check("concurrent", &[]).as_u64() > Some(1));
}

#[test]
fn anthropics_client_reads_calls_formats_and_counts() {
    let door = Door::for_client(Official::Anthropic);
    let (_worker, _gateway) = (door.place.worker(), door.open());
    door.check("tools", &[]);
    door.check("structured", &[]);
    assert!(door.check("count", &[]).as_u64() > Some(1));
}

#[test]
fn anthropics_client_is_told_what_is_wrong() {
    let door = Door::for_client(Official::Anthropic);
    let (_worker, _gateway) = (door.place.worker(), door.open());
    let told = door.check("errors", &[]);
    let expected = [
        "authentication_error",
        "not_found_error",
        "invalid_request_error",
        "invalid_request_error",
        "invalid_request_error",
        "invalid_request_error",
        "invalid_request_error",
    ];
    assert_eq!(told, serde_json::json!(expected));
    let log = fs::read_to_string(door.place.path("gateway.log")).unwrap();
    assert!(!log.contains("クマ") && !log.contains(&door.key), "{log}");
}
