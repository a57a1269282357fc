//! Client in Python against a live worker.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nsbridge_testkit::Proxy;

use crate::place::{Place, Process};

const STORY: [&str; 5] = ["--seed", "7", "--max-tokens", "200", "クマが海辺に行って"];

/// Python client that deletes its own reply queue once three frames are in it.
const VANDAL: &str = "\
import sys, time
import pika
from nsbridge import __main__, amqp

taken, on_message = 0, amqp.Consumer._on_message

def take(consumer, *message):
    global taken
    taken += 1
    on_message(consumer, *message)
    if taken == 2:
        other = pika.BlockingConnection(consumer.broker.nodes.current)
        channel = other.channel()
        while channel.queue_declare(consumer.queue, passive=True).method.message_count < 3:
            time.sleep(0.01)
        channel.queue_delete(consumer.queue)
        other.close()

amqp.Consumer._on_message = take
amqp.PREFETCH = 1
sys.exit(__main__.main(sys.argv[1:]))
";

/// Returns the Python interpreter that has the client's two libraries, as set up by `cargo xtask
/// test`, with the client's sources.
#[expect(clippy::disallowed_methods, reason = "the test run says where its Python is")]
fn python() -> Command {
    let program = std::env::var("NSBRIDGE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut python = Command::new(program);
    python.env("PYTHONPATH", folder()).env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src")
}

/// Adds the arguments of a request for the story through `url`.
fn ask(mut python: Command, place: &Place, url: &str) -> Command {
    python.args(["--url", url, "--keyring", &place.path("keys.json")]);
    python.args(["--model", &place.model, "--tenant", "t"]).args(STORY);
    python.stdout(Stdio::piped()).stderr(Stdio::piped());
    python
}

/// Checks that the Python client prints the same story as `nsbridge ask`, each piece once.
/// `happens` runs after the first byte. Returns the client's stderr.
#[track_caller]
fn check(place: &Place, mut client: Command, happens: impl FnOnce()) -> String {
    let ours = Process(place.ask(&STORY).spawn().unwrap()).lines().next().unwrap().unwrap();
    let mut client = Process(client.spawn().unwrap());
    let (mut first, mut story, mut said) = ([0; 1], Vec::new(), String::new());
    let mut stdout = client.0.stdout.take().unwrap();
    let read = stdout.read(&mut first).unwrap();
    happens();
    story.extend(&first[..read]);
    stdout.read_to_end(&mut story).unwrap();
    client.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(client.code(), Some(0), "run `cargo xtask test`, which sets Python up: {said}");
    assert_eq!(String::from_utf8(story).unwrap().lines().next(), Some(&*ours));
    said
}

#[test]
fn the_python_client_reads_the_same_story() {
    let place = Place::new();
    let _worker = place.worker();
    let mut client = python();
    client.args(["-m", "nsbridge"]);
    check(&place, ask(client, &place, &place.url), || ());
}

#[test]
fn the_python_client_goes_on_after_a_cut() {
    let place = Place::new();
    let _worker = place.worker();
    let host = place.url.rsplit_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = Proxy::to(host.parse().unwrap()).unwrap();
    let mut client = python();
    client.args(["-m", "nsbridge"]);
    let through = place.url.replace(host, &proxy.addr().to_string());
    let said = check(&place, ask(client, &place, &through), || proxy.cut());
    assert!(said.contains("enqueues=1"), "its reply queue was still there: {said}");
}

#[test]
fn the_python_client_asks_again_when_its_reply_queue_was_deleted() {
    let place = Place::new();
    let _worker = place.worker();
    let mut client = python();
    client.args(["-c", VANDAL]);
    let said = check(&place, ask(client, &place, &place.url), || ());
    assert!(said.contains("asking again"), "{said}");
}
