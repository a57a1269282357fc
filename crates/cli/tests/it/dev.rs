//! `nsbridge dev`: chat page, OpenAI's API and worker without services.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::ChildStderr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::place::{Process, nsbridge, output, until};

/// Sends a request and returns its status line, headers included, and its body.
fn answer(address: &str, head: &str, body: &str) -> (String, String) {
    let mut gateway = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    gateway.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    gateway.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Starts the command and returns it with its address, and with its further lines.
fn start(arguments: &[&str]) -> (Process, String, Lines<BufReader<ChildStderr>>) {
    let mut dev = nsbridge(&[&["dev", "--listen", "127.0.0.1:0"], arguments].concat());
    let mut dev = Process(dev.spawn().unwrap());
    let mut said = BufReader::new(dev.0.stderr.take().unwrap()).lines();
    let first = said.by_ref().map(Result::unwrap).find(|line| line.starts_with("http://")).unwrap();
    assert!(first.contains("of the model ") && first.contains("/v1/messages"), "{first}");
    let address = first["http://".len()..].split(' ').next().unwrap().to_owned();
    (dev, address, said)
}

#[test]
fn the_page_and_the_api_are_there_until_a_signal() {
    for signal in ["-INT", "-TERM"] {
        let (mut dev, address, _said) = start(&[]);
        let address = &*address;
        let (head, page) = answer(address, "GET /", "");
        assert!(head.starts_with("HTTP/1.1 200") && page.contains("<html"), "{head}");
        // A request needs no model: there is only one.
        let body = r#"{"prompt": "Once a bear", "max_tokens": 4}"#;
        let (_, text) = answer(address, "POST /v1/completions", body);
        let text: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&text["usage"]["completion_tokens"], &text["model"]),
            (&4.into(), &"tale-7m".into())
        );
        assert!(!text["choices"][0]["text"].as_str().unwrap().is_empty());
        // Files and batches need a store.
        let (head, batches) = answer(address, "GET /v1/batches", "");
        assert!(head.starts_with("HTTP/1.1 200") && batches.contains("\"list\""), "{head}");
        dev.signal(signal);
        assert_eq!(dev.code(), Some(0));
    }
}

#[test]
fn a_model_in_python_is_served_with_what_it_prints_and_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.py");
    let write = |word: &str| {
        let text = format!(
            "def handle(input, job):\n    print('saw', input)\n    yield {{'{word}': input}}\n"
        );
        fs::write(&file, text).unwrap();
    };
    write("first");
    let (mut dev, address, mut said) = start(&["--python", file.to_str().unwrap(), "--reload"]);
    let ask = || -> Value {
        let (_, body) = answer(&address, "POST /v1/models/model/run", r#"{"input": 5}"#);
        serde_json::from_str::<Value>(&body).unwrap()["pieces"].clone()
    };
    assert_eq!(ask(), json!([{ "first": 5 }]));
    assert!(said.any(|line| line.unwrap().contains("saw 5")));
    write("second");
    let begun = Instant::now();
    while ask() != json!([{ "second": 5 }]) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the model is not loaded again");
        std::thread::sleep(Duration::from_millis(100));
    }
    dev.signal("-INT");
    assert_eq!(dev.code(), Some(0));
}

#[test]
fn a_model_in_python_is_started_once_and_its_schema_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.py");
    let model = "with open('starts', 'a') as starts:\n    starts.write('x')\n\n\
                 def handle(input: int, job):\n    yield input\n";
    fs::write(&file, model).unwrap();
    let (mut dev, address, _said) = start(&["--python", file.to_str().unwrap()]);
    let (_, body) = answer(&address, "GET /v1/models/model", "");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["input_schema"]["type"], "integer", "{body}");
    assert_eq!(fs::read_to_string(dir.path().join("starts")).unwrap(), "x");
    dev.signal("-INT");
    assert_eq!(dev.code(), Some(0));
}

#[test]
fn the_first_signal_tells_what_is_waited_for_and_the_second_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.py");
    let model = "import time\n\n\ndef handle(input, job):\n    open('begun', 'w').close()\n    \
                 time.sleep(600)\n    yield input\n";
    fs::write(&file, model).unwrap();
    let (mut dev, address, said) = start(&["--python", file.to_str().unwrap()]);
    let mut client = TcpStream::connect(&address).unwrap();
    let body = r#"{"input": 1}"#;
    let length = body.len();
    write!(
        client,
        "POST /v1/models/model/run HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    until(|| dir.path().join("begun").exists());
    dev.signal("-INT");
    let mut said = said.map(Result::unwrap);
    let told = "finishing 1 reply; Ctrl-C again leaves at once";
    assert!(said.any(|line| line == told));
    dev.signal("-INT");
    assert_eq!(dev.code(), Some(1));
    assert!(said.any(|line| line == "a second signal came: leaving at once"));
}

#[test]
fn a_model_that_is_not_there_and_an_address_of_others_are_refused_in_a_sentence() {
    let (ended, _, said) = output(&["dev", "--model", "absent.gguf"]);
    assert!(!ended.status.success());
    assert!(
        said.contains("there is no model in absent.gguf") && said.lines().count() == 1,
        "{said}"
    );
    // A file that is no model is not told to be missing.
    let folder = tempfile::tempdir().unwrap();
    for (name, reason) in [
        ("broken.gguf", "its head has no end"),
        ("model.bin", "is a file, but a model is a folder or a .gguf file"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, "GGUF\u{3}\0\0\0").unwrap();
        let (ended, _, said) = output(&["demo", "--model", path.to_str().unwrap()]);
        assert_eq!(ended.status.code(), Some(1));
        assert!(said.contains(name) && said.contains(reason), "{said}");
        assert!(!said.contains("there is no model") && said.lines().count() == 1, "{said}");
    }
    // Anyone in the network could ask, because no key is needed.
    let (ended, _, said) = output(&["dev", "--listen", "0.0.0.0:0"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(said.contains("0.0.0.0:0") && said.contains("an address of this machine"), "{said}");
}

#[test]
fn an_engine_without_an_adapter_and_one_without_a_model_are_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let (ended, _, said) =
        output(&["dev", "--engine", "vlm", "--weights", folder.path().to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        said.contains("`vlm`") && said.contains("`vllm`") && said.lines().count() == 1,
        "{said}"
    );
    let (ended, _, said) = output(&["dev", "--engine", "vllm"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(said.contains("--weights"), "{said}");
}

#[test]
fn programs_that_a_model_has_started_end_with_a_worker_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, noted) = (dir.path().join("model.py"), dir.path().join("pid"));
    let text = format!(
        "import subprocess\n\
         def load(models):\n    \
             program = subprocess.Popen(['sleep', '1000'])\n    \
             open({noted:?}, 'w').write(str(program.pid))\n\
         def handle(input, job):\n    \
             yield input\n"
    );
    fs::write(&file, text).unwrap();
    let (mut dev, _address, _said) = start(&["--python", file.to_str().unwrap()]);
    let program = format!("/proc/{}/stat", fs::read_to_string(&noted).unwrap());
    let runs = || {
        // A process that has ended may wait for its parent as a zombie.
        fs::read_to_string(&program).is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(runs());
    dev.signal("-KILL");
    assert_eq!(dev.code(), None);
    until(|| !runs());
}
