//! Loads of a model: what each process gets, and what cannot be loaded.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nsbridge_handler::{AsyncHandler, Fingerprint, Model, Models, testing};
use nsbridge_python::{Options, Python};
use serde_json::json;

use crate::folder::{Folder, answer, load};

/// Returns the error of a load.
#[track_caller]
fn refused(options: Options) -> String {
    let loaded: Result<Arc<Python>, _> = testing::load(options, Models::default());
    loaded.unwrap_err().to_string()
}

#[test]
fn the_models_of_the_configuration_are_folders() {
    let folder = Folder::with(
        "
        class Model:
            def load(self, models):
                self.text = (models['target'] / 'note.txt').read_text()
            def handle(self, input, job):
                yield self.text
        ",
    );
    let model = tempfile::tempdir().unwrap();
    fs::write(model.path().join("note.txt"), "from the store").unwrap();
    let models = [("target".to_owned(), Model::in_dir(model.path()))].into_iter().collect();
    let python: Arc<Python> = testing::load(folder.options(), models).unwrap();
    assert_eq!(answer(&python, &json!(0)).unwrap(), [json!("from the store")]);
}

#[test]
fn an_asynchronous_load_and_warm_up_are_awaited_in_the_loop_of_the_calls() {
    for (handle, same_loop) in
        [("def", "True"), ("async def", "self.loop is asyncio.get_running_loop()")]
    {
        let folder = Folder::with(&format!(
            "
            import asyncio
            class Model:
                async def load(self, models, options):
                    await asyncio.sleep(0)
                    self.loop = asyncio.get_running_loop()
                    self.made = [options['word']]
                async def warm_up(self):
                    await asyncio.sleep(0)
                    self.made.append('warm')
                {handle} handle(self, input, job):
                    yield [self.made, {same_loop}]
            "
        ));
        let mut options = folder.options();
        options.options.insert("word".to_owned(), "hello".into());
        let pieces = answer(&load(options), &json!(0)).unwrap();
        assert_eq!(pieces, [json!([["hello", "warm"], true])], "{handle}");
    }
}

#[test]
fn what_cannot_be_loaded_is_told_with_its_place() {
    let check = |model: &str, parts: &[&str]| {
        let folder = Folder::with(model);
        let said = refused(folder.options());
        for part in parts {
            assert!(said.contains(part), "`{part}` is missing in: {said}");
        }
    };
    check(
        "import nothing_of_this_name",
        &["ModuleNotFoundError", "in the environment of /", "(model.py:1)"],
    );
    check("def f(:\n    pass", &["SyntaxError"]);
    check("x = 1", &["0 classes have a method `handle` or `run`"]);
    let two = "class A:\n    def handle(self): pass\nclass B(A): pass";
    check(two, &["2 classes", "model.py:Class"]);
    check(
        "class A:\n    handle = 1\n    def load(self, models): raise SystemExit(3)",
        &["SystemExit"],
    );
    check(
        "class A:\n    async def load(self, models): raise OSError(3)\n    def handle(self, x): pass",
        &["OSError", "(model.py:2)"],
    );
    check("import os\nos._exit(7)", &["exit code 7"]);
    check("import os\nos.kill(os.getpid(), 11)", &["signal 11"]);
}

#[test]
fn a_class_is_chosen_by_its_name() {
    let text = "class A:\n    def handle(self, x): return 'A'\nclass B(A):\n    def handle(self, x): return 'B'";
    let folder = Folder::with(text);
    let mut options = folder.options();
    options.entry_point = folder.path("model.py:B");
    assert_eq!(answer(&load(options), &json!(0)).unwrap(), [json!("B")]);
}

