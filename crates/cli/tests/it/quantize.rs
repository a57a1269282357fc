//! `nsbridge model quantize`: what it leaves behind, however it ends.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Output;

use nsbridge_handler::source::files_of;
use tempfile::TempDir;

use crate::place::{model, nsbridge};

/// A copy of the bundled model, to be changed.
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

/// A run that ends well, and the files that it made.
#[track_caller]
fn works(from: &Path, to: &Path) -> Vec<String> {
    let output = quantize(from, to);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    paths_in(to)
}

/// The paths of a model's files.
fn paths_in(folder: &Path) -> Vec<String> {
    files_of(folder).unwrap().into_iter().map(|file| file.path).collect()
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
