//! Fixtures: the properties and variables that DJLServing's documentation prints.

use std::fs;

use nsbridge_import::{Fate, Imported};

use super::{Place, fixtures};
use crate::{environment, properties};

/// Fixture with the folder that its first line describes.
struct Fixture {
    name: String,
    place: Place,
    properties: String,
    variables: String,
}

impl Fixture {
    fn read(name: &str) -> Self {
        let text = fs::read_to_string(fixtures().join(name)).unwrap();
        let beside = text.lines().next().and_then(|line| line.strip_prefix("# beside: "));
        let files: Vec<_> =
            beside.unwrap_or_default().split(", ").filter(|file| !file.is_empty()).collect();
        let place = Place::with(&files);
        let (properties, variables) = match name.ends_with(".env") {
            true => (String::new(), text.clone()),
            false => (text.clone(), String::new()),
        };
        Self { name: name.to_owned(), place, properties, variables }
    }

    fn all() -> Vec<Self> {
        let entries = fixtures().read_dir().unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.retain(|name| name.ends_with(".properties") || name.ends_with(".env"));
        names.sort();
        names.iter().map(|name| Self::read(name)).collect()
    }

    fn import(&self) -> Imported {
        self.place.import(&self.properties, &self.variables)
    }

    /// Returns the names of the options, each once.
    fn names(&self) -> Vec<String> {
        let properties = properties::parse(&self.properties).unwrap();
        let variables = environment::variables(&self.variables).unwrap();
        let names = properties.into_iter().map(|property| property.name);
        let mut names: Vec<_> =
            names.chain(variables.into_iter().map(|variable| variable.name)).collect();
        names.sort();
        names.dedup();
        names
    }
}

#[test]
fn each_option_of_each_fixture_is_reported_once() {
    let fixtures = Fixture::all();
    assert!(fixtures.len() >= 60, "{}", fixtures.len());
    for fixture in fixtures {
        let report = fixture.import().report;
        let mut reported: Vec<_> = report.entries.iter().map(|entry| entry.name.clone()).collect();
        reported.sort();
        assert_eq!(reported, fixture.names(), "{}", fixture.name);
        for name in reported {
            let lines = report.lines();
            // The fate has twelve letters.
            let is_it = |line: &&String| {
                line.get(13..).is_some_and(|line| line.starts_with(&format!("{name} (")))
            };
            assert_eq!(
                lines.iter().filter(is_it).count(),
                1,
                "{}: {name}: {lines:#?}",
                fixture.name
            );
        }
    }
}

#[test]
fn no_documented_option_is_unknown() {
    // A slip of DJLServing's documentation, and the example of a setting that its secure mode blocks.
    let slips = ["option.modeName", "option.custom_setting"];
    for fixture in Fixture::all() {
        for entry in fixture.import().report.entries {
            let unknown = matches!(entry.fate, Fate::Unknown(_));
            assert!(!unknown || slips.contains(&&*entry.name), "{}: {entry:?}", fixture.name);
        }
    }
}

#[test]
fn a_worker_starts_with_a_fixture_or_says_what_is_left_to_do() {
    for fixture in Fixture::all() {
        let imported = fixture.import();
        let read = fixture.place.read(&imported);
        let steps = &imported.report.steps;
        match &read {
            Ok(config) if config.handler.contains_key("entry_point") => {}
            Ok(_) => assert!(steps.is_empty(), "{}: {steps:?}", fixture.name),
            Err(why) => {
                let placeholder =
                    ["`hub://` is not known", "`missing://` is not known", "there is no model in"];
                assert!(
                    placeholder.iter().any(|part| why.contains(part)),
                    "{}: {why}",
                    fixture.name
                );
                assert!(!steps.is_empty(), "{}: {why}", fixture.name);
            }
        }
    }
}

#[test]
fn a_lost_option_is_named_in_the_file_with_its_reason() {
    for fixture in Fixture::all() {
        let imported = fixture.import();
        let text = fixture.place.toml(&imported).replace("\n#", "");
        for entry in imported.report.entries.iter().filter(|entry| entry.fate.is_loss()) {
            let line = format!("{}: {}", entry.name, entry.fate.text());
            assert!(text.contains(&line), "{}: {line}\n{text}", fixture.name);
        }
    }
}

/// Returns the file and the report of a fixture.
fn shown(name: &str) -> String {
    let fixture = Fixture::read(name);
    let imported = fixture.import();
    let whole =
        format!("{}\n{}\n", fixture.place.toml(&imported), imported.report.lines().join("\n"));
    whole.replace(fixture.place.0.path().to_str().unwrap(), "[dir]")
}

macro_rules! snapshots {
    ($($name:ident: $file:literal,)*) => {
        $(
            #[test]
            fn $name() {
                insta::assert_snapshot!($file, shown($file));
            }
        )*
    };
}

snapshots! {
    a_model_of_neuron_with_a_draft: "neuron-with-a-draft.properties",
    a_model_in_python: "test-echo-python.properties",
    a_model_in_python_with_tasks: "async-mode.properties",
    a_model_in_python_with_all_options: "options-of-all-engines.properties",
    a_model_of_a_hub: "vllm-pass-through.properties",
    a_model_beside: "vllm-async.properties",
    a_model_with_adapters: "lora-all-options.properties",
    a_model_for_vectors: "embedding-vllm.properties",
    a_model_of_java: "pytorch-images.properties",
    a_model_of_scikit_learn: "scikit-learn.properties",
    a_model_from_variables: "vllm.env",
    a_model_of_the_starting_guide: "starting.env",
}
