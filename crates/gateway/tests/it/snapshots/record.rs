//! Record of requests and answers, which is compared with its file.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nsbridge_gateway::access::Limits;
use regex::{Captures, Regex};
use serde_json::Value;
use tokio::time::sleep;

use crate::http::{Answer, TEST_TIMEOUT, request};
use crate::place::Place;

/// Maximum number of characters of a request that the record shows.
const MAX_SHOWN_CHARS: usize = 400;

/// Number of characters that a difference shows before and after its place.
const CONTEXT_CHARS: usize = 120;

/// Headers that say nothing about the gateway.
const LEFT_OUT: [&str; 2] = ["date", "connection"];

const MODELS: &str = "[models.script]\ncontext = 512\ntools = \"hermes\"\nreasoning = \"think\"\n\
                      [models.vectors]\ntask = \"embed\"\n[models.absent]\nstart_s = 1\naliases = [\"away\"]\n\
                      [models.judge]\ntask = \"judge\"\naliases = [\"omni-moderation-latest\"]\n\
                      thresholds = { hate = 0.9 }\n";

pub(super) const LOCAL: &str = "[store]\npath = \"gateway.redb\"\nkey_file = \"store.key\"\n";
pub(super) const SHARED: &str = "[store]\nshared = \"shared\"\nkey_file = \"store.key\"\n";

/// Requests to a gateway and its answers.
pub(super) struct Record {
    pub(super) place: Place,
    text: String,
    /// Ids in the order in which they came.
    ids: Vec<String>,
    id: Regex,
    volatile: Vec<(Regex, &'static str)>,
}

impl Record {
    /// Starts a gateway with these lines of `[server]`, this table of a store, and these limits of the
    /// other key.
    pub(super) async fn new(server: &str, store: &str, limits: Limits) -> Self {
        let tables = format!("{MODELS}{store}[batches]\nlines = 1\n");
        let server = format!("grace_s = 20\n{server}");
        Self::of(Place::scripted(&server, &tables, limits).await)
    }

    pub(super) fn of(place: Place) -> Self {
        let volatile = [
            (r"\b(?:1[6-9]|2\d)\d{8}\b", "<time>"),
            (r"(openai-processing-ms: )\d+", "${1}<ms>"),
            (r"(x-ratelimit-(?:reset-\w+|remaining-tokens): )\S+", "${1}<volatile>"),
            // The minute of a limit goes on; other pauses are shorter.
            (r"(retry-after: |: wait )\d{2,}", "${1}<seconds>"),
            (r"(etag: )\S+", "${1}<hash>"),
            (r"\btest-[0-9a-f]{16}\b", "<queue>"),
        ];
        let volatile = volatile.map(|(from, to)| (Regex::new(from).unwrap(), to)).into();
        // The number of an item may follow the id of its response.
        let id = Regex::new(r"([a-z]+[_-])([0-9a-f]{32})").unwrap();
        Self { place, text: String::new(), ids: Vec::new(), id, volatile }
    }

    pub(super) fn title(&mut self, title: &str) {
        writeln!(self.text, "##### {title}\n").unwrap();
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        let key = self.place.key.clone();
        self.send("POST", path, &key, &body.to_string(), &[]).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Answer {
        let key = self.place.key.clone();
        self.send("GET", path, &key, "", &[]).await
    }

    /// Sends a request under a key, and records it with its answer.
    pub(super) async fn send(
        &mut self,
        method: &str,
        path: &str,
        key: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut all = headers.to_vec();
        all.push(("x-request-id", "snapshot"));
        let answer = self.place.raw(&request(method, path, key, body, &all)).await;
        self.note(&format!("{method} {path} {body}"), &answer);
        answer
    }

    /// Records a request and its answer.
    pub(super) fn note(&mut self, asked: &str, answer: &Answer) {
        let asked = self.stable(asked).replace("\r\n", "\\n").replace('\n', "\\n");
        let shown: String = asked.chars().take(MAX_SHOWN_CHARS).collect();
        let more = if shown.len() < asked.len() { ".." } else { "" };
        writeln!(self.text, "=== {}{more}", shown.trim_end()).unwrap();
        let mut lines = answer.head.lines();
        writeln!(self.text, "{}", lines.next().unwrap_or("(no answer)")).unwrap();
        let is_kept = |line: &&str| !LEFT_OUT.contains(&line.split(':').next().unwrap_or_default());
        let mut headers: Vec<&str> = lines.filter(is_kept).collect();
        headers.sort_unstable();
        let head = self.stable(&headers.join("\n"));
        let body = self.stable(&answer.body);
        let cut = if answer.head.contains("\r\ntransfer-encoding") && !answer.whole {
            "(cut)"
        } else {
            ""
        };
        writeln!(self.text, "{}\n\n{body}{cut}\n", head.trim()).unwrap();
    }

    /// Replaces what differs from run to run.
    fn stable(&mut self, text: &str) -> String {
        let ids = &mut self.ids;
        let number = |found: &Captures<'_>| {
            let known = ids.iter().position(|id| *id == found[2]);
            let number = known.unwrap_or_else(|| {
                ids.push(found[2].to_owned());
                ids.len() - 1
            });
            format!("{}<{}>", &found[1], number + 1)
        };
        let mut text = self.id.replace_all(text, number).into_owned();
        for (from, to) in &self.volatile {
            text = from.replace_all(&text, *to).into_owned();
        }
        text
    }

    /// Polls a response or a batch until it has this status.
    pub(super) async fn until(&self, path: &str, status: &str) -> Value {
        let started = Instant::now();
        loop {
            let found = self.place.get(path).await.json();
            if found["status"] == status {
                return found;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{path}: {found}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Compares the record with its file. A file that is not there is written.
    pub(super) fn check(self, name: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots");
        let file = folder.join(format!("{name}.txt"));
        if !file.exists() {
            std::fs::write(&file, self.text).unwrap();
            panic!("{} is written; read it, and commit it", file.display());
        }
        let expected = std::fs::read_to_string(&file).unwrap();
        if let Some(difference) = difference(&expected, &self.text) {
            panic!("{}: {difference}\n\nto have the file written anew, remove it", file.display());
        }
    }
}

/// Describes the first line in which two records differ.
fn difference(expected: &str, found: &str) -> Option<String> {
    let (mut old, mut new) = (expected.split('\n'), found.split('\n'));
    let mut asked = "";
    for number in 1.. {
        let (was, is) = (old.next(), new.next());
        if was != is {
            let [was, is] = [was, is].map(|line| line.unwrap_or("(the end)"));
            let at = was.chars().zip(is.chars()).take_while(|(one, other)| one == other).count();
            let near = |line: &str| -> String {
                let from = at.saturating_sub(CONTEXT_CHARS);
                line.chars().skip(from).take(2 * CONTEXT_CHARS).collect()
            };
            let [was, is] = [was, is].map(near);
            return Some(format!("line {number}, of\n{asked}\n- {was}\n+ {is}"));
        }
        let line = was?;
        if line.starts_with("=== ") {
            asked = line;
        }
    }
    None
}

#[test]
fn a_difference_names_its_line_and_its_request() {
    assert_eq!(difference("=== GET /\na\n", "=== GET /\na\n"), None);
    let told = difference("=== GET /\n200\nabc\n", "=== GET /\n200\nabd\n").unwrap();
    assert_eq!(told, "line 3, of\n=== GET /\n- abc\n+ abd");
    assert!(difference("a", "a\nb").unwrap().contains("- (the end)\n+ b"));
}
