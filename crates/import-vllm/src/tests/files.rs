//! The whole file of some commands.

use std::path::PathBuf;

use toml::Value;

use super::{Place, request};
use crate::{Request, import_in};

/// Command of a server with arguments of all groups.
const COMMAND: &str = "vllm serve models/bear --tensor-parallel-size 2 --max-model-len 8k --enable-lora \
                       --served-model-name 'the bear' bear --api-key canary --host 127.0.0.1 \
                       --tool-call-parser hermes --enable-auto-tool-choice --reasoning-parser qwen3 \
                       --gpu-memory-utilization=0.9 --no-enable-prefix-caching \
                       --limit-mm-per-prompt '{\"image\": 0}' --speculative-config.num_speculative_tokens 3 \
                       --speculative-config.method ngram -O3 --fancy-flag canary";

const FILE: &str = r#"# Made by `nsbridge import-vllm`. The comment above a field names the argument of vLLM that it comes
# from.

[worker]
# --served-model-name
model = "the-bear"

[broker]
# vLLM has no broker. NSBRIDGE_BROKER__URL overrides it
url = "amqp://localhost"

[keys]
# vLLM has no keys: `nsbridge keys generate --out keys.json` beside this file
keyring = "keys.json"

[models]
# MODEL (command line)
target = "models/bear"

[handler]
# vLLM's engine, which the worker starts
engine = "vllm"
# python = "venv/bin/python"   # if vLLM is in an environment of its own

[handler.options]
# --tensor-parallel-size (command line)
tensor_parallel_size = 2
# --max-model-len (command line)
max_model_len = 8000
# --enable-lora (command line)
enable_lora = true
# --gpu-memory-utilization (command line)
gpu_memory_utilization = 0.9
# --no-enable-prefix-caching (command line)
enable_prefix_caching = false
# --limit-mm-per-prompt (command line)
limit_mm_per_prompt = { image = 0 }
# --speculative-config.num_speculative_tokens (command line)
speculative_config = { method = "ngram", num_speculative_tokens = 3 }
# -O (command line)
optimization_level = "3"
"#;

#[test]
fn a_command_becomes_a_file_that_a_worker_reads() {
    let place = Place::new();
    let imported = place.import(COMMAND);
    let text = imported.text(place.path());
    let (fields, rest) = text.split_once("\n# At the gateway:\n").unwrap();
    assert_eq!(fields, FILE);
    let (gateway, lost) = rest.split_once("# Not carried over:\n").unwrap();
    let at_gateway: Vec<_> = gateway.lines().collect();
    assert!(at_gateway[0].starts_with("# --api-key: gateway.toml: [access] file;"), "{text}");
    for line in [
        "# --host: gateway.toml: [server] listen = \"127.0.0.1:8000\"",
        "# --tool-call-parser: gateway.toml: [models.the-bear] tools = \"hermes\"",
    ] {
        assert!(at_gateway.contains(&line), "{text}");
    }
    assert!(gateway.contains("[models.the-bear] reasoning = \"think\""), "{text}");
    assert!(lost.contains("# --fancy-flag: "), "{text}");
    assert!(!text.contains("canary") && !imported.report().concat().contains("canary"), "{text}");
    let config = place.read(&imported).unwrap();
    assert_eq!(config.worker.model.as_str(), "the-bear");
    assert_eq!(config.handler["engine"].as_str(), Some("vllm"));
}

#[test]
fn equal_commands_in_other_forms_have_equal_files() {
    let place = Place::new();
    let expected = place.table(&place.import(
        "vllm serve models/bear --tensor-parallel-size 2 --quantization awq --enable-lora --max-num-seqs 8 \
         --hf-overrides '{\"a\": {\"b\": [1, 2]}}'",
    ));
    let program = "python3 -m vllm.entrypoints.openai.api_server";
    for command in [
        format!("{program} --model models/bear -tp 2 -q awq --enable-lora --max-num-seqs=8 --hf-overrides.a.b '[1, 2]'"),
        "models/bear --tensor_parallel_size=2 -q=awq --enable-lora --max-num-seq 8 --hf-overrides.a '{\"b\": [1, 2]}'"
            .to_owned(),
        "--tensor-parallel-size 4 --tensor-parallel-size 2 --model other models/bear --quantization awq \
         --no-enable-lora --enable-lora --max-num-seqs 8 --hf-overrides '{\"a\":{\"b\":[1,2]}}'"
            .to_owned(),
    ] {
        assert_eq!(place.table(&place.import(&command)), expected, "{command}");
    }
}

