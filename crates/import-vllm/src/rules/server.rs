//! Arguments of vLLM's HTTP server, and where the gateway has them.

use super::{Apply, Rule, engine, gateway};

/// Rules for all arguments of the server.
pub(super) const RULES: &[Rule] = &[
    Rule { names: &["host", "port"], apply: Apply::By(gateway::listen) },
    Rule { names: &["api_key"], apply: Apply::By(gateway::api_key) },
    Rule { names: &["ssl_certfile"], apply: Apply::By(gateway::certificate) },
    Rule { names: &["ssl_keyfile"], apply: Apply::By(gateway::certificate_key) },
    Rule { names: &["allowed_origins"], apply: Apply::By(gateway::origins) },
    Rule { names: &["tool_call_parser"], apply: Apply::By(gateway::tools) },
    Rule { names: &["chat_template"], apply: Apply::By(gateway::chat_template) },
    Rule {
        names: &["ssl_ca_certs"],
        apply: Apply::NotCarried(
            "the gateway asks for no certificate of a client: callers have API keys",
        ),
    },
    Rule {
        names: &["ssl_cert_reqs"],
        apply: Apply::Unless(
            &["0"],
            "the gateway asks for no certificate of a client",
            "the gateway asks for no certificate of a client: callers have API keys",
        ),
    },
    Rule {
        names: &["ssl_ciphers"],
        apply: Apply::NotCarried("the ciphers of the gateway are those of its TLS library"),
    },
    Rule {
        names: &["enable_ssl_refresh"],
        apply: Apply::NotNeeded("the gateway loads certificate and key again when they change"),
    },
    Rule {
        names: &["allowed_methods", "allowed_headers"],
        apply: Apply::NotNeeded(
            "pages of [server] allow_origins of gateway.toml may send all that the gateway reads",
        ),
    },
    Rule {
        names: &["allow_credentials"],
        apply: Apply::NotCarried("the gateway has no cookies: pages send the API key in a header"),
    },
    Rule {
        names: &["root_path"],
        apply: Apply::NotCarried("let the proxy before the gateway take the prefix away"),
    },
    Rule {
        names: &["middleware"],
        apply: Apply::NotCarried("the gateway runs no code of others: put a proxy before it"),
    },
    Rule {
        names: &["uds"],
        apply: Apply::NotCarried(
            "the gateway listens at an address: [server] listen of gateway.toml",
        ),
    },
    Rule {
        names: &["grpc", "grpc_port"],
        apply: Apply::NotCarried("the gateway serves HTTP alone"),
    },
    Rule {
        names: &["headless"],
        apply: Apply::NotCarried(
            "it is a follower's: take the command of rank 0, and start deploy/vllm/follower.py with its worker.toml; a \
             copy of the model is a worker of its own",
        ),
    },
    Rule {
        names: &["api_server_count"],
        apply: Apply::NotNeeded("gateways are processes of their own: start as many as you need"),
    },
    Rule {
        names: &["config"],
        apply: Apply::NotNeeded("a file of arguments names no further file"),
    },
    Rule { names: &["lora_modules"], apply: Apply::By(engine::adapters) },
    Rule {
        names: &["chat_template_content_format"],
        apply: Apply::NotNeeded(
            "the texts of a message are joined by line ends before the chat template sees them",
        ),
    },
    Rule {
        names: &["trust_request_chat_template"],
        apply: Apply::NotCarried(
            "a request cannot bring a chat template: it is a file of the model",
        ),
    },
    Rule {
        names: &["trust_request_mm_kwargs"],
        apply: Apply::NotCarried("a request has no options of images: it has images alone"),
    },
    Rule {
        names: &["default_chat_template_kwargs"],
        apply: Apply::NotCarried("requests bring them: `chat_template_kwargs`"),
    },
    Rule {
        names: &["response_role"],
        apply: Apply::Unless(
            &["assistant"],
            "it is the role of each reply",
            "the role of each reply is `assistant`",
        ),
    },
    Rule {
        names: &["return_tokens_as_token_ids"],
        apply: Apply::NotCarried("the tokens of `logprobs` are texts; `POST /tokenize` tells ids"),
    },
    Rule {
        names: &["enable_auto_tool_choice"],
        apply: Apply::NotNeeded(
            "calls are parsed if the model's table of gateway.toml has `tools`",
        ),
    },
    Rule {
        names: &["exclude_tools_when_tool_choice_none"],
        apply: Apply::NotCarried("a client that wants no calls omits `tools`"),
    },
    Rule {
        names: &["tool_parser_plugin"],
        apply: Apply::NotCarried(
            "the gateway reads calls in its own formats alone: hermes, llama3_json, mistral",
        ),
    },
    Rule {
        names: &["tool_strict_level"],
        apply: Apply::NotNeeded("a grammar holds calls to the schemas of their tools"),
    },
    Rule {
        names: &["tool_server"],
        apply: Apply::NotCarried("the gateway runs no tools: the client does"),
    },
    Rule {
        names: &["max_log_len", "log_error_stack", "enable_log_deltas"],
        apply: Apply::NotNeeded("no prompt and no reply is logged"),
    },
    Rule {
        names: &["enable_log_outputs"],
        apply: Apply::NotCarried("no prompt and no reply is logged"),
    },
    Rule {
        names: &["enable_prompt_tokens_details"],
        apply: Apply::NotNeeded("the usage of each reply has its cached tokens"),
    },
    Rule {
        names: &["enable_per_request_metrics"],
        apply: Apply::NotCarried(
            "the times of requests are in the metrics of workers and gateways (docs/metrics.md)",
        ),
    },
    Rule {
        names: &["enable_server_load_tracking"],
        apply: Apply::NotNeeded(
            "the metrics of workers and gateways have the requests that run and wait",
        ),
    },
    Rule {
        names: &["enable_force_include_usage"],
        apply: Apply::NotCarried("a client asks for it: `stream_options` with `include_usage`"),
    },
    Rule {
        names: &["sse_keep_alive_interval"],
        apply: Apply::NotNeeded("a silent stream of the gateway has a comment every 15 s"),
    },
    Rule {
        names: &["enable_tokenizer_info_endpoint"],
        apply: Apply::NotCarried("the gateway has `POST /tokenize` and `POST /detokenize` alone"),
    },
    Rule {
        names: &["cohere_is_reasoning_model", "cohere_format"],
        apply: Apply::NotCarried(
            "the gateway speaks OpenAI's and Anthropic's API alone (docs/gateway.md)",
        ),
    },
    Rule {
        names: &["anthropic_disabled_thinking_effort"],
        apply: Apply::Unless(
            &["auto"],
            "it is the default",
            "`thinking` of a message sets the variable enable_thinking of the chat template",
        ),
    },
    Rule {
        names: &["tokens_only", "enable_scale_out"],
        apply: Apply::NotCarried("the gateway has none of these endpoints (docs/gateway.md)"),
    },
    Rule {
        names: &["fingerprint_mode", "fingerprint_value"],
        apply: Apply::NotNeeded("`system_fingerprint` is the revision of the model"),
    },
    Rule {
        names: &[
            "data_parallel_supervisor_port",
            "dp_supervisor_probe_interval_s",
            "dp_supervisor_probe_timeout_s",
            "dp_supervisor_probe_failure_threshold",
        ],
        apply: Apply::NotNeeded(
            "each worker has pages of its own for probes: [health] listen of worker.toml",
        ),
    },
    Rule {
        names: &[
            "uvicorn_log_level",
            "disable_uvicorn_access_log",
            "disable_access_log_for_endpoints",
        ],
        apply: Apply::NotNeeded("gateway and worker have logs of their own (docs/operating.md)"),
    },
    Rule {
        names: &["enable_request_id_headers"],
        apply: Apply::NotNeeded("each response of the gateway has the header x-request-id"),
    },
    Rule {
        names: &["disable_fastapi_docs", "enable_offline_docs"],
        apply: Apply::NotNeeded("the gateway describes its interface at /openapi.json"),
    },
    Rule {
        names: &["h11_max_incomplete_event_size", "h11_max_header_count"],
        apply: Apply::NotNeeded(
            "the gateway bounds headers, and bodies by [server] max_body of gateway.toml",
        ),
    },
    Rule {
        names: &["enable_flash_late_interaction"],
        apply: Apply::NotNeeded("it is for models that score texts"),
    },
];
