//! Worker in front of a server of OpenAI's API: `[handler] engine = "openai"`.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::process::Command;

use nsbridge_testkit::http::{Answer, Server};

use crate::place::{Place, Process, model, nsbridge, output};

const CARD: &str = r#"{"data":[{"id":"m","owned_by":"someone"}]}"#;
const SAID: &str = concat!(
    "data: {\"choices\":[{\"text\":\"one two\",\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n"
);

/// Server that needs a model's folder, tells its process, and never ends a reply.
const SLOW: &str = r#"
import http.server, json, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "m"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        choice = {"text": "%d and " % os.getpid()}
        self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        while self.rfile.read(1):
            pass

    def log_message(self, *words):
        pass

assert "config.json" in os.listdir(sys.argv[2])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

const PROMPT: [&str; 3] = ["--max-tokens", "9", "Once"];

#[test]
fn a_server_is_put_behind_the_queue_by_one_command_without_a_file() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(|seen| match seen.line.as_str() {
        "GET /v1/models" => Answer::new(200, CARD),
        "POST /v1/completions" => Answer::new(200, SAID),
        _ => Answer::new(404, ""),
    }));
    let server = server.unwrap();
    let place = Place::new();
    let mut worker = nsbridge(&["worker", "--engine", "openai", "--url", &server.url("/v1")]);
    worker.args(["--model", &place.model, "--broker", &place.url]);
    worker.args(["--keyring", &place.path("keys.json")]);
    let mut worker = place.start(worker);
    let asked = place.ask(&PROMPT).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), "one two");
    worker.signal("-TERM");
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn a_server_of_the_worker_that_ends_ends_it_and_the_request_comes_back() {
    let place = Place::new();
    fs::write(place.path("server.py"), SLOW).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model().join(file), format!("{folder}/{file}")).unwrap();
    }
    let script = place.path("server.py");
    place.configure_for(
        folder.as_ref(),
        &format!(
            "[handler]\nengine = \"openai\"\nurl = \"http://127.0.0.1:{port}\"\n\
             command = [\"python3\", \"{script}\", \"{port}\", \"{{target}}\"]\n"
        ),
    );
    let mut worker = place.worker();
    let mut asked = Process(place.ask(&PROMPT).spawn().unwrap());
    let mut pid = [0; 64];
    let size = asked.0.stdout.as_mut().unwrap().read(&mut pid).unwrap();
    let pid = str::from_utf8(&pid[..size]).unwrap().split(' ').next().unwrap();
    assert!(Command::new("kill").args(["-KILL", pid]).status().unwrap().success());
    assert_eq!(worker.code(), Some(1));
    assert!(place.logged("the server that the worker has started has ended: signal 9") > 0);
    assert!(place.has_request_again());
}

#[test]
fn what_a_server_cannot_do_is_one_sentence() {
    let place = Place::new();
    let keyring = place.path("keys.json");
    for (flags, says) in [
        (
            &["--engine", "vllm", "--url", "http://a"][..],
            "--url is the address of a server: it needs --engine openai, not vllm",
        ),
        (&["--engine", "openai"], "missing field `url`"),
        (
            &["--engine", "openai", "--url", "a:8000"],
            "[handler] url is `a:8000`: it must be an address",
        ),
        (
            &["--engine", "openai", "--url", "http://a", "--weights", "/m"],
            "[models] target has no effect",
        ),
        (
            &["--engine", "openai", "--url", "http://a", "--options", "{\"a\":1}"],
            "unknown field `options`",
        ),
    ] {
        let common =
            ["worker", "--model", &place.model, "--broker", &place.url, "--keyring", &keyring];
        let (output, _, said) = output(&[&common[..], flags].concat());
        assert_eq!(output.status.code(), Some(1), "{said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(matches!(errors[..], [error] if error.contains(says)), "{says}: {said}");
    }
}
