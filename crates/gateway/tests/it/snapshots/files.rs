//! Files and batches.

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};

use super::record::{LOCAL, Record};
use crate::handler::runs;
use crate::http::TEST_TIMEOUT;
use crate::place::within;

const MULTIPART: (&str, &str) = ("content-type", "multipart/form-data; boundary=cut");

async fn upload(record: &mut Record, content: &str) -> Value {
    let body = format!(
        "--cut\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--cut\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n\
         {content}\r\n--cut--\r\n"
    );
    let key = record.place.key.clone();
    record.send("POST", "/v1/files", &key, &body, &[MULTIPART]).await.json()["id"].clone()
}

fn line(id: &str, url: &str, body: &Value) -> String {
    format!("{}\n", json!({ "custom_id": id, "method": "POST", "url": url, "body": body }))
}

fn completion(id: &str, script: &str) -> String {
    line(id, "/v1/completions", &json!({ "model": "script", "prompt": script }))
}

/// Uploads lines, creates a batch of them, and returns its path.
async fn create(record: &mut Record, endpoint: &str, content: &str) -> String {
    let file = upload(record, content).await;
    let asked = json!({ "input_file_id": file, "endpoint": endpoint, "completion_window": "24h",
                        "metadata": { "a": "b" } });
    let made = record.post("/v1/batches", &asked).await.json();
    format!("/v1/batches/{}", made["id"].as_str().unwrap())
}

/// Records a batch that has ended, and its files.
async fn ended(record: &mut Record, path: &str, status: &str) -> Value {
    record.until(path, status).await;
    let batch = record.get(path).await.json();
    for name in ["output_file_id", "error_file_id"] {
        if let Some(id) = batch[name].as_str() {
            record.get(&format!("/v1/files/{id}")).await;
            record.get(&format!("/v1/files/{id}/content")).await;
        }
    }
    batch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_batches() {
    let mut record = Record::new("", LOCAL, Limits::default()).await;
    record.title("a batch that completes");
    let content =
        completion("a", "one| two") + &completion("b", "<bad>") + &completion("c", "<fail>");
    let path = create(&mut record, "/v1/completions", &content).await;
    let batch = ended(&mut record, &path, "completed").await;
    record.post(&format!("{path}/cancel"), &json!({})).await;
    for (endpoint, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": "script", "messages": [{ "role": "user", "content": "a|b" }] }),
        ),
        ("/v1/responses", json!({ "model": "script", "input": "a|b", "seed": 7 })),
        ("/v1/embeddings", json!({ "model": "vectors", "input": "a b" })),
        ("/v1/moderations", json!({ "input": "hate" })),
        ("/v1/messages", json!({ "model": "script" })),
    ] {
        record.title(&format!("a batch of {endpoint}"));
        let file = upload(&mut record, &line("a", endpoint, &body)).await;
        let asked =
            json!({ "input_file_id": file, "endpoint": endpoint, "completion_window": "24h" });
        let made = record.post("/v1/batches", &asked).await;
        if made.status == 200 {
            let path = format!("/v1/batches/{}", made.json()["id"].as_str().unwrap());
            ended(&mut record, &path, "completed").await;
        }
    }
    record.title("a batch that fails");
    let path = create(&mut record, "/v1/completions", "{\n[]\n").await;
    ended(&mut record, &path, "failed").await;

    record.title("a canceled batch");
    let slow = "5000 a canceled batch of the snapshots";
    let of_words =
        line("b", "/v1/completions", &json!({ "model": "words", "prompt": slow, "max_tokens": 9 }));
    let path = create(&mut record, "/v1/completions", &of_words).await;
    within(TEST_TIMEOUT, "the line does not start", || !runs(slow).is_empty()).await;
    record.post(&format!("{path}/cancel"), &json!({})).await;
    ended(&mut record, &path, "cancelled").await;

    record.title("lists");
    for path in [
        "/v1/files",
        "/v1/files?limit=2",
        "/v1/files?limit=0",
        "/v1/files?order=asc&limit=1",
        "/v1/files?purpose=batch&limit=1",
        "/v1/batches?limit=2",
        "/v1/batches",
        "/v1/batches?limit=x",
    ] {
        record.get(path).await;
    }
    let id = batch["input_file_id"].as_str().unwrap();
    record.get(&format!("/v1/batches?after={}&limit=1", batch["id"].as_str().unwrap())).await;
    record.get(&format!("/v1/files?after={id}&limit=1&order=asc")).await;
    record.title("another tenant");
    let (key, other) = (record.place.key.clone(), record.place.other.clone());
    for path in ["/v1/files".to_owned(), "/v1/batches".to_owned(), path, format!("/v1/files/{id}")]
    {
        record.send("GET", &path, &other, "", &[]).await;
    }
    record.title("deleted files");
    record.get(&format!("/v1/files/{id}/content")).await;
    record.send("DELETE", &format!("/v1/files/{id}"), &key, "", &[]).await;
    record.get(&format!("/v1/files/{id}")).await;
    record.get(&format!("/v1/files/{id}/content")).await;
    record.send("DELETE", "/v1/files/none", &key, "", &[]).await;

    record.title("refusals");
    for body in [
        "--cut--\r\n",
        "--cut\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\n1\r\n--cut--\r\n",
        "--cut\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--cut--\r\n",
        "--cut\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nvision\r\n--cut--\r\n",
        "--cut\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n{",
    ] {
        record.send("POST", "/v1/files", &key, body, &[MULTIPART]).await;
    }
    record.post("/v1/files", &json!({ "purpose": "batch" })).await;
    let none = format!("file-{}", "0".repeat(32));
    for body in [
        json!({}),
        json!({ "input_file_id": none, "endpoint": "/v1/completions", "completion_window": "24h" }),
        json!({ "input_file_id": none, "endpoint": "/v1/none", "completion_window": "24h" }),
        json!({ "input_file_id": none, "endpoint": "/v1/completions", "completion_window": "1y" }),
    ] {
        record.post("/v1/batches", &body).await;
    }
    record.get("/v1/batches/none").await;
    record.post("/v1/batches/none/cancel", &json!({})).await;
    record.title("after a restart");
    record.place.restart().await;
    record.get("/v1/batches").await;
    record.get("/v1/files").await;
    record.check("files");
}