#[test]
fn a_wrong_path_or_interpreter_is_named() {
    let folder = Folder::with("def handle(input): return input");
    let mut options = folder.options();
    options.entry_point = folder.path("other.py");
    let said = refused(options);
    assert!(said.contains("other.py") && said.contains("the model's file"), "{said}");
    folder.write("README.md", "A greeter.");
    let mut options = folder.options();
    options.entry_point = folder.path("README.md");
    let said = refused(options);
    assert!(said.contains("README.md is no file of Python code"), "{said}");
    let mut options = folder.options();
    options.python = "no-such-python".into();
    let said = refused(options);
    assert!(said.contains("no-such-python") && said.contains("[handler] python"), "{said}");
    let mut options = folder.options();
    options.python = "false".into();
    assert!(refused(options).contains("exit code 1"));
}

#[test]
fn a_load_that_hangs_is_ended() {
    let folder = Folder::with("import time\ntime.sleep(1000)\ndef handle(input): return input");
    let mut options = folder.options();
    options.load_timeout_s = 1;
    assert!(refused(options).contains("load_timeout_s"));
}

#[test]
fn the_fingerprint_changes_with_sources_options_version_and_models() {
    let folder = Folder::with(
        "
        import other
        version = open('version').read()
        def handle(input): return input
        ",
    );
    folder.write("version", "1");
    folder.write("other.py", "");
    let print = |options: Options, models: Models| -> Fingerprint {
        let python: Arc<Python> = testing::load(options, models).unwrap();
        AsyncHandler::fingerprint(&*python).unwrap()
    };
    let none = Models::default;
    let first = print(folder.options(), none());
    assert_eq!(print(folder.options(), none()), first);
    let mut options = folder.options();
    options.options.insert("a".to_owned(), json!(1));
    let with_option = print(options, none());
    let model = tempfile::tempdir().unwrap();
    let models = || [("a".to_owned(), Model::in_dir(model.path()))].into_iter().collect();
    fs::write(model.path().join("weights"), "1").unwrap();
    let with_model = print(folder.options(), models());
    fs::write(model.path().join("weights"), "2").unwrap();
    let other_model = print(folder.options(), models());
    folder.write("version", "2");
    let other_version = print(folder.options(), none());
    folder.write("version", "1");
    assert_eq!(print(folder.options(), none()), first, "data beside the model does not count");
    folder.write("other.py", "# changed");
    let changed = print(folder.options(), none());
    let all = [first, with_option, with_model, other_model, other_version, changed];
    assert!((0..6).all(|a| (0..a).all(|b| all[a] != all[b])), "{all:?}");
}

#[test]
fn the_fingerprint_is_that_of_the_same_model_in_another_folder() {
    let print = || {
        let folder = Folder::with("def handle(input): return input");
        AsyncHandler::fingerprint(&*folder.load()).unwrap()
    };
    assert_eq!(print(), print());
}

#[test]
fn a_function_that_is_named_version_is_no_version() {
    for model in [
        "from importlib.metadata import version\ndef handle(input): return input",
        "import json as version\ndef handle(input): return input",
        "class Model:\n    def version(self): pass\n    def handle(self, input): return input",
        "import djl_python\nfrom importlib.metadata import version\ndef handle(inputs): return None",
    ] {
        let folder = Folder::with(model);
        let print = || AsyncHandler::fingerprint(&*folder.load()).unwrap();
        assert_eq!(print(), print(), "{model}");
    }
}

#[test]
fn a_changed_model_is_loaded_again_and_a_broken_one_is_not() {
    let folder = Folder::with("def handle(input): return 'first'");
    let mut options = folder.options();
    options.reload = true;
    let python = load(options);
    let says = || answer(&python, &json!(0)).unwrap();
    assert_eq!(says(), [json!("first")]);
    // It does not compile, after it has told that it is tried.
    folder.write("model.py", "open('tried', 'w').write('x')\nexec('def handle(input:')");
    folder.wait_for("tried");
    // The next change is looked for after the broken model was given up.
    folder.write("model.py", "def handle(input): return 'second'");
    let started = Instant::now();
    loop {
        let said = says();
        if said == [json!("second")] {
            break;
        }
        assert_eq!(said, [json!("first")]);
        assert!(started.elapsed() < Duration::from_secs(20), "it is not loaded");
        std::thread::sleep(Duration::from_millis(20));
    }
}
