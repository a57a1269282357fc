"""Two requests as durable steps of DBOS: with_dbos.py WORKFLOW-ID MODEL TOPIC

Start it again after a crash with the same arguments: the steps that ended are not run again, and
the one that was interrupted continues.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dbos import DBOS, SetWorkflowID
from nsbridge import ResumePoint
from resumable import connect, write

STATES = Path(os.environ.get("NSBRIDGE_STATES", "states"))  # a table of your database, in earnest

DBOS(config={"name": "stories", "system_database_url": os.environ["DBOS_DATABASE"]})


@DBOS.step()
def fix() -> str:
    """Fixes id, seed and deadline of a request before it is sent."""
    return ResumePoint.new(timeout=900).to_json()


@DBOS.step(retries_allowed=True, max_attempts=5)
def ask(model: str, prompt: str, tokens: int, fixed: str) -> str:
    """Returns the text of one request."""
    point = ResumePoint.from_json(fixed)
    state = STATES / f"{point.id}.json"
    if state.exists():
        point = ResumePoint.from_json(state.read_text())

    def store(point: ResumePoint) -> None:
        """Replaces the stored state at once, so that a crash leaves one or the other."""
        new = state.with_suffix(".new")
        new.write_text(point.to_json())
        new.replace(state)

    asked = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    with connect() as client:
        return write(client, model, asked, point, store)


@DBOS.workflow()
def story(model: str, topic: str) -> str:
    """Writes a beginning, and then a story that continues it."""
    beginning = ask(model, topic, 20, fix())
    return topic + beginning + ask(model, topic + beginning, 800, fix())


if __name__ == "__main__":
    name, model, topic = sys.argv[1:]
    STATES.mkdir(mode=0o700, exist_ok=True)
    DBOS.launch()  # continues the workflows that this program left
    with SetWorkflowID(name):  # a second start under this id is the same workflow
        handle = DBOS.start_workflow(story, model, topic)
    print(handle.get_result())
    DBOS.destroy()
