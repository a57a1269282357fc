"""Runs the recipes of docs/workflows.md: killed in the middle of a reply, and recovered.

    pip install cryptography pika dbos temporalio
    PYTHONPATH=../src python run_workflows.py

The environment is that of the tests (`place.py`). It is not one of them, because it needs the two
engines. Temporal's server is not needed: the activity runs in Temporal's test environment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from nsbridge import Client, ResumePoint
from place import ROOT, Place

RECIPES = ROOT / "examples" / "workflows"
TOPIC = "Once a bear"


def states(folder: Path) -> dict[str, ResumePoint]:
    """Returns the stored states of requests by id, in the order in which they were fixed."""
    points = [ResumePoint.from_json(path.read_text()) for path in folder.glob("*.json")]
    return {point.id: point for point in sorted(points, key=lambda point: point.created_at_ms)}


def resumed(worker) -> int:
    """Returns the number of pieces that the worker did not make again."""
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r"^nsbridge_resumed_pieces_total\S* (\d+)", text, re.MULTILINE)
    return sum(map(int, found))


def run_dbos(place: Place, worker) -> None:
    """Kills the program of DBOS in its second request, and starts it again."""
    folder = place.folder / "states"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python" / "src"),
        "BROKER_URL": place.url,
        "KEYRING": str(place.keys),
        "NSBRIDGE_STATES": str(folder),
        "DBOS_DATABASE": f"sqlite:///{place.folder}/dbos.sqlite",
    }
    command = [sys.executable, str(RECIPES / "with_dbos.py"), "story-1", place.model, TOPIC]

    def start(log: str) -> subprocess.Popen:
        with open(place.folder / log, "w") as file:
            return subprocess.Popen(
                command, env=environment, cwd=place.folder, stdout=subprocess.PIPE, stderr=file
            )

    first = start("dbos-1.log")
    while len(known := states(folder)) < 2 or max(len(p.pieces) for p in known.values()) < 100:
        assert first.poll() is None, (place.folder / "dbos-1.log").read_text()[-3000:]
        time.sleep(0.005)
    first.kill()
    first.wait()
    before = states(folder)
    runs, kept = worker.ended("ok"), max(len(point.pieces) for point in before.values())
    assert len(before) == 2 and 100 <= kept < 800, (len(before), kept)
    second = start("dbos-2.log")
    text = second.communicate(timeout=120)[0].decode().rstrip("\n")
    assert second.returncode == 0, (place.folder / "dbos-2.log").read_text()[-3000:]
    after = states(folder)
    assert after.keys() == before.keys(), "a request was asked under another id"
    (ended, interrupted), (same, continued) = before.values(), after.values()
    assert same == ended, "a request that had ended was asked again"
    assert continued.clients == interrupted.clients + 1, "the interrupted request: not once more"
    with sqlite3.connect(place.folder / "dbos.sqlite") as database:
        steps = database.execute(
            "SELECT function_name FROM operation_outputs ORDER BY function_id"
        ).fetchall()
    with Client(place.url, place.keys) as client:
        expected = TOPIC
        for point, tokens in zip(after.values(), (20, 800)):
            asked = {"max_tokens": tokens, "ignore_eos": True, "seed": point.seed}
            expected += client.text(place.model, expected, **asked).read()
    assert text == expected, "the text differs from that of undisturbed requests"
    print(
        f"DBOS: killed after {kept} of 800 pieces; {len(after)} requests in all; "
        f"{resumed(worker)} pieces were not made again; steps {[name for (name,) in steps]}; "
        f"text equal to that of undisturbed requests ({runs} replies had ended at the kill)"
    )


def run_temporal(place: Place) -> None:
    """Ends a first attempt of the activity in mid-reply, and runs a second one."""
    sys.path.insert(0, str(RECIPES))
    os.environ.update(BROKER_URL=place.url, KEYRING=str(place.keys))
    import with_temporal
    from temporalio.testing import ActivityEnvironment

    asked = {"prompt": TOPIC, "max_tokens": 400, "ignore_eos": True}

    async def attempts() -> tuple[str, str, int]:
        fixed = await ActivityEnvironment().run(with_temporal.fix)
        first, beats = ActivityEnvironment(), []

        def heartbeat(state: str) -> None:
            beats.append(state)
            if len(beats) == 20:
                first.cancel()

        first.on_heartbeat = heartbeat
        try:
            await first.run(with_temporal.ask, place.model, asked, fixed)
            raise AssertionError("the first attempt was not interrupted")
        except asyncio.CancelledError:
            pass
        second = ActivityEnvironment()
        second.info = dataclasses.replace(second.info, heartbeat_details=[beats[-1]])
        return fixed, await second.run(with_temporal.ask, place.model, asked, fixed), len(beats)

    fixed, text, beats = asyncio.run(attempts())
    point = ResumePoint.from_json(fixed)
    with Client(place.url, place.keys) as client:
        options = {name: value for name, value in asked.items() if name != "prompt"}
        expected = client.text(place.model, TOPIC, seed=point.seed, **options).read()
    assert text == expected, "the text differs from that of an undisturbed request"
    print(f"Temporal: cancelled at heartbeat {beats}, the next attempt gave an equal text")


if __name__ == "__main__":
    place = Place()
    try:
        worker = place.worker()
        run_dbos(place, worker)
        run_temporal(place)
    finally:
        place.close()
