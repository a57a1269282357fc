"""Load of aiperf over each streaming endpoint: every request must end well, with as many tokens as were asked for."""

import json
import os
import subprocess
import sys

import report

FOLDER = os.environ["OUTSIDE_MODEL_FOLDER"]
ENDPOINTS = ["chat", "completions", "responses", "messages"]
REQUESTS = 64
CONCURRENCY = 8
TOKENS = 48


def load(endpoint):
    """Runs aiperf against an endpoint and returns its figures."""
    results = os.path.abspath(os.path.join("results", endpoint))
    subprocess.run(["rm", "-rf", results], check=True)
    options = {
        "--model": report.MODEL, "--tokenizer": FOLDER, "--url": report.URL, "--api-key": report.KEY,
        "--endpoint-type": endpoint, "--concurrency": CONCURRENCY, "--request-count": REQUESTS,
        "--warmup-request-count": CONCURRENCY, "--synthetic-input-tokens-mean": 64,
        "--synthetic-input-tokens-stddev": 16, "--output-tokens-mean": TOKENS, "--random-seed": 7,
        "--artifact-dir": results, "--ui": "none",
    }
    command = [os.path.join(os.path.dirname(sys.executable), "aiperf"), "profile", "--streaming",
               "--no-gpu-telemetry", "--no-server-metrics",
               # Replies of the full length. aiperf counts an empty one as an error.
               "--extra-inputs", "ignore_eos:true"]
    for name, value in options.items():
        command += [name, str(value)]
    # With HF_HUB_OFFLINE, aiperf takes every tokenizer for the name of a repository.
    environment = {"HF_HOME": os.path.abspath("hub")}
    with open(f"{endpoint}.log", "w", encoding="utf-8") as log:
        done = subprocess.run(command, env={**os.environ, **environment}, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise RuntimeError(f"aiperf ended with code {done.returncode}; see {log.name}")
    with open(os.path.join(results, "profile_export_aiperf.json"), encoding="utf-8") as file:
        return json.load(file)


def check(endpoint):
    told = load(endpoint)
    answered = told["request_count"]["avg"]
    failed = told.get("error_request_count", {"avg": 0})["avg"]
    assert (answered, failed) == (REQUESTS, 0), f"{answered} requests were answered and {failed} failed"
    for name, field, value in [
        ("first token, median", "time_to_first_token", "p50"),
        ("first token, p99", "time_to_first_token", "p99"),
        ("next token, median", "inter_token_latency", "p50"),
    ]:
        report.figure(f"{endpoint}: {name}", round(told[field][value], 2), told[field]["unit"])
    rate = told["output_token_throughput"]
    report.figure(f"{endpoint}: tokens of all replies", round(rate["avg"], 1), rate["unit"])


report.version("aiperf")
for endpoint in ENDPOINTS:
    name = f"load_{endpoint}"
    try:
        check(endpoint)
        report.outcome(name, "passed")
    except Exception as error:
        report.outcome(name, "failed", f"{type(error).__name__}: {error}")
