//! Invariants over generated options.

use std::collections::BTreeSet;
use std::fs;

use proptest::prelude::*;

use super::{Place, fixtures};
use crate::settings::Settings;
use crate::{check, convert, environment, properties};

/// Returns the names of all options in the fixtures.
fn known() -> Vec<String> {
    let mut names = BTreeSet::new();
    for entry in fixtures().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let Some(extension) = path.extension() else { continue };
        let text = fs::read_to_string(&path).unwrap_or_default();
        if extension == "properties" {
            names.extend(
                properties::parse(&text).unwrap().into_iter().map(|property| property.name),
            );
        } else if extension == "env" {
            let read = environment::variables(&text).unwrap();
            names.extend(read.into_iter().map(|variable| variable.name));
        }
    }
    assert!(names.len() > 120, "{}", names.len());
    names.into_iter().collect()
}

/// Strategy for the name of an option, known or not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(known()),
        1 => "option\\.[a-zA-Z_]{0,12}",
        1 => any::<String>(),
    ]
}

/// Strategy for a value, of the forms that options have or of none.
fn value() -> impl Strategy<Value = String> {
    let forms = [
        "true",
        "false",
        "max",
        "auto",
        "0",
        "1",
        "2",
        "-1",
        "3",
        "64",
        "99999999999999999999",
        "1e9",
        "0.5",
        "NaN",
        "fp16",
        "awq",
        "none",
        "disable",
        "gpu4;gpu5",
        "*",
        "cpu",
        "7",
        "Python",
        "MPI",
        "PyTorch",
        "Rust",
        "model.py",
        "other.py",
        "a.b",
        "https://example.com/model.py",
        "djl_python.huggingface",
        "djl_python.sklearn_handler",
        "s3://bucket/model",
        "s3://",
        "org/model",
        "/nowhere/model",
        "./here",
        "djl://zoo/model",
        "text-embedding",
        "question-answering",
        "{\"model\": \"a/b\", \"num_speculative_tokens\": 5}",
        "{\"method\": \"ngram\", \"prompt_lookup_max\": 1}",
        "{}",
        "json",
        " 64 ",
        "64 # comment",
        "env/bin/python",
        "",
    ];
    prop_oneof![4 => prop::sample::select(forms.to_vec()).prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_option_is_reported_once_and_the_file_is_one_that_a_worker_reads(
        options in prop::collection::vec((name(), value()), 0..14),
        more in prop::collection::vec((name(), value()), 0..5),
        beside in prop::sample::subsequence(vec!["model.py", "config.json"], 0..=2),
    ) {
        let place = Place::with(&beside);
        let options = options.into_iter().zip(1..).map(|((name, value), line)| properties::Property { name, value, line });
        let options: Vec<_> = options.collect();
        // Names that no shell could set are none of a variable.
        let variables: Vec<_> = more
            .into_iter()
            .filter(|(name, value)| !name.is_empty() && !name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') && !value.contains(['\n', '\r']))
            .flat_map(|(name, value)| environment::variables(&format!("{name}={value}")).unwrap())
            .collect();
        let names = options.iter().map(|option| (true, option.name.clone()));
        let names: BTreeSet<_> = names.chain(variables.iter().map(|variable| (false, variable.name.clone()))).collect();
        let settings = Settings::new(options, variables);
        let imported = convert(&settings, &place.model(), None);

        let mut reported: Vec<_> = imported
            .report
            .entries
            .iter()
            .map(|entry| (entry.place.starts_with("line") && !entry.place.contains("of the variables"), entry.name.clone()))
            .collect();
        reported.sort();
        prop_assert_eq!(reported, names.into_iter().collect::<Vec<_>>());

        let checked = check(&imported.draft);
        prop_assert!(checked.is_ok(), "{:?}\n{}", checked, place.toml(&imported));
        // Without a step that is left, a worker reads the file as it is.
        if imported.report.steps.is_empty() {
            let read = place.read(&imported);
            prop_assert!(read.is_ok(), "{:?}\n{}", read, place.toml(&imported));
        }
        for line in imported.report.lines() {
            prop_assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        }
    }
}
