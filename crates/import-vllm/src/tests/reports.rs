//! Fates of arguments.

use nsbridge_import::Fate;

use super::Place;
use crate::arguments::{Arguments, Group};

/// Returns the fate of the argument in a command.
#[track_caller]
fn fate(argument: &str) -> Fate {
    let place = Place::new();
    let imported = place.import(&format!("vllm serve s3://b/bear {argument}"));
    let report = &imported.report;
    assert_eq!(report.entries.len(), 2, "{argument}: {:#?}", imported.report());
    assert!(place.read(&imported).is_ok(), "{argument}");
    report.entries[1].fate.clone()
}

#[track_caller]
fn check(argument: &str, expected: &Fate) {
    assert_eq!(fate(argument), *expected, "{argument}");
}

#[test]
fn an_engine_argument_is_an_option_of_its_type() {
    for (argument, expected) in [
        ("--tensor-parallel-size 2", "tensor_parallel_size = 2"),
        ("-tp=2", "tensor_parallel_size = 2"),
        ("--tensor-par 2", "tensor_parallel_size = 2"),
        ("--device-memory-utilization 0.5", "gpu_memory_utilization = 0.5"),
        ("--cpu-offload-gb 4", "cpu_offload_gb = 4.0"),
        ("--seed -1", "seed = -1"),
        ("--max-num-batched-tokens 8K", "max_num_batched_tokens = 8192"),
        ("--max-model-len auto", "max_model_len = -1"),
        ("--kv-cache-memory-bytes 25.6k", "kv_cache_memory_bytes = 25600"),
        ("--enforce-eager", "enforce_eager = true"),
        ("--no-enforce-eager", "enforce_eager = false"),
        ("-dpm", "data_parallel_multi_port_external_lb = true"),
        ("--dtype bfloat16", "dtype = \"bfloat16\""),
        ("--max-lora-rank 64", "max_lora_rank = 64"),
        ("--moe-backend deep-gemm", "moe_backend = \"deep_gemm\""),
        ("--device-ids 2,3", "device_ids = \"2,3\""),
        ("--lora-target-modules a b", "lora_target_modules = [\"a\", \"b\"]"),
        ("--cudagraph-capture-sizes 1 2", "cudagraph_capture_sizes = [1, 2]"),
        ("--hf-overrides some.function", "hf_overrides = \"some.function\""),
        (
            "--override-generation-config '{\"temperature\": 0.5}'",
            "override_generation_config = { temperature = 0.5 }",
        ),
        ("--hf-overrides '{\"a\": null}'", "hf_overrides = '{\"a\":null}'"),
        ("-cc.mode 3", "compilation_config = { mode = 3 }"),
        (
            "-cc.a.b x -cc.a.c=8k -cc.d+ 1,2",
            "compilation_config = { a = { b = \"x\", c = 8000 }, d = [\"1\", \"2\"] }",
        ),
        ("--compilation_config.a_b true", "compilation_config = { a_b = true }"),
        ("-O3", "optimization_level = \"3\""),
        ("-O=2", "optimization_level = \"2\""),
        ("-O 1", "optimization_level = \"1\""),
        ("--load-format dummy", "load_format = \"dummy\""),
    ] {
        check(argument, &Fate::Carried(format!("[handler.options] {expected}")));
    }
}

#[test]
fn an_engine_argument_that_is_no_option_has_its_place_or_a_reason() {
    let carried = |text: &str| Fate::Carried(text.to_owned());
    check("--shutdown-timeout 30", &carried("[worker] grace_s = 30"));
    check("--download-dir /cache", &carried("[store] cache"));
    check(
        "--max-model-len 4096",
        &carried(
            "[handler.options] max_model_len = 4096; gateway.toml: [models.bear] context = 4096 tells clients",
        ),
    );
    check(
        "--served-model-name bear a b",
        &carried("[worker] model = \"bear\"; gateway.toml: [models.bear] aliases = [\"a\", \"b\"]"),
    );
    check(
        "--convert classify",
        &carried("[handler] task = \"judge\"; gateway.toml: [models.bear] task = \"judge\""),
    );
    check(
        "--lora-modules sql=s3://acme/sql '{\"name\": \"go\", \"path\": \"s3://acme/go\"}'",
        &carried(
            "[handler] adapters = [\"sql\", \"go\"]; gateway.toml: [models.sql] queue = \"bear\", adapter = \"sql\"; \
             [models.go] queue = \"bear\", adapter = \"go\"",
        ),
    );
    for argument in [
        "--hf-token canary",
        "--hf-token",
        "--revision v1",
        "--load-format runai_streamer",
        "--runner generate",
        "--convert auto",
        "--disable-log-stats",
        "--logprobs-mode raw_logprobs",
        "--no-enable-log-requests",
        "--quantization None",
        "--hf-config-path ''",
        "--shutdown-timeout 0",
    ] {
        assert!(matches!(fate(argument), Fate::NotNeeded(_)), "{argument}: {:?}", fate(argument));
    }
    for argument in [
        "--runner pooling",
        "--lora-modules bear",
        "--lora-modules bear=/adapters/$NAME",
        "--lora-modules '{\"name\": \"bear\"}'",
        "--enable-log-requests",
        "--reasoning-parser openai_gptoss",
        "--logprobs-mode raw_logits",
        "--skip-tokenizer-init",
        "--io-processor-plugin canary",
    ] {
        assert!(matches!(fate(argument), Fate::NotCarried(_)), "{argument}: {:?}", fate(argument));
    }
}

