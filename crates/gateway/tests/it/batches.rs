//! Files and batches: what is refused, what a restart keeps, who sees them.

use std::time::{Duration, Instant};

use nsbridge_gateway::access::Limits;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::handler::{runs, said};
use crate::http::{Answer, request};
use crate::metrics::{FIRST_CHUNKS, reaches};
use crate::place::{Place, within};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends a file under a key.
async fn upload(place: &Place, key: &str, content: &str) -> Answer {
    let body = format!(
        "--cut\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--cut\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n\
         {content}\r\n--cut--\r\n"
    );
    let kind = ("content-type", "multipart/form-data; boundary=cut");
    place.raw(&request("POST", "/v1/files", key, &body, &[kind])).await
}

fn line(id: &str, model: &str, prompt: &str, pieces: u32) -> String {
    let body = json!({ "model": model, "prompt": prompt, "max_tokens": pieces });
    let line = json!({
        "custom_id": id, "method": "POST", "url": "/v1/completions", "body": body
    });
    format!("{line}\n")
}

/// Creates a batch under a key, and returns its path.
async fn create(place: &Place, key: &str, content: &str, window: &str) -> String {
    let file = upload(place, key, content).await.json();
    let asked = json!({
        "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": window
    });
    let made = place.post_as(key, "/v1/batches", &asked).await;
    assert_eq!(made.status, 200, "{made:?}");
    format!("/v1/batches/{}", made.json()["id"].as_str().unwrap())
}

