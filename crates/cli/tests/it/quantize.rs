//! Files left by `nsbridge model quantize` after success, failure and interruption.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use nsbridge_handler::source::files_of;
use nsbridge_testkit::s3::{Fault, Faults, Rule, S3Server};
use tempfile::TempDir;

use crate::place::{Process, model, nsbridge};

const WEIGHTS: &str = "model.safetensors";

/// Copies the bundled model into a temporary folder.
fn copy() -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in model().read_dir().unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

fn quantize(from: &Path, to: &Path) -> Output {
    let mut command = nsbridge(&["model", "quantize", "--dtype", "q8_0"]);
    command.arg(from).arg(to).output().unwrap()
}

/// Runs the command, which must fail with a message that contains these parts.
#[track_caller]
fn refuses(from: &Path, to: &Path, parts: &[&str]) {
    let output = quantize(from, to);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
}

/// Runs the command, which must succeed, and returns the paths of the files that it made.
#[track_caller]
fn works(from: &Path, to: &Path) -> Vec<String> {
    let output = quantize(from, to);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(files_in(to).iter().all(|name| !name.ends_with(".part")));
    paths_in(to)
}

/// Returns the paths of a model's files.
fn paths_in(folder: &Path) -> Vec<String> {
    files_of(folder).unwrap().into_iter().map(|file| file.path).collect()
}

/// Returns all names in a folder, including hidden ones.
fn files_in(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let names = folder.read_dir().unwrap().map(name);
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_run_that_fails_takes_away_what_it_wrote_and_can_be_run_again() {
    let (from, place) = (copy(), TempDir::new().unwrap());
    fs::create_dir(from.path().join("notes")).unwrap();
    fs::write(from.path().join("notes/one.md"), "one").unwrap();
    let weights = fs::read(from.path().join(WEIGHTS)).unwrap();
    let mut unsound = weights.clone();
    let end = unsound.len();
    // This bit pattern is NaN in every format.
    unsound[end - 4..].fill(0xff);
    fs::write(from.path().join(WEIGHTS), unsound).unwrap();
    let to = place.path().join("deep/down");
    refuses(from.path(), &to, &["is no number"]);
    assert!(files_in(place.path()).is_empty(), "the folders that it made are gone");

    fs::create_dir_all(to.join("empty")).unwrap();
    fs::write(to.join(".keep"), "somebody's").unwrap();
    refuses(from.path(), &to, &["is no number"]);
    let mut left = files_in(&to);
    left.sort();
    assert_eq!(left, [".keep", "empty"], "what was there before stays");

    fs::write(from.path().join(WEIGHTS), weights).unwrap();
    let made = works(from.path(), &to);
    assert!(made.contains(&"model-q8_0.gguf".to_owned()), "{made:?}");
    assert!(made.contains(&"notes/one.md".to_owned()), "{made:?}");
    refuses(from.path(), &to, &["is not empty"]);
    assert_eq!(paths_in(&to), made, "a refusal takes nothing away");
}

#[test]
fn a_run_that_is_stopped_takes_away_what_it_wrote() {
    let server = S3Server::start().unwrap();
    server.bucket("models");
    let environment = [
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_ACCESS_KEY_ID", server.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", server.secret_key().to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    let place = "s3://models/tale-7m";
    let run = |arguments: &[&str]| {
        let mut command = nsbridge(&[&["model"], arguments].concat());
        command.envs(environment.clone());
        command
    };
    let pushed = run(&["push", model().to_str().unwrap(), place]).output().unwrap();
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    // No byte of the weights arrives, so the command is interrupted in the middle.
    let hour = Duration::from_secs(3600);
    server.faults(Faults::none().with(Rule::new(Fault::Stall(0, hour)).of(WEIGHTS)));
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("made");
    let quantize = ["quantize", place, to.to_str().unwrap(), "--dtype", "q8_0"];
    let mut running = Process(run(&quantize).spawn().unwrap());
    let (started, written) = (Instant::now(), to.join("tokenizer_config.json"));
    while !written.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing was written");
        std::thread::sleep(Duration::from_millis(20));
    }
    running.signal("-INT");
    assert_eq!(running.code(), Some(130));
    assert!(files_in(folder.path()).is_empty(), "{:?}", files_in(&to));
}

#[test]
fn what_a_killed_run_left_is_named_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let (to, part) = (folder.path().join("made"), ".model-q4_k_m.gguf.part");
    fs::create_dir(&to).unwrap();
    fs::write(to.join(part), "half of it").unwrap();
    refuses(&model(), &to, &[part, "killed", "empty the folder"]);
    fs::write(to.join("config.json"), "{}").unwrap();
    refuses(&model(), &to, &[part, "killed", "empty the folder"]);
    assert_eq!(files_in(&to).len(), 2, "another run may be under way there");
}

#[test]
fn weights_of_other_frameworks_stay_behind_and_large_files_come_along() {
    let from = copy();
    let sparse = |path: &str| {
        let path = from.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::create(path).unwrap();
        file.write_all(b"begins").unwrap();
        file.set_len(300 << 20).unwrap();
    };
    let others = [
        "onnx/model.onnx",
        "onnx/model.onnx_data",
        "onnx/model.onnx_data_1",
        "rust_model.ot",
        "model.ckpt",
        "flax_model.msgpack",
        "weights.npz",
        "model.tflite",
        "tf_model.h5",
        "original/consolidated.00.pth",
    ];
    others.iter().for_each(|path| sparse(path));
    sparse("bigrams.table");
    let folder = TempDir::new().unwrap();
    let made = works(from.path(), folder.path());
    let not_theirs = ["bigrams.table", "config.json", "model-q8_0.gguf", "tokenizer.json"];
    assert!(not_theirs.iter().all(|path| made.iter().any(|made| made == path)), "{made:?}");
    assert!(!others.iter().any(|path| made.iter().any(|made| made == path)), "{made:?}");
    let table = folder.path().join("bigrams.table");
    assert_eq!(table.metadata().unwrap().len(), 300 << 20);
    assert!(fs::read(table).unwrap().starts_with(b"begins\0"));
}
