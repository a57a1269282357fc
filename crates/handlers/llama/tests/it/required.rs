//! Tests of a worker that must reproduce a reference before it serves requests.

use nsbridge_handler::{Error, Model};
use nsbridge_llama::parity::{Reference, open};
use nsbridge_llama::{KvFormat, Options};

use crate::tiny::Tiny;

/// Records the model's logits of some tokens in a file below its folder.
fn recorded(tiny: &Tiny, tokens: u32) -> Reference {
    let tokens: Vec<u32> = (0..tokens).map(|at| (at * at * 7 + 3) % 258).collect();
    let kv = KvFormat::default();
    let mut model = open(&Model::in_dir(tiny.path()), tokens.len(), None, kv).unwrap();
    Reference::record(&mut model, &tokens).unwrap()
}

fn write(tiny: &Tiny, reference: &Reference) {
    let folder = tiny.path().join("parity");
    std::fs::create_dir_all(&folder).unwrap();
    reference.write(&folder.join("own.safetensors")).unwrap();
}

fn options() -> Options {
    Options { parity_reference: Some("parity/own.safetensors".to_owned()), ..Options::default() }
}

#[track_caller]
fn check_refused(tiny: &Tiny, options: Options, words: &[&str]) {
    match tiny.load(options).unwrap_err() {
        Error::Fatal(why) => {
            let why = why.to_string();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_model_that_is_equal_to_its_reference_is_served() {
    let tiny = Tiny::new();
    write(&tiny, &recorded(&tiny, 100));
    let exact = Options { parity_tolerance: Some(0.0), ..options() };
    assert!(tiny.load(exact.clone()).is_ok());
    let absolute = tiny.path().join("parity/own.safetensors").display().to_string();
    assert!(tiny.load(Options { parity_reference: Some(absolute), ..exact }).is_ok());
}

#[test]
fn a_model_that_is_not_is_refused_with_the_numbers() {
    let tiny = Tiny::new();
    let mut reference = recorded(&tiny, 100);
    // Changes the likeliest token after the 71st.
    reference.logits[70 * 258 + 9] += 40.0;
    write(&tiny, &reference);
    let words = ["own.safetensors", "is 4.000e1, after 71 of 100 tokens", "1e-3", "after 1"];
    check_refused(&tiny, options(), &words);
    assert!(tiny.load(Options { parity_tolerance: Some(41.0), ..options() }).is_ok());
    reference.logits[3] = f32::NAN;
    write(&tiny, &reference);
    let lenient = Options { parity_tolerance: Some(1e9), ..options() };
    check_refused(&tiny, lenient, &["NaN", "after 1 of"]);
}

#[test]
fn it_is_the_model_as_it_is_served_that_is_held() {
    let tiny = Tiny::new();
    write(&tiny, &recorded(&tiny, 20));
    let rounded = Options { kv_cache_dtype: Some(KvFormat::Bf16), ..options() };
    check_refused(&tiny, rounded, &["parity_tolerance"]);
}

#[test]
fn a_reference_that_cannot_be_run_is_named() {
    let tiny = Tiny::new();
    check_refused(&tiny, options(), &["own.safetensors"]);
    write(&tiny, &recorded(&tiny, 150));
    let small = Options { n_positions: Some(64), ..options() };
    check_refused(&tiny, small, &["own.safetensors", "cannot be run"]);
    let tokens = vec![1; 2049];
    let logits = vec![0.0; tokens.len() * 258];
    write(&tiny, &Reference::new(tokens, logits));
    check_refused(&tiny, options(), &["own.safetensors", "2049 long", "2048 tokens or fewer"]);
    let folder = tiny.path().join("parity").join("own.safetensors");
    std::fs::File::options().write(true).open(&folder).unwrap().set_len((256 << 20) + 1).unwrap();
    check_refused(&tiny, options(), &["own.safetensors", "too large"]);
    let absolute = Options { parity_reference: Some(folder.display().to_string()), ..options() };
    check_refused(&tiny, absolute, &["own.safetensors", "268435457 bytes large"]);
}

#[test]
fn what_is_required_changes_no_token_and_no_fingerprint() {
    let tiny = Tiny::new();
    write(&tiny, &recorded(&tiny, 20));
    let print =
        |options| nsbridge_handler::AsyncHandler::fingerprint(&*tiny.load(options).unwrap());
    let limited = Options {
        model_loading_timeout: Some(3600.0),
        predict_timeout: Some(3600.0),
        parity_tolerance: Some(0.1),
        ..options()
    };
    assert_eq!(print(limited), print(Options::default()));
    let input = serde_json::json!({ "prompt": "x", "max_tokens": 9 });
    let reply = |options| {
        nsbridge_handler::testing::answer(&tiny.load(options).unwrap(), &input, 7, &[]).unwrap()
    };
    assert_eq!(reply(options()), reply(Options::default()));
}
