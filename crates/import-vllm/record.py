"""Writes src/tests/parsed.json: what vLLM's own parser makes of command lines and of files of arguments.

    python record.py > src/tests/parsed.json

The interpreter is one that has vLLM installed. A test holds this crate against it.
"""

import argparse
import json
import shlex
import tempfile
from typing import Any, NoReturn

from generate import kind
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

COMMANDS = """
m
--model m
m --tensor-parallel-size 2
m --tensor_parallel_size=2 --pipeline-parallel-size 3
m -tp 2 -pp=3 -dp 2
m --tensor-par 2
m --max-num-seq 8
m --max-num 8
m --max-model-len 8k
m --max-model-len 8K
m --max-model-len auto
m --max-model-len -1
m --max-model-len 1.5k
m --max-model-len 1.5K
m --max-num-batched-tokens 25.6k --kv-cache-memory-bytes 2G
m --seed -1
m --seed=-1
m --seed 1.5
m --seed one
m --gpu-memory-utilization 0.9
m --device-memory-utilization .5
m --gpu-memory-utilization high
m --cpu-offload-gb 4
m --enforce-eager
m --no-enforce-eager
m --enforce-eager --no-enforce-eager
m --enforce-eager=true
m --enforce-eager true
m --enable-prefix-caching --enable_lora --no-enable-chunked-prefill
m -dpm
m --headless
m --no-headless
m --dtype bfloat16
m --dtype fp7
m --max-lora-rank 64
m --max-lora-rank 7
m --moe-backend DEEP-GEMM
m -q awq
m -q=awq
m --quantization None
m --quantization ''
m --quantization
m --served-model-name a
m --served-model-name a b --enforce-eager
m --served-model-name=a
m --served-model-name
--served-model-name a b -- m
m --lora-target-modules q_proj k_proj
m --cudagraph-capture-sizes 1 2 4
m --cudagraph-capture-sizes 1 two
m --hf-overrides '{"a": {"b": [1, 2]}}'
m --hf-overrides some.function
m --hf-overrides.a.b 1 --hf-overrides.a.c x
m --hf_overrides.a_b.c_d true
m --hf-overrides '{"a": 1}' --hf-overrides.b 2
m --hf-overrides.b 2 --hf-overrides '{"a": 1}'
m --hf-overrides.a+ x --hf-overrides.a+=y,z
m --hf-overrides.a 8k --hf-overrides.b 8K --hf-overrides.c 1.5k --hf-overrides.d '"8k"'
m --override-generation-config '{"temperature": 0.5, "stop": null}'
m --override-generation-config '{'
m --limit-mm-per-prompt.image 0
m -cc.mode 3
m -cc '{"mode": 3}'
m --compilation-config.pass_config.fuse_norm_quant true
m --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'
m --speculative-config.method ngram --speculative-config.num_speculative_tokens=3
m -sc.method ngram
m -O3
m -O 3
m -O=3
m -O
m -O1 -O2
m --optimization-level 2
m --port 8000 --host 0.0.0.0 --api-key k l --tensor-parallel-size 2
m --lora-modules a=/x b=/y --max-loras 2
m --middleware a.b --middleware c.d
m --allowed-origins '["*"]' --max-num-seqs 4
m --chat-template 'a b.jinja' --max-num-seqs 4
m --tool-call-parser hermes --enable-auto-tool-choice --no-enable-auto-tool-choice
m n
m --no-such-flag
m --no-such-flag 1 --enforce-eager
m --max-num-seqs 4 --max-num-seqs 8
m --device-ids 2,3
m --additional-config plain --pt-load-map-location '{"cuda:1": "cuda:0"}'
m --ignore-patterns 'a*' 'b c*'
"""

FILES = [
    "tensor-parallel-size: 2\nport: 12323\n",
    "model: m\nmax_num_seqs: 4\nseed: -1\n",
    "enforce-eager: true\nenable-prefix-caching: false\nheadless: false\n",
    "enforce-eager: yes\nenable-prefix-caching: off\nasync-scheduling: No\n",
    "served-model-name: [a, 'b c']\nmiddleware: []\nlora-target-modules:\n- x\n- \"y\"\n",
    "speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n",
    "hf-overrides: {a: [1, 2.5, x, null], \"b\": {}}\ngpu-memory-utilization: 0.9\n",
    "hf-overrides: '{\"a\": 1}'\nquantization: null\ntokenizer: ~\n",
    "max-model-len: 8k\ndtype: \"bfloat16\"  # half\n\n# end\n",
    "compilation-config:\n  pass_config:\n    fuse_norm_quant: true\n  cudagraph_capture_sizes:\n  - 1\n  - 2\n",
    "additional-config: |-\n  two\n  lines\n",
    "additional-config: >-\n  folded\n  text\n\n  end\n",
]


class Refused(Exception):
    """Refusal by vLLM's parser."""


class Parser(FlexibleArgumentParser):
    """vLLM's parser, which raises what it would end the process with."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def parser() -> tuple[Parser, set[str]]:
    """Returns vLLM's parser, with objects as they are written and without defaults, and the engine's fields."""
    engine = {action.dest for action in AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())._actions}
    made = make_arg_parser(Parser(prog="vllm serve", add_help=False))
    for action in made._actions:
        if action.dest != "middleware":
            action.default = argparse.SUPPRESS
        if action.option_strings and kind(action)[0] == "json":
            action.type = lambda text: None if text in ("", "None") else json.loads(text)
        if action.dest == "device_ids":
            action.type = str
    return made, engine


def parsed(words: list[str]) -> dict[str, Any]:
    """Returns the engine's fields that are set, and the names of the server's."""
    made, engine = parser()
    try:
        read = vars(made.parse_args(words))
    except (Refused, ValueError, IndexError, argparse.ArgumentError):
        return {"words": words, "refused": True}
    if "model_tag" in read:
        read["model"] = read.pop("model_tag")
    if not read["middleware"]:
        del read["middleware"]
    fields = {name: value for name, value in sorted(read.items()) if name in engine}
    return {"words": words, "engine": fields, "server": sorted(set(read) - engine)}


def file(text: str) -> dict[str, Any]:
    """Returns the words that vLLM makes of a file of arguments."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as out:
        out.write(text)
        out.flush()
        return {"text": text, "words": parser()[0].load_config_file(out.name)}


def main() -> None:
    """Prints one case a line."""
    commands = [parsed(shlex.split(line)) for line in COMMANDS.strip().splitlines()]
    files = [file(text) for text in FILES]
    print('{"commands": [')
    print(",\n".join(f" {json.dumps(case)}" for case in commands))
    print('],\n"files": [')
    print(",\n".join(f" {json.dumps(case)}" for case in files))
    print("]}")


if __name__ == "__main__":
    main()
