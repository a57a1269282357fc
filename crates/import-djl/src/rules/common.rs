//! Options of the model server, for any handler.

use nsbridge_import::{Fate, Source, Written};
use toml::Value;

use super::super::context::Import;
use super::super::settings::Setting;
use super::{Apply, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule { names: &["engine"], apply: Apply::By(engine) },
    Rule {
        names: &["job_queue_size"],
        apply: Apply::NotCarried(
            "DJLServing refuses requests beyond it; here they wait in the broker's queue until their callers' \
             deadlines. nsbridge's job_queue_size counts requests that wait inside one worker, and is left at 0",
        ),
    },
    Rule {
        names: &["max_idle_time"],
        apply: Apply::NotCarried(
            "a worker does not shrink while it is idle: scale the number of workers",
        ),
    },
    Rule {
        names: &["log_request_metric", "metrics_aggregation", "prometheus"],
        apply: Apply::NotNeeded("a worker measures each request: [health] listen has its /metrics"),
    },
    Rule {
        names: &[
            "required_memory_mb",
            "gpu.required_memory_mb",
            "reserved_memory_mb",
            "gpu.reserved_memory_mb",
        ],
        apply: Apply::NotCarried(
            "memory is not reserved: set the container's limit (`nsbridge model inspect` prints what a model needs)",
        ),
    },
    Rule {
        names: &["translator", "translatorFactory", "blockFactory", "application"],
        apply: Apply::NotCarried("a worker of nsbridge runs no Java: input and pieces are JSON"),
    },
    Rule {
        names: &["fail_fast", "health_check_override", "wait_model_loading"],
        apply: Apply::NotNeeded(
            "a worker that cannot go on leaves, and takes requests only when its model is loaded",
        ),
    },
    Rule { names: &["download_dir"], apply: Apply::By(download_folder) },
    Rule {
        names: &["features"],
        apply: Apply::NotNeeded("it selects the engine of a container of DJLServing"),
    },
    Rule {
        names: &[
            "allow_multi_status",
            "bad_request_http_code",
            "certificate_file",
            "chunked_read_timeout",
            "cluster_address",
            "cors_allowed_headers",
            "cors_allowed_methods",
            "cors_allowed_origin",
            "error_rate_any",
            "error_rate_model",
            "error_rate_server",
            "error_rate_wlm",
            "inference_address",
            "io_ratio",
            "keystore",
            "keystore_pass",
            "keystore_type",
            "management_address",
            "max_request_size",
            "number_of_netty_threads",
            "private_key_file",
            "request_id_header_key",
            "server_error_http_code",
            "throttle_error_http_code",
            "timeout_http_code",
            "use_native_io",
            "wlm_error_http_code",
        ],
        apply: Apply::NotCarried(
            "a worker serves no HTTP: `nsbridge gateway` does, with a configuration of its own (docs/gateway.md)",
        ),
    },
    Rule {
        names: &["load_models", "model_store", "model_url_pattern", "plugin_folder"],
        apply: Apply::NotCarried("a worker serves one model: import each model's folder"),
    },
    Rule {
        names: &[
            "cache_batch",
            "cache_multitenant",
            "ddb_cache",
            "ddb_table_name",
            "memory_cache_capacity",
            "s3_cache",
            "s3_cache_autocreate",
            "s3_cache_bucket",
            "s3_cache_key_prefix",
        ],
        apply: Apply::NotCarried(
            "a worker keeps no replies: the gateway's [store] does, for background responses (docs/gateway.md)",
        ),
    },
    Rule {
        names: &["option.enable_stateful_sessions"],
        apply: Apply::Unless(&["false"], "a worker has no sessions", NO_SESSIONS),
    },
    Rule {
        names: &["option.sessions_path", "option.sessions_expiration"],
        apply: Apply::NotCarried(NO_SESSIONS),
    },
    Rule {
        names: &["option.output_formatter", "option.input_formatter"],
        apply: Apply::Unless(
            &["json", "jsonlines", "sse"],
            "a reply is a stream of pieces of JSON; the gateway writes OpenAI's JSON and events",
            "a worker calls no formatter: format what the client receives",
        ),
    },
    Rule {
        names: &["option.tgi_compat", "option.bedrock_compat"],
        apply: Apply::Unless(
            &["false"],
            "it is off",
            "the gateway speaks OpenAI's and Anthropic's API alone (docs/gateway.md)",
        ),
    },
];

const NO_SESSIONS: &str = "a worker has no sessions: a caller of the gateway continues with previous_response_id, \
                           and the prefix cache keeps what the conversation has in common";

fn engine(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match (&import.kind, setting.value()) {
        (super::Kind::Nothing(why), _) => Fate::NotCarried(why.clone()),
        (super::Kind::Python(_), "MPI") => Fate::NotCarried(MPI.to_owned()),
        _ => Fate::NotNeeded("the handler follows from the model".to_owned()),
    }
}

/// Reason why processes of MPI are not carried over.
pub(super) const MPI: &str = "a model in Python runs in processes that know nothing of each other, and not under \
                              mpirun: start the ranks in `load`";

fn download_folder(import: &mut Import<'_>, setting: &Setting) -> Fate {
    match import.folder.model(import.settings) {
        Some(Source::Bucket(_)) => {
            let folder = Value::String(setting.value().to_owned());
            import.write("store", "cache", Written::Plain(folder), setting)
        }
        _ => Fate::NotNeeded("nothing is downloaded".to_owned()),
    }
}
