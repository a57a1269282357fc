//! Folders and files that are no model: what a load says of them.

use nsbridge_handler::Model;
use nsbridge_llama::Config;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n";
const PAGE: &str = "<!DOCTYPE html><title>Sign in</title>";

#[test]
fn what_is_no_model_is_refused_with_what_to_do() {
    for (files, words) in [
        (&[("model.gguf.part1of3", "GGUF")][..], "join them in their order"),
        (&[("m.GGUF", "GGUF")], "rename the .GGUF file"),
        (&[("pytorch_model.bin", "PK")], "write it with save_pretrained"),
        (&[("model.safetensors", POINTER)], "fetch the file with `git lfs pull`"),
        (&[("model.gguf", POINTER)], "fetch the file with `git lfs pull`"),
        (&[("model.safetensors", PAGE)], "it is a web page"),
        (&[("model.gguf", PAGE)], "it is a web page"),
        (&[("adapter_config.json", "{}")], "merge it into its base model"),
        (
            &[("adapter_config.json", "{}"), ("adapter_model.safetensors", "")],
            "merge it into its base model",
        ),
        (&[("README.md", "")], "no .safetensors and no .gguf file"),
        (&[], "has no config.json"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let why = Config::read(&Model::in_dir(dir.path())).unwrap_err().to_string();
        assert!(why.contains(words), "{files:?}: {why}");
    }
}

#[test]
fn the_path_of_a_gguf_file_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("g.gguf"), PAGE).unwrap();
    let model = Model::at(dir.path().join("g.gguf"));
    let read = || Config::read(&model).unwrap_err().to_string();
    let place = dir.path().display().to_string();
    assert!(read().contains(&format!("g.gguf in {place} cannot be used: ")), "{}", read());
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    let model = Model::at(dir.path().join("g.gguf"));
    let why = Config::read(&model).unwrap_err().to_string();
    assert!(why.contains(&format!("{place}/config.json")), "{why}");
}
