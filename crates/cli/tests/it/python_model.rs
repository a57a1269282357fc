//! Models in Python behind `nsbridge worker`, and `nsbridge handler check`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Place, Process, nsbridge, output};

/// A model of six lines.
const WORDS: &str = "\
class Model:
    def load(self, models):
        self.greeting = 'hello'
    def handle(self, input, job):
        for name in input:
            yield self.greeting + ' ' + name
";

/// Model that counts slowly, and notes its process and the pieces that it makes.
const COUNTER: &str = "\
import os, time

class Counter:
    def load(self, models):
        self.hidden = [name for name in os.environ if name.startswith('NSBRIDGE_')]
        with open('pids', 'a') as pids:
            pids.write('%d ' % os.getpid())

    def handle(self, input, job):
        job.at_most(input)
        for i in range(len(job.resumed()), input):
            time.sleep(0.02)
            with open('made', 'a') as made:
                made.write('%d ' % i)
            yield [i, job.seed, self.hidden]
";

fn write(place: &Place, text: &str) -> String {
    let file = place.path("model.py");
    fs::write(&file, text).unwrap();
    file
}

#[track_caller]
fn ask(place: &Place, input: &str) -> Vec<Value> {
    let mut asked = Process(place.ask(&["--input", input, "--seed", "7"]).spawn().unwrap());
    let lines = asked.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(asked.code(), Some(0));
    lines
}

#[test]
fn a_model_is_served_and_asked_by_two_commands_without_a_file() {
    let place = Place::new();
    let file = write(&place, WORDS);
    let mut worker = nsbridge(&["worker", "--python", &file, "--model", &place.model]);
    worker.args(["--broker", &place.url, "--keyring", &place.path("keys.json")]);
    let mut worker = place.start(worker);
    assert_eq!(ask(&place, "[\"bear\", \"fox\"]"), ["hello bear", "hello fox"]);
    worker.signal("-TERM");
    assert_eq!(worker.code(), Some(0), "a drained worker leaves in good order");
}

#[test]
fn a_model_is_served_as_the_configuration_says() {
    let place = Place::new();
    write(
        &place,
        "class A:\n    def load(self, models, options):\n        self.text = (models['target'] \
                   / 'config.json').read_text()[:1] + options['end']\n    def handle(self, input):\n        \
                   return self.text\nclass B(A): pass\n",
    );
    place.configure("[handler]\nentry_point = \"model.py:B\"\n[handler.options]\nend = \"!\"\n");
    let _worker = place.worker();
    assert_eq!(ask(&place, "0"), ["{!"]);
}

#[test]
fn a_killed_worker_is_replaced_without_a_lost_or_repeated_piece() {
    let place = Place::new();
    write(&place, COUNTER);
    place.configure("[handler]\nentry_point = \"model.py\"\n");
    let set = [("NSBRIDGE_LOG__FILTER", "info".to_owned())];
    let first = place.worker_in(&set);
    let mut asked = place.ask(&["--input", "60", "--seed", "7"]);
    let mut asked = Process(asked.spawn().unwrap());
    let mut lines = asked.lines();
    let mut pieces: Vec<String> = lines.by_ref().take(10).map(Result::unwrap).collect();
    first.signal("-KILL");
    let died = Instant::now();
    let pids = fs::read_to_string(place.path("pids")).unwrap();
    while Path::new("/proc")
        .join(pids.trim())
        .join("fd")
        .read_dir()
        .is_ok_and(|mut fds| fds.next().is_some())
    {
        assert!(died.elapsed() < Duration::from_secs(10), "Python outlives its worker");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _second = place.worker_in(&set);
    pieces.extend(lines.map(Result::unwrap));
    assert_eq!(asked.code(), Some(0));
    let expected: Vec<_> = (0..60).map(|i| format!("[{i},7,[]]")).collect();
    assert_eq!(pieces, expected, "each piece once, in order, and no variable of the worker");
    let made = fs::read_to_string(place.path("made")).unwrap();
    let made = made.split_whitespace().count();
    assert!(
        (60..110).contains(&made),
        "{made}: the second worker begins after the client's pieces"
    );
}

#[test]
fn a_check_prints_the_reply_and_says_that_the_contract_is_kept() {
    let place = Place::new();
    let file = write(&place, WORDS);
    let (ended, out, err) = output(&["handler", "check", &file, "--input", "[\"a\", \"b\"]"]);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert_eq!(out, "\"hello a\"\n\"hello b\"\n");
    assert!(err.contains("keeps its contract"), "{err}");
}

#[test]
fn a_check_gives_the_model_its_files() {
    let place = Place::new();
    let folder = place.path("weights");
    fs::create_dir(&folder).unwrap();
    fs::write(format!("{folder}/word.txt"), "ahoy").unwrap();
    let file = write(
        &place,
        "class Model:\n    def load(self, models):\n        self.word = (models['target'] / \
         'word.txt').read_text()\n    def handle(self, input):\n        return self.word + input\n",
    );
    let target = format!("target={folder}");
    let check = ["handler", "check", &file, "--input", "\" you\"", "--weights", &target];
    let (ended, out, err) = output(&check);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert_eq!(out, "\"ahoy you\"\n");
}

#[test]
fn the_schema_of_the_inputs_is_printed() {
    let place = Place::new();
    let file = write(
        &place,
        "class Model:\n    def load(self, models): raise OSError\n    def handle(self, input: \
         int): return input\n",
    );
    let (ended, out, err) = output(&["handler", "schema", &file]);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(schema["type"], "integer", "without a load");
    let file = write(&place, "def handle(input: int): return input\n");
    let (ended, _, err) = output(&["handler", "check", &file, "--input", "3"]);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert!(err.contains("the inputs have the schema") && err.contains("integer"), "{err}");
    let (ended, _, err) = output(&["handler", "check", &file, "--input", "\"a\""]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(err.contains("`input` must be an integer"), "{err}");
    let file = write(&place, WORDS);
    assert_eq!(output(&["handler", "schema", &file]).1, "true\n");
    let file = write(&place, "def handle(input: bytes): return input\n");
    let (ended, _, err) = output(&["handler", "schema", &file]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(err.contains("the hint bytes of `input` is not supported"), "{err}");
}

#[test]
fn a_check_names_the_clause_that_is_broken_and_shows_the_traceback() {
    let place = Place::new();
    let random = "import os\ndef handle(input):\n    return os.urandom(8).hex()\n";
    let file = write(&place, random);
    let (ended, _, err) = output(&["handler", "check", &file, "--input", "0"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(err.contains("piece 0 differs when the same input and seed"), "{err}");
    let file = write(&place, "def handle(input):\n    return input['missing']\n");
    let (ended, _, err) = output(&["handler", "check", &file, "--input", "{}"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(err.contains("KeyError: 'missing'") && err.contains("line 2, in handle"), "{err}");
}
