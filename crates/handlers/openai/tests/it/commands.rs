//! Servers that the worker starts itself.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nsbridge_handler::{AsyncHandler as _, Error, Health, Models, Result, testing};
use nsbridge_openai::{OpenAi, Options};
use serde_json::json;

/// Server of OpenAI's API, as small as one can be. A request for the prompt `die` ends it.
const SERVER: &str = r#"
import http.server, json, os, subprocess, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def send(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send(json.dumps({"data": [{"id": "m", "owned_by": "me"}]}).encode())

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        print("asked", request["prompt"], flush=True)
        if request["prompt"] == "die":
            os._exit(3)
        choice = {"text": "one two", "finish_reason": "stop"}
        self.send(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\ndata: [DONE]\n\n")

    def log_message(self, *words):
        pass

print("loading", flush=True)
grandchild = subprocess.Popen(["sleep", "1000"])
print("grandchild", grandchild.pid, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

fn options(port: u16, command: &[&str]) -> Options {
    let mut options = Options::new(format!("http://127.0.0.1:{port}"));
    options.command = command.iter().map(|word| (*word).to_owned()).collect();
    options.load_timeout_s = 60;
    options
}

/// Returns a port that is free.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn load(options: Options) -> Result<Arc<OpenAi>> {
    testing::load(options, Models::default())
}

fn ask(handler: &Arc<OpenAi>, prompt: &str) -> Result<String> {
    let input = json!({ "prompt": prompt, "max_tokens": 4 });
    let (pieces, _) = testing::answer(handler, &input, 1, &[])?;
    Ok(pieces.into_iter().map(|piece| piece.text).collect())
}

/// Returns true once the process has ended.
fn ends(pid: &str) -> bool {
    let since = Instant::now();
    let lives =
        || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while lives() && since.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(20));
    }
    !lives()
}

#[test]
fn a_server_lives_as_long_as_its_worker_and_its_group_dies_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let port = port();
    let mut options = options(port, &["python3", "-c", SERVER, &port.to_string()]);
    options.output = Some(output.clone());
    let handler = load(options).unwrap();
    assert_eq!(ask(&handler, "a").unwrap(), "one two");
    assert_eq!(handler.health(), Health::Ok);
    let printed = fs::read_to_string(&output).unwrap();
    assert!(printed.starts_with("loading\ngrandchild "), "{printed}");
    let grandchild = printed.lines().nth(1).unwrap().strip_prefix("grandchild ").unwrap();
    drop(handler);
    assert!(ends(grandchild));
}

#[test]
fn the_end_of_a_server_breaks_its_worker() {
    let port = port();
    let handler = load(options(port, &["python3", "-c", SERVER, &port.to_string()])).unwrap();
    let error = ask(&handler, "die").unwrap_err();
    let says = "the server that the worker has started has ended: exit code 3";
    assert!(matches!(&error, Error::Fatal(why) if why.to_string() == says), "{error}");
    assert_eq!(handler.health(), Health::failed(says));
}

#[test]
fn a_command_that_cannot_serve_is_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, of_other) = (port(), taken.local_addr().unwrap().port());
    let dies = "echo first; echo 'no such model: m' >&2; exit 7";
    for (port, command, says) in [
        (
            port,
            vec!["no-such-program"],
            "cannot start no-such-program, the command of [handler]: No such file",
        ),
        (
            port,
            vec!["sh", "-c", dies],
            "sh has ended before it was ready (exit code 7); its last line: no such model: m",
        ),
        (of_other, vec!["sh", "-c", "sleep 10"], "a server answers at http://127.0.0.1:"),
    ] {
        let said = load(options(port, &command)).unwrap_err().to_string();
        assert!(said.contains(says) && !said.contains('\n'), "{said}");
    }
    let mut late = options(port, &["sleep", "100"]);
    late.load_timeout_s = 1;
    let said = load(late).unwrap_err().to_string();
    assert!(said.contains("was not ready within 1 s (no server answers at"), "{said}");
}