#[test]
fn flags_win_over_the_file_of_vllm() {
    let place = Place::new();
    place.write("serve.yaml", "model: models/bear\ntensor-parallel-size: 4\nmax-num-seqs: 8\nport: 1234\nenforce-eager: true\n");
    let own = place.import("vllm serve -tp 2 --config serve.yaml");
    let config = Some(PathBuf::from("serve.yaml"));
    let given = Request { config: config.clone(), ..request("vllm serve -tp 2") };
    let given = import_in(&given, place.path()).unwrap();
    for imported in [own, given] {
        let options = place.table(&imported)["handler"]["options"].clone();
        assert_eq!(options["tensor_parallel_size"], Value::Integer(2));
        assert_eq!(options["max_num_seqs"], Value::Integer(8));
        assert_eq!(options["enforce_eager"], Value::Boolean(true));
        let report = imported.report();
        let line = "carried over -tp (command line; another value (serve.yaml) has no effect): \
                    [handler.options] tensor_parallel_size = 2";
        assert!(report.iter().any(|own| own == line), "{report:#?}");
    }
    let both = Request { config, ..request("vllm serve m --config=serve.yaml") };
    let said = import_in(&both, place.path()).unwrap_err().to_string();
    assert!(said.contains("give one of them"), "{said}");
}

#[test]
fn a_file_of_a_container_is_imported() {
    let place = Place::new();
    let pod = "containers:\n- image: vllm/vllm-openai:v0.32.0\n  command: [/opt/v/bin/python, -m, \
               vllm.entrypoints.openai.api_server]\n  args:\n  - --model=s3://b/bear\n  - --max-num-seqs\n  - \"$(SEQS)\"\n";
    place.write("pod.yaml", pod);
    let request = Request {
        file: Some("pod.yaml".into()),
        name: Some("cub".parse().unwrap()),
        ..Request::default()
    };
    let imported = import_in(&request, place.path()).unwrap();
    let table = place.table(&imported);
    assert_eq!(table["worker"]["model"].as_str(), Some("cub"));
    assert_eq!(table["models"]["target"].as_str(), Some("s3://b/bear"));
    assert_eq!(table["handler"]["python"].as_str(), Some("/opt/v/bin/python"));
    assert!(!table["handler"].as_table().unwrap().contains_key("options"));
    let line = "NOT CARRIED  --max-num-seqs (pod.yaml): a shell's variable is in it, and its value is not known here: \
                write the value";
    assert!(imported.report().iter().any(|own| own == line), "{:#?}", imported.report());
    assert!(place.read(&imported).is_ok());
}

#[test]
fn a_model_of_a_hub_is_a_step_that_is_left() {
    let place = Place::new();
    let imported = place.import("vllm serve Qwen/Qwen3-8B --revision v1");
    let table = place.table(&imported);
    assert_eq!(table["worker"]["model"].as_str(), Some("Qwen3-8B"));
    assert_eq!(table["models"]["target"].as_str(), Some("hub://Qwen/Qwen3-8B@v1"));
    let report = imported.report();
    let steps: Vec<_> = report.iter().filter(|line| line.starts_with("to do: ")).collect();
    assert_eq!(steps.len(), 1, "{report:#?}");
    assert!(
        steps[0].contains("`hf download Qwen/Qwen3-8B --revision v1 --local-dir DIR`"),
        "{report:#?}"
    );
    let note = "note: gateway.toml: [models.Qwen3-8B] aliases = [\"Qwen/Qwen3-8B\"] keeps the name that vLLM's clients use";
    assert!(report.iter().any(|line| line == note), "{report:#?}");
    let refusal = place.read(&imported).unwrap_err();
    assert!(refusal.contains("hub://"), "{refusal}");
}

#[test]
fn a_command_without_a_model_is_refused() {
    let place = Place::new();
    for command in ["", "vllm serve", "vllm serve --port 1", "vllm serve --model"] {
        let said = import_in(&request(command), place.path()).unwrap_err().to_string();
        assert_eq!(
            said, "the command names no model: give it as in `vllm serve MODEL`",
            "{command}"
        );
    }
    let said = import_in(&request("vllm bench latency"), place.path()).unwrap_err().to_string();
    assert!(said.contains("no command of vLLM's server"), "{said}");
    let absent = Request { file: Some("absent.sh".into()), ..Request::default() };
    let said = import_in(&absent, place.path()).unwrap_err().to_string();
    assert_eq!(said, "cannot read absent.sh");
}