#[test]
fn an_argument_of_the_server_is_at_the_gateway_or_has_a_reason() {
    for (argument, expected) in [
        ("--port 9000", "[server] listen = \"0.0.0.0:9000\""),
        ("--host ::1", "[server] listen = \"[::1]:8000\""),
        ("--host localhost", "[server] listen = \"127.0.0.1:8000\""),
        ("--ssl-certfile /a.crt", "[server] certificate = \"/a.crt\""),
        ("--ssl-keyfile /a.key", "[server] key = \"/a.key\""),
        ("--allowed-origins '[\"*\"]'", "[server] allow_origins = [\"*\"]"),
        ("--tool-call-parser mistral", "[models.bear] tools = \"mistral\""),
    ] {
        check(argument, &Fate::AtGateway(format!("gateway.toml: {expected}")));
    }
    for argument in [
        "--api-key canary other",
        "--api-key=canary",
        "--host gpu-1",
        "--reasoning-parser deepseek_r1",
    ] {
        let fate = fate(argument);
        assert!(
            matches!(fate, Fate::AtGateway(_)) && !fate.text().contains("canary"),
            "{argument}: {fate:?}"
        );
    }
    for argument in [
        "--enable-auto-tool-choice",
        "--no-grpc-port",
        "--max-log-len 10",
        "--response-role assistant",
        "--disable-uvicorn-access-log",
        "--no-trust-request-chat-template",
        "--disable-log-requests",
    ] {
        let fate = fate(argument);
        let expected = if argument == "--no-grpc-port" { "UNKNOWN" } else { "not needed" };
        let is = match fate {
            Fate::NotNeeded(_) => "not needed",
            Fate::Unknown(_) => "UNKNOWN",
            _ => "",
        };
        assert_eq!(is, expected, "{argument}: {fate:?}");
    }
    for argument in [
        "--chat-template a.jinja",
        "--trust-request-mm-kwargs",
        "--middleware a.b",
        "--uds /x",
        "--tool-call-parser pythonic",
        "--response-role bear",
        "--trust-request-chat-template",
        "--guided-decoding-backend xgrammar",
        "--swap-space 4",
        "--task embed",
        "--headless",
    ] {
        assert!(matches!(fate(argument), Fate::NotCarried(_)), "{argument}: {:?}", fate(argument));
    }
}

#[test]
fn each_argument_of_the_server_has_a_rule() {
    let arguments = Arguments::read().unwrap();
    let servers = arguments.iter().filter(|argument| argument.group == Group::Server);
    let lacking: Vec<_> =
        servers.filter(|argument| !crate::rules::has_rule(argument)).map(|it| &it.name).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    let unknown: Vec<_> =
        crate::rules::names().filter(|name| arguments.get(name).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn an_unknown_flag_is_named_with_the_flag_that_is_most_like_it() {
    let unknown = |flag: &str, more: &str| {
        let version = Arguments::read().unwrap().version;
        check(flag, &Fate::Unknown(format!("vLLM {version} does not have it{more}")));
    };
    unknown("--tensor-paralel-size canary", "; did you mean `--tensor-parallel-size`?");
    unknown("--max_model_length 1", "; did you mean `--max-model-len`?");
    unknown("--no-enforce-eagr", "; did you mean `--no-enforce-eager`?");
    unknown("--max", "; did you mean `--max-loras`?");
    unknown("-zz canary canary", "");
    unknown("--zzz.a canary", "");
    check("canary", &Fate::Unknown("no flag takes it".to_owned()));
    let place = Place::new();
    let report = place.import("vllm serve m --zzz canary --enforce-eager canary").report();
    assert!(report.iter().all(|line| !line.contains("canary")), "{report:#?}");
    assert!(
        report.iter().any(|line| line.contains("0 not carried over, 2 unknown")),
        "{report:#?}"
    );
}

#[test]
fn a_chat_template_is_a_step_that_is_left() {
    let place = Place::new();
    place.write("a.jinja", "");
    let report = place.import("vllm serve models/bear --chat-template a.jinja").report();
    let step =
        "to do: [models] target: copy `a.jinja` to chat_template.jinja in the model's folder";
    assert!(report.iter().any(|line| line.starts_with(step)), "{report:#?}");
}

#[test]
fn an_adapter_at_a_place_that_a_worker_cannot_read_is_a_step_that_is_left() {
    let place = Place::new();
    let imported = place.import("vllm serve models/bear --lora-modules sql=https://acme/sql");
    let steps = &imported.report.steps;
    assert!(steps.iter().any(|step| step.starts_with("[models] sql: ")), "{steps:?}");
}

#[test]
fn variables_before_the_command_are_named_without_their_values() {
    let place = Place::new();
    let report =
        place.import("HF_TOKEN=canary VLLM_USE_DEEP_GEMM=canary vllm serve models/bear").report();
    let note = "note: the worker needs the variables of the command: VLLM_USE_DEEP_GEMM";
    assert!(report.iter().any(|line| line == note), "{report:#?}");
    assert!(!report.concat().contains("canary"), "{report:#?}");
}
