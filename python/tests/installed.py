"""Check of an installed package: `python installed.py URL KEYRING MODEL`.

A worker on the broker serves MODEL, a text model, with KEYRING, the workers' keyring. The check asks
it with both clients and both commands, and then serves a model in Python with the installed command
`nsbridge`. It needs the package alone, prints a line for each part, and ends with the first that fails.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nsbridge
import nsbridge_handler
from nsbridge_handler import testing

PROMPT = "Once a bear"
WAIT_S = 60
SOURCE = """
from collections.abc import Iterator

from nsbridge_handler import BadInput, Job


class Greeter:
    def handle(self, input: list[str], job: Job) -> Iterator[str]:
        if not input:
            raise BadInput("there is no name")
        job.at_most(len(input))
        for name in input[len(job.resumed()) :]:
            yield f"hello {name}, seed {job.seed}"
        job.finish("stop", output_tokens=len(input))
"""
INPUT = ["bear", "fox"]
PIECES = ["hello bear, seed 7", "hello fox, seed 7"]


def ensure(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"failed: {what}")


def equal(found: Any, expected: Any) -> None:
    ensure(found == expected, f"{found!r} is not {expected!r}")


def ok(part: str) -> None:
    print(f"ok {part}", flush=True)


def command(name: str) -> Path:
    """Returns a command that pip has installed beside this interpreter."""
    path = Path(sys.executable).parent / name
    ensure(os.access(path, os.X_OK), f"{path} is no command: install the wheel with the command")
    return path


def run(*arguments: str | Path, **environment: str) -> str:
    done = subprocess.run(
        arguments, env={**os.environ, **environment}, capture_output=True, text=True, timeout=WAIT_S
    )
    ensure(done.returncode == 0, f"{arguments[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def ask(url: str, keys: str, model: str) -> str:
    """Asks with the client of threads, and returns the text."""
    with nsbridge.Client(url, keys) as client:
        reply = client.text(model, PROMPT, max_tokens=20, seed=7)
        text = "".join(str(token) for token in reply)
        ensure(bool(text), "the reply is empty")
        ensure(reply.usage is not None and reply.usage.output_tokens > 0, "no tokens are counted")
    ok("client")
    return text


async def ask_async(url: str, keys: str, model: str, expected: str) -> None:
    async with nsbridge.AsyncClient(url, keys) as client:
        texts = [client.text(model, PROMPT, max_tokens=20, seed=7).read() for _ in range(3)]
        for text in await asyncio.gather(*texts):
            equal(text, expected)
    ok("client of asyncio")


def ask_by_commands(url: str, keys: str, model: str, expected: str) -> None:
    options = ["--model", model, "--keyring", keys, "--seed", "7", "--max-tokens", "20", PROMPT]
    given = {"NSBRIDGE_BROKER__URL": url}
    for start in ([sys.executable, "-m", "nsbridge"], [command("nsbridge-ask")]):
        equal(run(*start, *options, **given).rstrip("\n"), expected)
    ok("command nsbridge-ask")
    version = run(command("nsbridge"), "-V").split()
    equal(version, ["nsbridge", nsbridge.__version__])
    ok("command nsbridge")


def test_model() -> None:
    """Tests the model in this process, as its author does."""
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    equal(testing.answer(names["Greeter"](), INPUT, seed=7).pieces, PIECES)
    try:
        testing.answer(names["Greeter"](), [])
    except nsbridge_handler.BadInput as error:
        equal(str(error), "there is no name")
    else:
        raise SystemExit("failed: no BadInput")
    ok("handler kit")


def serve(url: str, keys: str, folder: Path) -> None:
    """Serves the model with a worker, and asks it."""
    name, source, log = f"installed-{secrets.token_hex(4)}", folder / "model.py", folder / "log"
    source.write_text(SOURCE)
    python = {"NSBRIDGE_HANDLER__PYTHON": sys.executable, "NSBRIDGE_BROKER__URL": url}
    start: list[str | Path] = [command("nsbridge"), "worker", "--python", source, "--model", name, "--keyring", keys]
    with log.open("w") as output:
        worker = subprocess.Popen(start, env={**os.environ, **python}, stdout=output, stderr=output)
    try:
        wait(worker, log)
        ask_greeter(url, keys, name)
    finally:
        worker.terminate()
        worker.wait(WAIT_S)
    ok("model.py")


def wait(worker: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the worker takes requests."""
    until = time.monotonic() + WAIT_S
    while "taking requests" not in log.read_text():
        running = worker.poll() is None and time.monotonic() < until
        ensure(running, f"the worker takes no requests: {log.read_text()}")
        time.sleep(0.05)


def ask_greeter(url: str, keys: str, name: str) -> None:
    with nsbridge.Client(url, keys) as client:
        result = client.submit(name, INPUT, seed=7).collect()
        equal(list(result.pieces), PIECES)
        equal(result.summary.usage.output_tokens, 2)
        for wrong, why in (([], "there is no name"), ([1], "`input[0]` must be a string")):
            try:
                client.submit(name, wrong).collect()
            except nsbridge.BadInput as error:
                ensure(why in str(error), str(error))
            else:
                raise SystemExit(f"failed: {wrong} is answered")


def main(url: str, keys: str, model: str) -> None:
    for package in (nsbridge, nsbridge_handler):
        place = Path(package.__file__ or "").parent
        ensure((place / "py.typed").exists(), f"{place} has no types")
    text = ask(url, keys, model)
    asyncio.run(ask_async(url, keys, model, text))
    ask_by_commands(url, keys, model, text)
    test_model()
    with tempfile.TemporaryDirectory() as folder:
        serve(url, keys, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
