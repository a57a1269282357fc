//! Sealed requests of proxies, and a gateway that asks for no key.

use nsbridge_gateway::access::Limits;
use serde_json::json;

use super::record::Record;
use crate::http::request;
use crate::place::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed() {
    let gateway = Place::sealed(Limits::default()).await;
    let proxy = gateway.proxy(gateway.address, &gateway.key, "one").await.unwrap();
    let foreign = gateway.proxy(gateway.address, &gateway.key, "two").await.unwrap();
    let mut record = Record::of(gateway);
    record.get("/v1/sealed").await;
    record.send("GET", "/v1/sealed", "", "", &[]).await;
    record.post("/v1/sealed", &json!({})).await;
    record.title("through a proxy");
    let path = "/v1/completions";
    let fixed = [("x-request-id", "r")];
    let words = |stream: bool| {
        json!({ "model": "words", "prompt": "0 a snapshot", "max_tokens": 3, "seed": 7,
                "stream": stream })
    };
    for body in [words(false), words(true), json!({ "model": "absent", "prompt": "0 x" })] {
        record.note(&format!("POST {path} {body}"), &proxy.post(path, &body, &fixed).await);
    }
    record.note("GET /v1/models", &proxy.raw(&request("GET", "/v1/models", "", "", &fixed)).await);
    let page = [("origin", "https://evil.example"), fixed[0]];
    let page = proxy.raw(&request("POST", path, "", &words(false).to_string(), &page)).await;
    record.note("POST of a foreign page", &page);
    record.note("POST of another tenant", &foreign.post(path, &words(false), &fixed).await);
    record.check("sealed");
}