/// Polls a batch or a response until it has this status.
pub(crate) async fn until(place: &Place, path: &str, status: &str) -> Value {
    let started = Instant::now();
    loop {
        let batch = place.get(path).await.json();
        if batch["status"] == status {
            return batch;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{batch}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Polls a batch until this number of lines has ended well.
async fn until_completed(place: &Place, path: &str, lines: u64) {
    let started = Instant::now();
    while place.get(path).await.json()["request_counts"]["completed"] != lines {
        assert!(started.elapsed() < TEST_TIMEOUT);
        sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the lines of a file by their custom id.
async fn read(place: &Place, file: &Value) -> Vec<(String, Value)> {
    let path = format!("/v1/files/{}/content", file.as_str().unwrap());
    let content = place.get(&path).await.body;
    let lines = content.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| (line["custom_id"].as_str().unwrap().to_owned(), line)).collect()
}

fn text(line: &Value) -> &str {
    line["response"]["body"]["choices"][0]["text"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_are_done_do_not_run_again_after_a_restart_and_others_continue() {
    let mut place = Place::stored("lines = 2", Limits::default()).await;
    let prompts = ["1 batch a", "100 batch b", "1 batch c", "100 batch d"];
    let content: String = prompts.iter().map(|prompt| line(prompt, "words", prompt, 30)).collect();
    let path = create(&place, &place.key, &content, "24h").await;
    // Two lines at a time: a ends, b runs, c ends, d runs.
    within(TEST_TIMEOUT, "the last line does not start", || !runs(prompts[3]).is_empty()).await;
    until_completed(&place, &path, 2).await;
    // The last line has a piece, which the gateway keeps.
    reaches(&place, FIRST_CHUNKS, 4.0).await;
    place.restart().await;
    let batch = until(&place, &path, "completed").await;
    assert_eq!(batch["request_counts"], json!({ "total": 4, "completed": 4, "failed": 0 }));
    assert_eq!(batch["usage"]["output_tokens"], 120);
    let output = read(&place, &batch["output_file_id"]).await;
    let ids: Vec<&str> = output.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, prompts);
    assert_eq!([0, 2].map(|done: usize| runs(prompts[done]).len()), [1, 1]);
    for (cut, (_, line)) in [1, 3].map(|cut: usize| (cut, &output[cut])) {
        let runs = runs(prompts[cut]);
        assert!(runs.len() == 2 && runs[1].resumed > 0, "{runs:?}");
        assert_eq!(text(line).split(' ').count(), 31);
    }
    // What stays of the batch is its record and its files.
    let again = place.get(&path).await.json();
    place.restart().await;
    assert_eq!(place.get(&path).await.json(), again);
    assert_eq!(read(&place, &again["output_file_id"]).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_ends_with_its_window_and_holds_up_no_other_model() {
    let place = Place::stored("lines = 1", Limits::default()).await;
    let content = line("done", "words", "1 in time", 3) + &line("late", "absent", "1 late", 3);
    let path = create(&place, &place.key, &content, "3s").await;
    let waits = create(&place, &place.key, &line("a", "absent", "1 waits", 3), "24h").await;
    let other = create(&place, &place.key, &line("b", "words", "1 other", 3), "24h").await;
    until(&place, &other, "completed").await;
    let batch = until(&place, &path, "expired").await;
    assert_eq!(batch["request_counts"], json!({ "total": 2, "completed": 1, "failed": 1 }));
    let output = read(&place, &batch["output_file_id"]).await;
    assert_eq!((output.len(), output[0].0.as_str()), (1, "done"));
    let errors = read(&place, &batch["error_file_id"]).await;
    assert_eq!((errors.len(), &errors[0].1["error"]["code"]), (1, &json!("batch_expired")));
    assert_eq!(place.get(&waits).await.json()["status"], "in_progress");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_may_be_of_moderations() {
    let place = Place::judging("").await;
    let line = |id: &str, input: &str| {
        let body = json!({ "input": input });
        let line = json!({
            "custom_id": id, "method": "POST", "url": "/v1/moderations", "body": body
        });
        format!("{line}\n")
    };
    let file = upload(&place, &place.key, &(line("a", "hate") + &line("b", ""))).await.json();
    let asked = json!({
        "input_file_id": file["id"], "endpoint": "/v1/moderations", "completion_window": "24h"
    });
    let made = place.post("/v1/batches", &asked, &[]).await.json();
    let path = format!("/v1/batches/{}", made["id"].as_str().unwrap());
    let batch = until(&place, &path, "completed").await;
    assert_eq!(batch["request_counts"], json!({ "total": 2, "completed": 1, "failed": 1 }));
    let output = read(&place, &batch["output_file_id"]).await;
    let result = &output[0].1["response"]["body"]["results"][0];
    assert_eq!((output[0].0.as_str(), &result["category_scores"]["hate"]), ("a", &json!(1.0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canceled_batch_keeps_what_is_done_and_stops_what_runs() {
    let place = Place::stored("lines = 2", Limits::default()).await;
    let [quick, slow] = ["1 quick of a canceled batch", "50 slow of a canceled batch"];
    let content = line("a", "words", quick, 3) + &line("b", "words", slow, 400);
    let path = create(&place, &place.key, &content, "24h").await;
    within(TEST_TIMEOUT, "the slow line does not start", || !runs(slow).is_empty()).await;
    until_completed(&place, &path, 1).await;
    let answer = place.post(&format!("{path}/cancel"), &json!({}), &[]).await.json();
    assert!(answer["status"] == "cancelling" || answer["status"] == "cancelled", "{answer}");
    let batch = until(&place, &path, "cancelled").await;
    assert_eq!(read(&place, &batch["output_file_id"]).await.len(), 1);
    let errors = read(&place, &batch["error_file_id"]).await;
    assert_eq!(errors[0].1["error"]["code"], "batch_cancelled");
    within(TEST_TIMEOUT, "the slow line goes on", || runs(slow)[0].ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_sees_only_its_own_files_and_batches() {
    let place = Place::stored("", Limits::default()).await;
    let path = create(&place, &place.key, &line("a", "words", "1 own", 3), "24h").await;
    let batch = until(&place, &path, "completed").await;
    let input = batch["input_file_id"].as_str().unwrap();
    let output = batch["output_file_id"].as_str().unwrap();
    for path in [
        path.clone(),
        format!("/v1/files/{input}"),
        format!("/v1/files/{input}/content"),
        format!("/v1/files/{output}/content"),
    ] {
        assert_eq!(place.get(&path).await.status, 200, "{path}");
        assert_eq!(place.get_as(&place.other, &path).await.status, 404, "{path}");
        assert_eq!(place.get_as("", &path).await.status, 401, "{path}");
    }
    for list in ["/v1/files", "/v1/batches"] {
        assert_eq!(place.get_as(&place.other, list).await.json()["data"], json!([]), "{list}");
    }
    let delete = request("DELETE", &format!("/v1/files/{input}"), &place.other, "", &[]);
    assert_eq!(place.raw(&delete).await.status, 404);
    let cancel = place.post_as(&place.other, &format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancel.status, 404);
    let theirs = json!({
        "input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h"
    });
    let answer = place.post_as(&place.other, "/v1/batches", &theirs).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (404, &json!("input_file_id")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_have_limits_of_their_own_and_wait_instead_of_failing() {
    let limits = Limits { concurrent: Some(1), ..Limits::default() };
    let place = Place::stored("lines = 2", limits).await;
    let content = line("a", "words", "40 limited a", 20) + &line("b", "words", "1 limited b", 3);
    let path = create(&place, &place.other, &content, "24h").await;
    within(TEST_TIMEOUT, "no line starts", || !runs("40 limited a").is_empty()).await;
    // The key's other requests do not wait for its batch.
    let asked = json!({ "model": "words", "prompt": "1 beside", "max_tokens": 3, "seed": 7 });
    let beside = place.post_as(&place.other, "/v1/completions", &asked).await;
    assert_eq!((beside.status, beside.text()), (200, said(7, 3)));
    let started = Instant::now();
    let batch = loop {
        let batch = place.get_as(&place.other, &path).await.json();
        if batch["status"] == "completed" {
            break batch;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{batch}");
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(batch["request_counts"], json!({ "total": 2, "completed": 2, "failed": 0 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_creates_no_second_batch_and_an_input_in_use_stays() {
    let place = Place::stored("", Limits::default()).await;
    let file = upload(&place, &place.key, &line("a", "absent", "1 once", 3)).await.json();
    let asked = json!({
        "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"
    });
    let first = place.post("/v1/batches", &asked, &[]).await.json();
    let retry = ("x-stainless-retry-count", "1");
    assert_eq!(place.post("/v1/batches", &asked, &[retry]).await.json()["id"], first["id"]);
    assert_ne!(place.post("/v1/batches", &asked, &[]).await.json()["id"], first["id"]);
    let path = format!("/v1/files/{}", file["id"].as_str().unwrap());
    let delete = place.raw(&request("DELETE", &path, &place.key, "", &[])).await;
    assert_eq!((delete.status, delete.code().as_str()), (400, "file_in_use"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_has_a_limit_and_so_have_all_files_of_a_tenant() {
    let place = Place::stored("max_file = 1000\nmax_stored = 1500", Limits::default()).await;
    let large = upload(&place, &place.key, &"x".repeat(1001)).await;
    assert_eq!((large.status, large.code().as_str()), (413, "request_too_large"));
    assert_eq!(upload(&place, &place.key, &"x".repeat(1000)).await.status, 200);
    let second = upload(&place, &place.key, &"x".repeat(1000)).await;
    assert_eq!((second.status, second.code().as_str()), (400, "storage_full"));
    assert_eq!(upload(&place, &place.other, &"x".repeat(1000)).await.status, 200);
    let listed = place.get("/v1/files").await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_upload_or_no_batch_is_refused() {
    let place = Place::stored("", Limits::default()).await;
    let plain = place.post("/v1/files", &json!({ "purpose": "batch" }), &[]).await;
    assert_eq!(plain.status, 400, "{plain:?}");
    let kind = ("content-type", "multipart/form-data; boundary=cut");
    for (body, param) in [
        ("--cut--\r\n", json!("purpose")),
        ("--cut\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\n1\r\n--cut--\r\n", json!("x")),
        (
            "--cut\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--cut--\r\n",
            json!("file"),
        ),
        ("--cut\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n{", Value::Null),
    ] {
        let answer = place.raw(&request("POST", "/v1/files", &place.key, body, &[kind])).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
    }
    let query = place.get("/v1/batches?limit=x").await;
    assert_eq!((query.status, query.code().as_str()), (400, "invalid_request_error"));
    assert_eq!(place.get("/v1/files?limit=0").await.status, 400);
    let empty = create(&place, &place.key, "\n\n", "24h").await;
    let batch = until(&place, &empty, "failed").await;
    assert_eq!(batch["errors"]["data"][0]["code"], "empty_file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_a_store_says_that_it_serves_no_batches() {
    let place = Place::new().await;
    let answer = place.get("/v1/batches").await;
    assert_eq!((answer.status, answer.code().as_str()), (501, "not_served"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(upload(&place, &place.key, "{}").await.status, 501);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_batches_of_one_tenant_do_not_hold_up_those_of_another() {
    let place = Place::stored("lines = 1", Limits::default()).await;
    for number in 0..30 {
        let content = line("slow", "words", &format!("300 turn {number}"), 1);
        create(&place, &place.key, &content, "24h").await;
    }
    let began = Instant::now();
    let path = create(&place, &place.other, &line("quick", "words", "1 turn", 1), "24h").await;
    while place.get_as(&place.other, &path).await.json()["status"] != "completed" {
        assert!(began.elapsed() < TEST_TIMEOUT, "it does not end");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(runs("300 turn 29").is_empty(), "it has waited for the other tenant's lines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_a_bounded_number_of_batches_that_have_not_ended() {
    let place = Place::stored("", Limits::default()).await;
    let file = upload(&place, &place.key, &line("a", "absent", "1 bound", 1)).await.json();
    let asked = json!({
        "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"
    });
    let mut last = Value::Null;
    for _ in 0..64 {
        let made = place.post("/v1/batches", &asked, &[]).await;
        assert_eq!(made.status, 200, "{made:?}");
        last = made.json()["id"].clone();
    }
    let refused = place.post("/v1/batches", &asked, &[]).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_batches"));
    let path = format!("/v1/batches/{}", last.as_str().unwrap());
    place.post(&format!("{path}/cancel"), &json!({}), &[]).await;
    until(&place, &path, "cancelled").await;
    assert_eq!(place.post("/v1/batches", &asked, &[]).await.status, 200);
}
