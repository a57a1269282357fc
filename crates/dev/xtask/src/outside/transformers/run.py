"""transformers' own `generate`, beside `examples/python/transformers` through the queue.

Each request is answered twice: by `generate` in this process, and by a worker. The tokens and the
texts must be equal, also when the worker is killed in the middle of its reply.
"""

import json
import os
import subprocess
import sys
import time

import report
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BINARY, FOLDER = os.environ["OUTSIDE_BINARY"], os.environ["OUTSIDE_MODEL_FOLDER"]
EXAMPLE = os.path.join(os.environ["OUTSIDE_ROOT"], "examples/python/transformers/model.py")
QUEUE = f"transformers-{os.getpid()}"
SEED = 1234567
# Number of pieces after which a worker is killed.
BEFORE_THE_KILL = 12
# Log line at the end of a request.
ENDED = "a request ended"

GREEDY = {"prompt": "Once a bear", "max_tokens": 64, "temperature": 0}
SAMPLED = {"prompt": "昔々、", "max_tokens": 64, "temperature": 1.0}
CUT = {"prompt": "The fox saw", "max_tokens": 64, "temperature": 0.7, "top_p": 0.9, "top_k": 40}
CHAT = {"messages": [{"role": "user", "content": "Tell me of a bear"}], "max_tokens": 64, "temperature": 0}
LONG = {"prompt": "Once a bear went to the sea", "max_tokens": 160, "temperature": 1.3}

# The example, with a note of the number of tokens after which it generates. Of a new reply it makes a
# part, and then waits for its end.
NOTING = f"""
import sys
import time
sys.path.append({os.path.dirname(EXAMPLE)!r})
import model

class Noting(model.Model):
    def generate(self, tokens, input, reply, most):
        with open("known", "a") as known:
            known.write("%d " % len(reply.tokens))
        if not reply.tokens:
            put = reply.put
            def put_and_wait(tokens):
                put(tokens)
                if len(reply.tokens) == {2 * BEFORE_THE_KILL}:
                    time.sleep(600)
            reply.put = put_and_wait
        super().generate(tokens, input, reply, most)
"""


class Worker:
    """Worker of the example. Its log is in the suite's folder."""

    def __init__(self, name):
        self.name = name
        self.log = open(f"{name}.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [BINARY, "worker", "--config", "worker.toml"], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log,
        )

    def __enter__(self):
        end = time.monotonic() + 300
        while "taking requests" not in self.said():
            assert self.process.poll() is None, f"{self.name} ended: {self.said()[-1000:]}"
            assert time.monotonic() < end, f"{self.name} did not start"
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        # A worker that is killed may leave its last request to the next one.
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def said(self):
        with open(self.log.name, encoding="utf-8") as log:
            return log.read()


def asked(request):
    """Sends a request; returns its process, whose lines are the pieces."""
    command = [BINARY, "ask", "--broker", os.environ["OUTSIDE_BROKER"], "--keyring", "keys.json", "--model",
               QUEUE, "--seed", str(SEED), "--input", json.dumps(request)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def ended(process, lines):
    assert process.wait() == 0, "the request failed"
    pieces = [json.loads(line) for line in lines]
    return [piece["token"] for piece in pieces], "".join(piece["text"] for piece in pieces)


def through_the_queue(request):
    process = asked(request)
    return ended(process, list(process.stdout))


def by_generate(request):
    """Returns the tokens and the text of transformers' own `generate`."""
    if "messages" in request:
        text = TOKENIZER.apply_chat_template(request["messages"], add_generation_prompt=True, tokenize=False)
        prompt = TOKENIZER(text, add_special_tokens=False, return_tensors="pt")
    else:
        prompt = TOKENIZER(request["prompt"], return_tensors="pt")
    options = {"do_sample": False}
    if request["temperature"]:
        options = {"do_sample": True, "temperature": request["temperature"], "top_k": request.get("top_k", 0),
                   "top_p": request.get("top_p", 1.0)}
    torch.manual_seed(SEED)
    whole = MODEL.generate(**prompt, max_new_tokens=request["max_tokens"], pad_token_id=1, **options)
    tokens = whole[0, prompt.input_ids.shape[1] :].tolist()
    tokens = [token for token in tokens if token not in MODEL.generation_config.eos_token_id]
    return tokens, TOKENIZER.decode(tokens, skip_special_tokens=True)


def equals_generate(request):
    expected, found = by_generate(request), through_the_queue(request)
    assert len(expected[0]) > BEFORE_THE_KILL, "the reply is too short to show anything"
    assert found == expected, f"{found} instead of {expected}"


def greedy():
    equals_generate(GREEDY)


def sampled():
    equals_generate(SAMPLED)


def sampled_with_limits():
    equals_generate(CUT)


def messages():
    equals_generate(CHAT)


def bad_input():
    for wrong in [{**GREEDY, "max_tokens": "many"}, {**GREEDY, **CHAT}, {"max_tokens": 64}]:
        command = asked(wrong)
        command.communicate()
        assert command.returncode != 0, "an input that does not fit was answered"


def killed_in_mid_reply(request):
    """Kills the worker of a reply, and compares what the next worker makes of it."""
    if os.path.exists("known"):
        os.remove("known")
    expected = by_generate(request)
    assert len(expected[0]) > 2 * BEFORE_THE_KILL, "the reply is too short to kill its worker"
    with Worker("first") as first:
        process = asked(request)
        lines = [process.stdout.readline() for _ in range(BEFORE_THE_KILL)]
        first.process.kill()
        first.process.wait()
        if ENDED in first.said():
            process.kill()
            raise AssertionError("the reply was complete before the kill")
    with Worker("second"):
        lines += list(process.stdout)
        found = ended(process, lines)
        assert found == expected, f"{found} instead of {expected}"
    with open("known", encoding="utf-8") as file:
        begun, resumed = map(int, file.read().split())
    assert begun == 0 and resumed >= BEFORE_THE_KILL, f"it went on after {resumed} tokens"


def killed_greedy():
    killed_in_mid_reply({**GREEDY, "prompt": LONG["prompt"], "max_tokens": 100})


def killed_sampled():
    killed_in_mid_reply(LONG)


def configure(entry_point):
    with open("worker.toml", "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(
            f'[worker]\nmodel = "{QUEUE}"\n[broker]\nurl = "{os.environ["OUTSIDE_BROKER"]}"\n[keys]\n'
            f'keyring = "keys.json"\n[models]\ntarget = "{FOLDER}"\n[handler]\n'
            f'entry_point = "{entry_point}"\npython = "{sys.executable}"\n'
        )


def main():
    report.version("torch", "transformers")
    if os.path.exists("keys.json"):
        os.remove("keys.json")
    subprocess.run([BINARY, "keys", "generate", "--out", "keys.json"], check=True)
    configure(EXAMPLE)
    with Worker("worker"):
        for body in [greedy, sampled, sampled_with_limits, messages, bad_input]:
            report.test(body)
    with open("noting.py", "w", encoding="utf-8") as file:
        file.write(NOTING)
    configure("noting.py")
    for body in [killed_greedy, killed_sampled]:
        report.test(body)


TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)
MODEL = AutoModelForCausalLM.from_pretrained(FOLDER, torch_dtype=torch.float32)
main()
