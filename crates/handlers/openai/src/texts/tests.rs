//! Tests of the texts of tokens, however a server merges them.

use nsbridge_testkit::http::{Answer, Server};
use proptest::collection::vec;
use proptest::prelude::{Strategy as _, any};
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Arc, Flavor, Http, Open, Texts, is_cut};

/// Bytes of each token.
const VOCABULARY: [&[u8]; 9] = [
    b"a",
    b" b",
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x98",
    b"\x80",
    b"x\xf0\x9f",
    "\u{fffd}".as_bytes(),
];

/// Tokens that make characters together: whole ones, ones in parts, ones that are none, and a U+FFFD.
const UNITS: [&[u32]; 8] = [&[0], &[1], &[2, 3], &[4, 5, 6], &[7, 5, 6], &[4, 0], &[2, 1], &[8, 0]];

fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|id| VOCABULARY[*id as usize]).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the text that a server sends with each token: it holds back what is not complete.
fn sent(tokens: &[u32]) -> Vec<String> {
    let mut from = 0;
    let each = (1..=tokens.len()).map(|to| match text(&tokens[from..to]) {
        cut if is_cut(&cut) => String::new(),
        whole => {
            from = to;
            whole
        }
    });
    each.collect()
}

async fn pieces(texts: &Texts, tokens: &[u32], sizes: &[usize]) -> Vec<String> {
    let (sent, mut open, mut at) = (sent(tokens), Open::default(), 0);
    let (mut pieces, mut sizes) = (Vec::new(), sizes.iter().cycle());
    while at < tokens.len() {
        let to = tokens.len().min(at + sizes.next().unwrap());
        let text = sent[at..to].concat();
        let part = texts.divide(&mut open, &tokens[at..to], &text);
        pieces.extend(part.await.unwrap());
        at = to;
    }
    pieces
}

#[test]
fn the_pieces_do_not_depend_on_how_the_server_merges_tokens() {
    let runtime = Runtime::new().unwrap();
    let server = Server::start(|seen| {
        if seen.line == "POST /tokenize" {
            return Answer::new(200, r#"{"tokens":[0]}"#);
        }
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        let tokens: Vec<u32> = serde_json::from_value(body["tokens"].clone()).unwrap();
        Answer::new(200, &json!({ "prompt": text(&tokens) }).to_string())
    });
    let server = runtime.block_on(server).unwrap();
    let http = Arc::new(Http::new(&server.url(""), None).unwrap());
    let texts = runtime.block_on(Texts::new(http, "m".to_owned(), Flavor::Vllm)).unwrap();
    let sizes = vec(any::<u8>().prop_map(|size| 1 + usize::from(size % 5)), 1..8);
    let cases = (vec(select(&UNITS[..]), 1..8), sizes);
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&cases, |(units, sizes)| {
        let tokens = units.concat();
        let alone = runtime.block_on(pieces(&texts, &tokens, &[1]));
        let merged = runtime.block_on(pieces(&texts, &tokens, &sizes));
        match alone == merged {
            true => Ok(()),
            false => Err(TestCaseError::fail(format!("{tokens:?}: {alone:?}, {merged:?}"))),
        }
    });
    result.unwrap();
}
