//! Values that vLLM would refuse.

use nsbridge_import::Fate;

use super::Place;
use crate::arguments::{Arguments, Group, Kind};
use crate::value::count;

#[test]
fn a_wrong_value_is_not_carried_and_not_shown() {
    for (argument, why) in [
        ("--tensor-parallel-size canary", "it must be a whole number"),
        ("--tensor-parallel-size 2.5", "it must be a whole number"),
        ("--tensor-parallel-size", "it has no value"),
        ("--tensor-parallel-size.a 1", "its value is no object with fields"),
        ("--max-num-batched-tokens 8x", "it must be a whole number, such as 8192 or 8k"),
        ("--max-model-len 1.5K", "it must be auto or a whole number, such as 8192 or 8k"),
        ("--gpu-memory-utilization nan", "it must be a number"),
        (
            "--enforce-eager=true",
            "it takes no value: write `--enforce-eager` or `--no-enforce-eager`",
        ),
        (
            "--data-parallel-multi-port-external-lb=1",
            "it takes no value: write `--data-parallel-multi-port-external-lb`",
        ),
        ("--dtype canary", "it must be one of auto, bfloat16, float, float16, float32, half"),
        ("--max-lora-rank 7", "it must be one of 1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ("--override-generation-config '{canary'", "it must be a JSON object"),
        ("--override-generation-config '[1]'", "it must be a JSON object"),
        ("--cudagraph-capture-sizes 1 b", "it must be a whole number"),
        (
            "--quantization $CANARY",
            "a shell's variable is in it, and its value is not known here: write the value",
        ),
        ("--shutdown-timeout -1", "it must be a whole number"),
        ("-O", "it has no value"),
    ] {
        let place = Place::new();
        let imported = place.import(&format!("vllm serve models/bear {argument}"));
        assert_eq!(imported.report.entries[1].fate, Fate::NotCarried(why.to_owned()), "{argument}");
        assert_eq!(imported.losses(), 1, "{argument}");
        assert!(!imported.text(place.path()).to_lowercase().contains("canary"), "{argument}");
        assert!(place.read(&imported).is_ok(), "{argument}");
    }
    let place = Place::new();
    let imported = place.import("vllm serve models/bear --kv-cache-dtype fp8_e4m4");
    let said = imported.report.entries[1].fate.text();
    assert!(said.starts_with("vLLM has ") && said.ends_with("such as fp8_e4m3"), "{said}");
}

#[test]
fn counts_have_the_units_of_vllm() {
    for (text, expected) in [
        ("8192", Some(8192)),
        (" -1 ", Some(-1)),
        ("1k", Some(1000)),
        ("1K", Some(1024)),
        ("2M", Some(2 << 20)),
        ("3g", Some(3_000_000_000)),
        ("1T", Some(1 << 40)),
        ("25.6k", Some(25_600)),
        ("1.5K", None),
        ("-1k", None),
        ("k", None),
        ("1kk", None),
        ("1é", None),
        ("", None),
        ("99999999T", None),
    ] {
        assert_eq!(count(text), expected, "{text}");
    }
}

#[test]
fn the_arguments_of_vllm_are_those_that_it_documents() {
    let arguments = Arguments::read().unwrap();
    assert!(arguments.iter().count() > 280);
    let has = |name: &str, group: Group, kind: Kind, many: bool| {
        let argument = arguments.get(name).unwrap();
        assert_eq!((argument.group, argument.kind, argument.many), (group, kind, many), "{name}");
    };
    has("tensor_parallel_size", Group::Engine, Kind::Integer, false);
    has("max_model_len", Group::Engine, Kind::CountOrAuto, false);
    has("served_model_name", Group::Engine, Kind::String, true);
    has("speculative_config", Group::Engine, Kind::Json, false);
    has("enable_lora", Group::Engine, Kind::Boolean, false);
    has("api_key", Group::Server, Kind::String, true);
    has("headless", Group::Server, Kind::Switch, false);
    for argument in arguments.iter() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(argument.name.chars().all(plain), "{}", argument.name);
        assert!(!argument.many || argument.has_value(), "{}", argument.name);
        let found = arguments.find(&argument.flag()).unwrap();
        assert_eq!((found.argument.name.as_str(), found.is_off), (argument.name.as_str(), false));
    }
}
