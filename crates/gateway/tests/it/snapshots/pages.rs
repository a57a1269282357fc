//! Models, health, metrics, the OpenAPI document and the chat page.

use nsbridge_gateway::access::Limits;
use serde_json::json;

use super::record::Record;
use super::script::open_gate;
use crate::http::{Connection, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages() {
    let mut record = Record::new("", "", Limits::default()).await;
    record.title("models");
    for path in ["/v1/models", "/v1/models/script", "/v1/models/away", "/v1/models/none"] {
        record.get(path).await;
    }
    record.title("health");
    for path in ["/livez", "/health", "/readyz", "/metrics"] {
        record.send("GET", path, "", "", &[]).await;
    }
    record.send("HEAD", "/livez", "", "", &[]).await;
    record.send("POST", "/livez", "", "", &[]).await;
    record.title("the document of the interface");
    record.send("GET", "/openapi.json", "", "", &[]).await;
    record.title("the page");
    for file in ["index.html", "app.js", "style.css", "bear.svg"] {
        let path = if file == "index.html" { "/".to_owned() } else { format!("/page/{file}") };
        let mut page =
            record.place.raw(&request("GET", &path, "", "", &[("x-request-id", "r")])).await;
        let on_disk = format!("{}/page/{file}", env!("CARGO_MANIFEST_DIR"));
        assert!(page.body == std::fs::read_to_string(on_disk).unwrap(), "{file}");
        // The page may change without the gateway.
        page.body = format!("(page/{file})");
        let length = format!("content-length: {}", page.header("content-length").unwrap());
        page.head = page.head.replace(&length, "content-length: <bytes>");
        let tag = page.header("etag").unwrap().to_owned();
        record.note(&format!("GET {path}"), &page);
        let known =
            request("GET", &path, "", "", &[("if-none-match", &tag), ("x-request-id", "r")]);
        let known = record.place.raw(&known).await;
        record.note(&format!("GET {path}, known"), &known);
    }
    record.send("GET", "/page/none.js", "", "", &[]).await;
    record.send("POST", "/", "", "{}", &[]).await;
    record.title("the metrics");
    record.post("/v1/completions", &json!({ "model": "script", "prompt": "a| b" })).await;
    let mut listener = Connection::to(record.place.metrics).await;
    listener.send(&request("GET", "/metrics", "", "", &[])).await;
    let mut measured = listener.rest().await;
    // The values and the order of the labels' values differ from run to run.
    let (about, series): (Vec<&str>, Vec<&str>) =
        measured.body.lines().partition(|line| line.starts_with('#'));
    let names = series.iter().filter_map(|line| line.rsplit_once(' ').map(|(name, _)| name));
    let mut names: Vec<&str> = names.filter(|name| !name.contains("_bucket{")).collect();
    names.sort_unstable();
    let text = format!("{}\n{}", about.join("\n"), names.join("\n"));
    let length = format!("content-length: {}", measured.header("content-length").unwrap());
    measured.head = measured.head.replace(&length, "content-length: <bytes>");
    measured.body = text;
    record.note("GET /metrics at the listener of the metrics", &measured);
    at_the_listener_of_metrics(&mut record).await;
    record.check("pages");
}

async fn at_the_listener_of_metrics(record: &mut Record) {
    for path in ["/livez", "/health", "/readyz", "/none"] {
        let mut listener = Connection::to(record.place.metrics).await;
        listener.send(&request("GET", path, "", "", &[])).await;
        let answer = listener.rest().await;
        record.note(&format!("GET {path} at the listener of the metrics"), &answer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_of_a_gateway_that_drains() {
    let mut record = Record::new("", "", Limits::default()).await;
    let script = "one|<gate>|two in a drain";
    let body = json!({ "model": "script", "prompt": script, "stream": true });
    let mut stream = record.place.open("/v1/completions", &body, &[("x-request-id", "r")]).await;
    stream.until("\"text\":\"one\"").await;
    record.place.drain.cancel();
    at_the_listener_of_metrics(&mut record).await;
    open_gate(script);
    record.note(&format!("POST /v1/completions {body}"), &stream.rest().await);
    record.check("drain");
}
