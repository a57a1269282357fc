//! Commands in files of shells, of containers, and of vLLM.

use super::{command, config};
use crate::arguments::Arguments;

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(command(text, false).unwrap().arguments, expected, "{text}");
}

#[test]
fn a_command_is_a_line_a_script_or_a_list() {
    check("vllm serve m --port 1\n", &["m", "--port", "1"]);
    check("m --port 1", &["m", "--port", "1"]);
    check(
        "#!/bin/sh\nset -e\nexport A=1\n# serve\nvllm serve m \\\n  --port 1 >> log 2>&1 &\nwait\n",
        &["m", "--port", "1"],
    );
    check("- vllm\n- serve\n- m\n- --port=1\n", &["m", "--port=1"]);
    check("[\"--model\", m, '--x={\"a\": 1}']", &["--model", "m", "--x={\"a\": 1}"]);
}

#[test]
fn a_command_is_in_the_file_of_a_container() {
    let pod = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: log\n    image: fluentd\n    args: [a]\n  \
               - name: m\n    image: vllm/vllm-openai:latest\n    args:\n    - --model\n    - m\n    - \"--port\"\n    - 1\n";
    assert_eq!(command(pod, true).unwrap().arguments, ["--model", "m", "--port", "1"]);
    let two = "kind: Service\nspec:\n  ports: [1]\n---\nspec:\n  template:\n    spec:\n      containers:\n      \
               - command: [/bin/sh, -c]\n        args:\n          - |\n            pip list\n            exec \
               vllm serve m --port 1\n";
    assert_eq!(command(two, true).unwrap().arguments, ["m", "--port", "1"]);
    let compose = "services:\n  vllm:\n    image: x/vllm\n    ports: [\"1:1\"]\n    command: >\n      --model m\n      \
                   --x '{\"a\": 1}'\n";
    assert_eq!(command(compose, true).unwrap().arguments, ["--model", "m", "--x", "{\"a\": 1}"]);
    check("command:\n  - vllm\n  - serve\nargs:\n  - m\n", &["m"]);
}

#[test]
fn a_file_without_one_command_is_refused() {
    for (text, part) in [
        ("", "it is empty"),
        ("a b\nc d\n", "several commands"),
        ("vllm serve a\nvllm serve b\n", "2 commands of vLLM's server"),
        ("- {image: vllm, args: [a]}\n- {image: vllm, args: [b]}\n", "2 commands of vLLM's server"),
        ("- image: fluentd\n  args: [a]\n", "no command of vLLM's server"),
        ("args:\n- a: b\n", "an argument in it is no text"),
        ("vllm serve 'a", "a quotation with ' does not end"),
        ("- *a\n", "line 1 has an anchor"),
    ] {
        let said = command(text, false).unwrap_err();
        assert!(said.contains(part), "{text}: {said}");
    }
}

#[test]
fn a_file_of_vllm_is_its_flags() {
    let arguments = Arguments::read().unwrap();
    let text = "model: m\nport: 12323\ntensor_parallel_size: 2\nenforce-eager: true\nenable-prefix-caching: false\n\
                grpc: false\nserved-model-name: [a, b]\nmiddleware: []\nseed: -1\nquantization:\n\
                compilation-config:\n  pass_config:\n    fuse: true\n  mode: 3\nspeculative-config: {model: d, n: 3}\n";
    let expected = [
        "--model",
        "m",
        "--port",
        "12323",
        "--tensor_parallel_size",
        "2",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--served-model-name",
        "a",
        "b",
        "--seed",
        "-1",
        "--quantization",
        "None",
        "--compilation-config",
        "{\"mode\":3,\"pass_config\":{\"fuse\":true}}",
        "--speculative-config",
        "{\"model\":\"d\",\"n\":3}",
    ];
    let mut read = config(&arguments, text).unwrap();
    // The order of the fields of an object has no meaning.
    for word in read.iter_mut().filter(|word| word.starts_with('{')) {
        *word = serde_json::from_str::<std::collections::BTreeMap<String, serde_json::Value>>(word)
            .map(|fields| serde_json::to_string(&fields).unwrap())
            .unwrap();
    }
    assert_eq!(read, expected);
    assert!(config(&arguments, "- a\n").unwrap_err().contains("no mapping"));
}
