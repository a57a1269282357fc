//! Invariants over generated commands.

use proptest::prelude::*;

use super::Place;
use crate::arguments::Arguments;
use crate::{Request, files, import_in, shell};

/// Strategy for a word of a command: a flag, known or not, or a value of the forms that values have or of none.
fn word() -> impl Strategy<Value = String> {
    let flags: Vec<_> = Arguments::read().unwrap().iter().map(|argument| argument.flag()).collect();
    let values = [
        "true",
        "0",
        "1",
        "-1",
        "8k",
        "1e9",
        "0.5",
        "auto",
        "None",
        "{}",
        "{\"a\": {\"b\": null}}",
        "[1]",
        "org/model",
        "/m",
        "s3://b/m",
        "",
        "a b",
        "$A",
        "--",
        "-O",
        "-O3",
        "--no-enforce-eager",
        "-cc.a.b",
        "--x=1",
        "-q",
        "--served-model-name",
        "--model",
        "--port",
    ];
    prop_oneof![
        4 => prop::sample::select(flags),
        4 => prop::sample::select(values.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_argument_is_reported_and_the_file_is_one_that_a_worker_reads(
        words in prop::collection::vec(word(), 0..20),
    ) {
        let place = Place::new();
        // A file that a command names is not there.
        let words: Vec<_> = words.into_iter().filter(|word| !word.starts_with("--config")).collect();
        let words = [vec!["vllm".to_owned(), "serve".to_owned(), "models/bear".to_owned()], words].concat();
        let request = Request { words, ..Request::default() };
        let imported = import_in(&request, place.path());
        prop_assert!(imported.is_ok(), "{:?}", imported);
        let imported = imported.unwrap();
        if imported.report.steps.is_empty() {
            let read = place.read(&imported);
            prop_assert!(read.is_ok(), "{:?}\n{}", read, imported.text(place.path()));
        }
        for line in imported.report() {
            prop_assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        }
    }

    #[test]
    fn no_text_ends_a_reader(text in "(?s).{0,200}", lines in prop::collection::vec("[ ]{0,4}[-a:\\[\\]{},\"'|>#\\\\ x]{0,12}", 0..12)) {
        let arguments = Arguments::read().unwrap();
        for text in [text, lines.join("\n")] {
            let _ = shell::commands(&text);
            let _ = files::command(&text, true);
            let _ = files::command(&text, false);
            let _ = files::config(&arguments, &text);
        }
    }
}
