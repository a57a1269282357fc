//! Errors of the endpoint through a gateway that listens.

use std::sync::Arc;

use nsbridge_client::{Key, Keyring, MemoryBroker};
use nsbridge_gateway_access::{ApiKey, Entry, add};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::gateway::Gateway;

/// Gateway without a worker, with an API key.
struct Door {
    _folder: tempfile::TempDir,
    address: std::net::SocketAddr,
    key: String,
}

impl Door {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, key) = (folder.path().join("access.json"), ApiKey::generate().unwrap());
        add(&file, Entry::new(&key, "t".parse().unwrap())).unwrap();
        let config = json!({
            "server": { "listen": "127.0.0.1:0" }, "broker": { "url": "amqp://127.0.0.1" },
            "keys": { "keyring": "keys.json" }, "access": { "file": file }, "models": { "m": {} }
        });
        let config: Config = serde_json::from_value(config).unwrap();
        let keyring = Keyring::of_key("k".parse().unwrap(), Key::generate().unwrap());
        let broker = Arc::new(MemoryBroker::new());
        let gateway = Gateway::on(config, broker, Arc::new(keyring)).await.unwrap();
        let address = gateway.address();
        tokio::spawn(gateway.run());
        Self { _folder: folder, address, key: key.reveal().to_string() }
    }

    /// Sends a request. Returns status, headers and body of the response.
    async fn ask(&self, line: &str, key: Option<&str>, body: &str) -> (u16, String, Value) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let key = key.map(|key| format!("x-api-key: {key}\r\n")).unwrap_or_default();
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-request-id: req_7\r\n{key}\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), serde_json::from_str(body).unwrap())
    }
}

#[tokio::test]
async fn each_error_of_the_endpoint_has_anthropics_shape_and_names_its_request() {
    let door = Door::new().await;
    let own = Some(door.key.as_str());
    let other = json!({
        "model": "other", "max_tokens": 1, "messages": [{ "role": "user", "content": "a" }]
    });
    let other = other.to_string();
    for (line, key, body, status, kind) in [
        ("POST /v1/messages", None, "{}", 401, "authentication_error"),
        ("POST /v1/messages", Some("nsk_x"), "{}", 401, "authentication_error"),
        ("POST /v1/messages", own, "{", 400, "invalid_request_error"),
        ("POST /v1/messages", own, &other, 404, "not_found_error"),
        ("POST /v1/messages/count_tokens", own, "{}", 400, "invalid_request_error"),
        ("POST /v1/messages/other", own, "{}", 404, "not_found_error"),
        ("GET /v1/messages", own, "", 405, "invalid_request_error"),
    ] {
        let (got, head, json) = door.ask(line, key, body).await;
        assert_eq!(
            (got, &json["type"], &json["request_id"]),
            (status, &"error".into(), &"req_7".into())
        );
        assert_eq!(json["error"]["type"], kind, "{line} {json}");
        assert!(json["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert!(head.contains("\r\nrequest-id: req_7"), "{head}");
    }
}

#[tokio::test]
async fn errors_of_other_endpoints_keep_openais_shape() {
    let door = Door::new().await;
    let (status, head, json) = door.ask("POST /v1/chat/completions", None, "{}").await;
    assert_eq!((status, &json["error"]["code"]), (401, &"invalid_api_key".into()));
    assert!(json.get("request_id").is_none() && !head.contains("\r\nrequest-id:"), "{head}");
}
