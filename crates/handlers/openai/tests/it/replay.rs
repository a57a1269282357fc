//! Server that answers as a real one has answered.
//!
//! The exchanges lie in `tests/recorded`, each with its request. `NSBRIDGE_TEST_RECORD_VLLM=http://.. cargo
//! test -p nsbridge-openai -- --test-threads 1` asks the server at that address what the file lacks, and
//! adds it. `NSBRIDGE_TEST_RECORD_LLAMA` and `NSBRIDGE_TEST_RECORD_EMBEDDINGS` do so for the other files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

/// Beginning of the line before a request, and before its answer.
const ASKED: &str = ">>> ";
const ANSWERED: &str = "<<< ";

/// Exchanges by request: its line and its body.
type Exchanges = BTreeMap<String, (u16, String)>;

/// Server of recorded exchanges.
pub(crate) struct Replay {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    exchanges: Mutex<Exchanges>,
    /// Address of a real server, to record it.
    real: Option<&'static str>,
    file: PathBuf,
    /// Number of parts of a reply that are sent as one.
    merged: AtomicUsize,
    /// Requests so far.
    seen: Mutex<Vec<String>>,
}

impl Replay {
    /// Starts the server of a file's exchanges.
    pub(crate) fn start(name: &str, real: Option<&'static str>) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(name);
        let known = fs::read_to_string(&file).unwrap_or_default();
        let shared = Arc::new(Shared {
            exchanges: Mutex::new(read(&known)),
            real,
            file,
            merged: AtomicUsize::new(1),
            seen: Mutex::default(),
        });
        let (tell, told) = std::sync::mpsc::channel();
        let of_thread = shared.clone();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                serve(listener, of_thread).await;
            });
        });
        Self { addr: told.recv_timeout(Duration::from_secs(10)).unwrap(), shared }
    }

    /// Returns the address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sends this number of parts of a reply as one, as a server does that drafts tokens.
    pub(crate) fn merge(&self, parts: usize) {
        self.shared.merged.store(parts, Ordering::Relaxed);
    }

    /// Returns the requests of a path since the last call, without their lines.
    pub(crate) fn seen(&self, path: &str) -> Vec<String> {
        let seen = std::mem::take(&mut *self.shared.seen.lock().unwrap());
        let of_path = seen.iter().filter_map(|request| {
            let (line, body) = request.split_once('\n')?;
            line.ends_with(path).then(|| body.to_owned())
        });
        of_path.collect()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let shared = shared.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, shared.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer);
            let _ = connection.await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let line = format!("{} {}", request.method(), request.uri());
    let body = request.into_body().collect().await?.to_bytes();
    let key = format!("{line}\n{}", String::from_utf8_lossy(&body));
    let known = shared.exchanges.lock().unwrap().get(&key).cloned();
    shared.seen.lock().unwrap().push(key.clone());
    let (status, text) = match (known, shared.real) {
        (Some(known), _) => known,
        (None, Some(real)) => {
            let answered = ask(real, &line, body).await;
            // The page of metrics changes, and no test depends on it.
            if !line.ends_with("/metrics") {
                shared.exchanges.lock().unwrap().insert(key, answered.clone());
                fs::write(&shared.file, write(&shared.exchanges.lock().unwrap())).unwrap();
            }
            answered
        }
        (None, None) if line.starts_with("GET ") => (404, String::new()),
        (None, None) => (500, format!("not recorded: {key}")),
    };
    let text = match text.starts_with("data: ") {
        true => merged(&text, shared.merged.load(Ordering::Relaxed)),
        false => text,
    };
    Ok(Response::builder().status(status).body(Full::new(text.into())).unwrap())
}

async fn ask(real: &str, line: &str, body: Bytes) -> (u16, String) {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(format!("{real}{path}"));
    let request = request.header("content-type", "application/json").body(Full::new(body)).unwrap();
    let response = client.request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.into()).unwrap())
}

fn read(text: &str) -> Exchanges {
    let exchanges = text.split(ASKED).skip(1).map(|exchange| {
        let (asked, answered) = exchange.split_once(ANSWERED).unwrap();
        let (status, body) = answered.split_once('\n').unwrap();
        let body = body.strip_suffix("\n\n").unwrap_or(body);
        (asked.strip_suffix('\n').unwrap().to_owned(), (status.parse().unwrap(), body.to_owned()))
    });
    exchanges.collect()
}

fn write(exchanges: &Exchanges) -> String {
    let mut text = String::new();
    for (asked, (status, answered)) in exchanges {
        write!(text, "{ASKED}{asked}\n{ANSWERED}{status}\n{answered}\n\n").unwrap();
    }
    text
}

/// Joins parts of a reply, each `parts` of them, as vLLM does for tokens that are ready together.
fn merged(text: &str, parts: usize) -> String {
    let mut out: Vec<Value> = Vec::new();
    let mut joined = 0;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(next) = serde_json::from_str::<Value>(data) else { continue };
        match out.last_mut().filter(|_| joined % parts != 0) {
            Some(last) if next["choices"][0].is_object() => join(last, &next),
            _ => out.push(next),
        }
        joined += 1;
    }
    let events: String = out.iter().map(|event| format!("data: {event}\n\n")).collect();
    events + "data: [DONE]\n\n"
}

fn join(last: &mut Value, next: &Value) {
    let (last, next) = (&mut last["choices"][0], &next["choices"][0]);
    let text = last["text"].as_str().unwrap_or("").to_owned() + next["text"].as_str().unwrap_or("");
    last["text"] = text.into();
    last["finish_reason"] = next["finish_reason"].clone();
    for list in
        ["/token_ids", "/logprobs/tokens", "/logprobs/token_logprobs", "/logprobs/top_logprobs"]
    {
        if let (Some(Value::Array(to)), Some(Value::Array(from))) =
            (last.pointer_mut(list), next.pointer(list))
        {
            to.extend(from.iter().cloned());
        }
    }
}
