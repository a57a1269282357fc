//! Variables of an environment that set options of DJLServing.

use super::rules;
use super::settings::{Place, Variable};

/// Variables that stand for an option, by the documentation of DJLServing and the entry points of its
/// containers.
const NAMES: [(&str, &str); 21] = [
    ("CUDA_MEMORY_FRACTION", "option.kv_cache_free_gpu_mem_fraction"),
    ("DJL_ENTRY_POINT", "option.entryPoint"),
    ("HF_MODEL_ID", "option.model_id"),
    ("HF_MODEL_QUANTIZE", "option.quantize"),
    ("HF_MODEL_TRUST_REMOTE_CODE", "option.trust_remote_code"),
    ("HF_REVISION", "option.revision"),
    ("HF_TRUST_REMOTE_CODE", "option.trust_remote_code"),
    ("LMCACHE_CONFIG_FILE", "option.lmcache_config_file"),
    ("MAX_BATCH_PREFILL_TOKENS", "option.max_rolling_batch_prefill_tokens"),
    ("MAX_BATCH_SIZE", "option.max_rolling_batch_size"),
    ("MAX_CONCURRENT_REQUESTS", "job_queue_size"),
    ("MAX_NETTY_BUFFER_SIZE", "option.max_output_size"),
    ("MODEL_LOADING_TIMEOUT", "option.model_loading_timeout"),
    ("OPTION_ENGINE", "engine"),
    ("PIPELINE_PARALLEL_DEGREE", "option.pipeline_parallel_degree"),
    ("PREDICT_TIMEOUT", "option.predict_timeout"),
    ("PYTHON_EXECUTABLE", "option.pythonExecutable"),
    ("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "option.predict_timeout"),
    ("SAGEMAKER_NUM_MODEL_WORKERS", "maxWorkers"),
    ("SAGEMAKER_STARTUP_TIMEOUT", "option.model_loading_timeout"),
    ("TENSOR_PARALLEL_DEGREE", "option.tensor_parallel_degree"),
];

/// Prefixes of variables that DJLServing reads.
const PREFIXES: [&str; 5] = ["OPTION_", "SERVING_", "ARGS_", "DJL_", "LMCACHE_"];

/// Returns the variables of the process that DJLServing reads.
pub(super) fn of_process(environment: impl Iterator<Item = (String, String)>) -> Vec<Variable> {
    // DJLServing ignores an empty variable.
    let own = environment.filter(|(name, value)| is_of_djl(name) && !value.is_empty());
    own.map(|(name, value)| variable(&name, &value, Place::Environment)).collect()
}

fn variable(name: &str, value: &str, place: Place) -> Variable {
    Variable { name: name.to_owned(), key: key_of(name), value: value.to_owned(), place }
}

/// Returns true if DJLServing reads the variable. Other variables of the process are none of its
/// options.
fn is_of_djl(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || NAMES.iter().any(|(known, _)| *known == name)
        || rules::is_variable(name)
}

/// Returns the option that a variable stands for. The name of a variable that is none is returned as it
/// is.
fn key_of(name: &str) -> String {
    if let Some((_, key)) = NAMES.iter().find(|(known, _)| *known == name) {
        return (*key).to_owned();
    }
    if rules::is_variable(name) {
        return name.to_owned();
    }
    let Some((prefix, rest)) = name.split_once('_') else { return name.to_owned() };
    let prefix = match prefix {
        "OPTION" => "option.",
        "SERVING" | "ARGS" => "",
        _ => return name.to_owned(),
    };
    // DJLServing keeps the letters of a name that is not all upper case.
    let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let rest = if rest.chars().all(upper) { rest.to_lowercase() } else { rest.to_owned() };
    let key = format!("{prefix}{rest}");
    rules::spelled_like(&key).map_or(key, str::to_owned)
}

/// Parses a file of variables: `NAME=VALUE` lines as Docker reads them, also with `export`, `-e` and
/// quotes as a shell has them.
///
/// # Errors
///
/// Returns the number of the first line without a name and `=`.
pub(super) fn variables(text: &str) -> Result<Vec<Variable>, usize> {
    let mut variables = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        for word in ["export ", "-e ", "--env "] {
            line = line.strip_prefix(word).map_or(line, str::trim_start);
        }
        let line = line.strip_suffix(" \\").map_or(line, str::trim_end);
        let (name, value) = line.split_once('=').ok_or(number)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(number);
        }
        let quoted = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
        let value = quoted('\'').or_else(|| quoted('"')).unwrap_or(value);
        let place = Place::Variables(number);
        variables.push(variable(name, value, place));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::super::settings::Place;
    use super::{key_of, of_process, variables};

    #[test]
    fn a_variable_stands_for_an_option() {
        let check = |name: &str, key: &str| assert_eq!(key_of(name), key, "{name}");
        check("OPTION_DTYPE", "option.dtype");
        check("OPTION_ENTRYPOINT", "option.entryPoint");
        check("OPTION_ENTRY_POINT", "option.entryPoint");
        check("OPTION_pythonExecutable", "option.pythonExecutable");
        check("OPTION_MODEL_LOADING_TIMEOUT", "option.model_loading_timeout");
        check("OPTION_NOT_KNOWN", "option.not_known");
        check("OPTION_ENGINE", "engine");
        check("SERVING_JOB_QUEUE_SIZE", "job_queue_size");
        check("SERVING_MIN_WORKERS", "minWorkers");
        check("SERVING_RETRY_THRESHOLD", "retry_threshold");
        check("SERVING_OPTS", "SERVING_OPTS");
        check("ARGS_WIDTH", "width");
        check("HF_MODEL_ID", "option.model_id");
        check("MAX_CONCURRENT_REQUESTS", "job_queue_size");
        check("option.model_id", "option.model_id");
        check("PATH", "PATH");
    }

    #[test]
    fn a_file_of_variables_is_read_as_docker_and_a_shell_write_it() {
        let text = "# a\n\nexport OPTION_DTYPE=fp16\n-e HF_MODEL_ID=gpt2 \\\nOPTION_A='{\"b\": 1}'\n\
                    OPTION_B=\"c\"\nOPTION_C=C:\\\nOPTION_D=\n";
        let read = variables(text).unwrap();
        let read: Vec<_> = read.iter().map(|v| (&*v.name, &*v.value, v.place)).collect();
        let expected = [
            ("OPTION_DTYPE", "fp16", 3),
            ("HF_MODEL_ID", "gpt2", 4),
            ("OPTION_A", "{\"b\": 1}", 5),
            ("OPTION_B", "c", 6),
            ("OPTION_C", "C:\\", 7),
            ("OPTION_D", "", 8),
        ];
        assert_eq!(read, expected.map(|(name, value, line)| (name, value, Place::Variables(line))));
        for (text, line) in [("A=1\nB", 2), ("=1", 1), ("A=1\n\nB C=1", 3)] {
            assert_eq!(variables(text).map(|read| read.len()), Err(line), "{text}");
        }
    }

    #[test]
    fn variables_of_the_process_that_are_none_of_djlserving_are_left_alone() {
        let names = ["PATH", "HOME", "OPTION_A", "SERVING_B", "HF_TOKEN", "NSBRIDGE_BROKER__URL"];
        let all = names.iter().map(|name| ((*name).to_owned(), "x".to_owned()));
        let empty = [("OPTION_EMPTY".to_owned(), String::new())];
        let own: Vec<_> = of_process(all.chain(empty)).into_iter().map(|v| v.name).collect();
        assert_eq!(own, ["OPTION_A", "SERVING_B", "HF_TOKEN"]);
    }
}
