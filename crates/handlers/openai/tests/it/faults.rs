//! Servers that fail: at the load, at a request, in a reply.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::{Error, FinishReason, Models, Result, Stop, testing};
use nsbridge_openai::{OpenAi, Options};
use nsbridge_testkit::http::{Answer, Seen, Server};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::block_in_place;

const CARD: &str = r#"{"data":[{"id":"m","owned_by":"someone"}]}"#;
const TWO: &str = r#"{"data":[{"id":"a"},{"id":"b"}]}"#;
const SAID: &str = concat!(
    "data: {\"choices\":[{\"text\":\"one two\"}]}\n\n",
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n"
);

fn load(options: Options) -> Result<Arc<OpenAi>> {
    block_in_place(|| testing::load(options, Models::default()))
}

async fn loaded(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> (Server, Arc<OpenAi>) {
    let server = Server::start(move |seen| match seen.line.as_str() {
        "GET /health" => Answer::new(200, ""),
        "GET /v1/models" => Answer::new(200, CARD),
        "GET /metrics" => Answer::new(404, ""),
        _ => answer(seen),
    });
    let server = server.await.unwrap();
    let handler = load(Options::new(server.url(""))).unwrap();
    (server, handler)
}

fn ask(handler: &Arc<OpenAi>) -> Result<String> {
    let input = json!({ "prompt": "canary", "max_tokens": 4 });
    let (pieces, finish) = block_in_place(|| testing::answer(handler, &input, 1, &[]))?;
    assert_eq!(finish.reason, FinishReason::Stop);
    Ok(pieces.into_iter().map(|piece| piece.text).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_used_is_one_sentence() {
    let server = Server::start(|_| Answer::new(200, TWO)).await.unwrap();
    let mut options = Options::new(server.url(""));
    options.adapters = vec!["b".to_owned()];
    load(options.clone()).unwrap();
    options.adapters.push("c".to_owned());
    let said = load(options).unwrap_err().to_string();
    assert!(
        said.ends_with("does not have the adapter c, but a, b: correct [handler] adapters"),
        "{said}"
    );
    for (status, body, model, says) in [
        (200, TWO, None, "serves a, b: name one in [handler] served_model"),
        (200, TWO, Some("c"), "does not serve c, but a, b: correct [handler] served_model"),
        (200, r#"{"data":[]}"#, None, "does not serve a model, but no model"),
        (
            200,
            "<html>",
            None,
            "/v1/models is no list of models: is [handler] url that of the server?",
        ),
        (401, "", None, "refuses the API key: correct [handler] api_key_file"),
        (404, "", None, "/v1/models answers with status 404: is [handler] url"),
    ] {
        let server = Server::start(move |_| Answer::new(status, body)).await.unwrap();
        let mut options = Options::new(server.url("/v1"));
        options.served_model = model.map(str::to_owned);
        options.load_timeout_s = 5;
        let said = load(options).unwrap_err().to_string();
        assert!(said.contains(says) && !said.contains('\n'), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_without_a_server_is_told_after_the_time_limit() {
    let closed = Server::start(|_| Answer::never()).await.unwrap();
    let mut options = Options::new(closed.url(""));
    drop(closed);
    options.load_timeout_s = 1;
    let said = load(options.clone()).unwrap_err().to_string();
    assert!(
        said.starts_with("the server was not ready within 1 s (no server answers at"),
        "{said}"
    );
    assert!(said.contains("refused"), "{said}");
    options.url = "localhost:8000".to_owned();
    let said = load(options.clone()).unwrap_err().to_string();
    assert!(said.starts_with("[handler] url is `localhost:8000`: it must be"), "{said}");
    options.url = "http://user:c@nary@localhost:8000".to_owned();
    let said = load(options).unwrap_err().to_string();
    assert!(
        said.contains("localhost") && !said.contains("user") && !said.contains("nary"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_tls_of_its_address_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = Options::new(format!("https://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    options.load_timeout_s = 1;
    let said = load(options).unwrap_err().to_string();
    assert!(said.contains("no server answers at https://"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_key_is_in_a_file_of_this_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    fs::write(&path, "secret\n").unwrap();
    let server = Server::start(|seen| match seen.header("authorization") {
        Some("Bearer secret") => Answer::new(200, CARD),
        _ => Answer::new(401, ""),
    });
    let server = server.await.unwrap();
    let mut options = Options::new(server.url(""));
    options.api_key_file = Some(path.clone());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let said = load(options.clone()).unwrap_err().to_string();
    assert!(said.contains("can be read by others"), "{said}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    load(options).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_the_clients_fault_or_the_servers() {
    let (_server, handler) =
        loaded(|_| Answer::new(400, r#"{"error":{"message":"no such thing"}}"#)).await;
    assert!(matches!(ask(&handler), Err(Error::BadInput(why)) if why == "no such thing"));
    let detail = r#"{"detail":[{"loc":["body","n"],"msg":"must be 1"}]}"#;
    let (_server, handler) = loaded(move |_| Answer::new(422, detail)).await;
    assert!(matches!(ask(&handler), Err(Error::BadInput(why)) if why == "must be 1"));
    let (_server, handler) = loaded(|_| Answer::new(500, "canary")).await;
    let error = ask(&handler).unwrap_err();
    assert!(matches!(error, Error::Retry(_)) && !error.to_string().contains("canary"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_or_a_model_is_at_fault_only_if_the_list_of_models_says_so() {
    for status in [401, 403, 404] {
        let said = r#"{"error":{"message":"no tools"}}"#;
        let (_server, handler) = loaded(move |_| Answer::new(status, said)).await;
        let error = ask(&handler).unwrap_err();
        assert!(matches!(&error, Error::BadInput(why) if why == "no tools"), "{status}: {error}");
        for (status, list, says) in [
            (401, "", "refuses the API key: correct [handler] api_key_file"),
            (403, "", "refuses the API key: correct [handler] api_key_file"),
            (404, "", "no longer has the model m"),
            (200, TWO, "no longer has the model m"),
        ] {
            let error = later(status, list).await;
            assert!(
                matches!(error, Error::Fatal(_)) && error.to_string().ends_with(says),
                "{error}"
            );
        }
        assert!(matches!(later(502, "").await, Error::Retry(_)));
    }
}

/// Returns the error of a request that is refused while the list of models is this one.
async fn later(status: u16, list: &'static str) -> Error {
    let lost = Arc::new(AtomicBool::new(false));
    let now = lost.clone();
    let server =
        Server::start(move |seen| match (seen.line.as_str(), now.load(Ordering::Relaxed)) {
            ("GET /v1/models", false) => Answer::new(200, CARD),
            ("GET /v1/models", true) => Answer::new(status, list),
            _ => Answer::new(403, "canary"),
        });
    let server = server.await.unwrap();
    let handler = load(Options::new(server.url(""))).unwrap();
    lost.store(true, Ordering::Relaxed);
    let error = ask(&handler).unwrap_err();
    assert!(!error.to_string().contains("canary"), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_whose_server_has_not_started_is_waited_for() {
    for status in [502, 504] {
        let looks = AtomicUsize::new(0);
        let server = Server::start(move |seen| match seen.line.as_str() {
            "GET /v1/models" if looks.fetch_add(1, Ordering::Relaxed) == 0 => {
                Answer::new(status, "")
            }
            "GET /v1/models" => Answer::new(200, CARD),
            _ => Answer::new(404, ""),
        });
        let server = server.await.unwrap();
        load(Options::new(server.url(""))).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_is_asked_again() {
    let tries = AtomicUsize::new(0);
    let (server, handler) = loaded(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::new(503, ""),
        1 => Answer::new(429, ""),
        _ => Answer::new(200, SAID),
    })
    .await;
    assert_eq!(ask(&handler).unwrap(), "one two");
    let asked = server.seen().iter().filter(|seen| seen.line == "POST /v1/completions").count();
    assert_eq!(asked, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_breaks_off_is_tried_again() {
    let whole = SAID.replace("data: [DONE]\n\n", "");
    let cut = whole.split("\n\n").next().unwrap().to_owned() + "\n\n";
    for raw in [
        String::new(),
        "this is not HTTP\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{cut}"),
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{cut}"),
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: canary\n\n".to_owned(),
    ] {
        let (_server, handler) = loaded(move |_| Answer::raw(&raw)).await;
        let error = ask(&handler).unwrap_err();
        assert!(
            matches!(error, Error::Retry(_)) && !error.to_string().contains("canary"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_closes_the_connection_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let closed = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let size = stream.read(&mut request).await.unwrap();
            let line = String::from_utf8_lossy(&request[..size]).into_owned();
            if !line.starts_with("POST") {
                let body = if line.starts_with("GET /v1/models") { CARD } else { "" };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}",
                    body.len()
                );
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
                continue;
            }
            let begun = "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"text\":\"one two \"}]}\n\n";
            stream.write_all(begun.as_bytes()).await.unwrap();
            // The rest never comes, and the client leaves.
            while stream.read(&mut request).await.is_ok_and(|size| size > 0) {}
            return;
        }
    });
    let handler = load(Options::new(format!("http://{addr}"))).unwrap();
    let (call, reader) = testing::call(&json!({ "prompt": "a", "max_tokens": 4 }), 1);
    let calls = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(AnyHandler::call(&*handler, call))
    });
    while reader.pieces().pieces.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    reader.stop(Stop::Cancelled);
    tokio::time::timeout(Duration::from_secs(2), closed).await.unwrap().unwrap();
    assert!(matches!(calls.join().unwrap(), Err(Error::Stopped(_))));
}
