//! Measures of a server, from its page of metrics.

use nsbridge_handler::Measure;
use nsbridge_handler::MeasureKind::{self, Counter, Gauge};

use crate::options::Flavor;

/// Measure with the name that the server gives it.
type Row = (&'static str, &'static str, &'static str, MeasureKind);

const RUNNING: &str = "Requests that the engine runs";
const WAITING: &str = "Requests that wait for the engine";
const KV_USAGE: &str = "Used part of the engine's KV cache, from 0 to 1";
const QUERIES: &str = "Prompt tokens looked up in the engine's prefix cache";
const HITS: &str = "Prompt tokens found in the engine's prefix cache";
const PROMPT: &str = "Prompt tokens that the engine has taken";
const GENERATED: &str = "Tokens that the engine has generated";

const VLLM: [Row; 7] = [
    ("vllm:num_requests_running", "engine_requests_running", RUNNING, Gauge),
    ("vllm:num_requests_waiting", "engine_requests_waiting", WAITING, Gauge),
    ("vllm:kv_cache_usage_perc", "engine_kv_cache_usage_ratio", KV_USAGE, Gauge),
    ("vllm:prefix_cache_queries_total", "engine_prefix_cache_queries", QUERIES, Counter),
    ("vllm:prefix_cache_hits_total", "engine_prefix_cache_hits", HITS, Counter),
    ("vllm:prompt_tokens_total", "engine_prompt_tokens", PROMPT, Counter),
    ("vllm:generation_tokens_total", "engine_generation_tokens", GENERATED, Counter),
];

const SGLANG: [Row; 5] = [
    ("sglang:num_running_reqs", "engine_requests_running", RUNNING, Gauge),
    ("sglang:num_queue_reqs", "engine_requests_waiting", WAITING, Gauge),
    ("sglang:token_usage", "engine_kv_cache_usage_ratio", KV_USAGE, Gauge),
    ("sglang:prompt_tokens_total", "engine_prompt_tokens", PROMPT, Counter),
    ("sglang:generation_tokens_total", "engine_generation_tokens", GENERATED, Counter),
];

const LLAMA: [Row; 4] = [
    ("llamacpp:requests_processing", "engine_requests_running", RUNNING, Gauge),
    ("llamacpp:requests_deferred", "engine_requests_waiting", WAITING, Gauge),
    ("llamacpp:prompt_tokens_total", "engine_prompt_tokens", PROMPT, Counter),
    ("llamacpp:tokens_predicted_total", "engine_generation_tokens", GENERATED, Counter),
];

fn rows(flavor: Flavor) -> &'static [Row] {
    match flavor {
        Flavor::Vllm => &VLLM,
        Flavor::Sglang => &SGLANG,
        Flavor::LlamaServer => &LLAMA,
        Flavor::Generic => &[],
    }
}

/// Returns the measures on a page of Prometheus' text format. One that is not there is 0.
pub(crate) fn measures(flavor: Flavor, page: &str) -> Vec<Measure> {
    let measure = |&(theirs, ours, help, kind): &Row| {
        let values = page.lines().filter_map(|line| value(line, theirs));
        // A server with several engines has a line for each.
        let value = match theirs.contains("usage") {
            true => values.fold(0.0, f64::max),
            false => values.sum(),
        };
        match kind {
            Counter => Measure::counter(ours, help, value),
            Gauge => Measure::gauge(ours, help, value),
        }
    };
    rows(flavor).iter().map(measure).collect()
}

/// Returns the value of a line if it has this name.
fn value(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let rest = match rest.strip_prefix('{') {
        // A label's value may have a brace, but a number has none.
        Some(labels) => labels.rsplit_once('}')?.1,
        None => rest.strip_prefix(' ')?,
    };
    rest.split_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::measures;
    use crate::options::Flavor;

    #[test]
    fn the_lines_of_all_engines_are_added_and_the_fullest_cache_counts() {
        let page = "# HELP vllm:num_requests_running x\n\
                    vllm:num_requests_running{engine=\"0\",model_name=\"a}b\"} 2.0\n\
                    vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 3.0\n\
                    vllm:num_requests_running_now 7.0\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
                    vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n\
                    vllm:prompt_tokens_total{engine=\"0\"} 1e3 1700000000\n\
                    vllm:prefix_cache_hits_total NaN\n";
        let values: Vec<(&str, f64)> =
            measures(Flavor::Vllm, page).iter().map(|each| (each.name, each.value)).collect();
        assert_eq!(
            values,
            [
                ("engine_requests_running", 5.0),
                ("engine_requests_waiting", 0.0),
                ("engine_kv_cache_usage_ratio", 0.5),
                ("engine_prefix_cache_queries", 0.0),
                ("engine_prefix_cache_hits", 0.0),
                ("engine_prompt_tokens", 1000.0),
                ("engine_generation_tokens", 0.0),
            ]
        );
        let page = "llamacpp:requests_processing 4\nllamacpp:tokens_predicted_total 9\n";
        let values: Vec<f64> =
            measures(Flavor::LlamaServer, page).iter().map(|each| each.value).collect();
        assert_eq!(values, [4.0, 0.0, 0.0, 9.0]);
        assert_eq!(measures(Flavor::Generic, page), []);
    }
}
