"""One request as an activity of Temporal, which continues where its last attempt stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client as Temporal
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from nsbridge import AsyncClient, AsyncReply, ResumePoint, TextPiece

QUEUE = "stories"
EVERY = 10  # pieces between two heartbeats
LONGEST = 10  # seconds between two heartbeats


@activity.defn
async def fix() -> str:
    """Fixes id, seed and deadline of a request before it is sent."""
    return ResumePoint.new(timeout=900).to_json()


@activity.defn
async def ask(model: str, input: dict[str, Any], fixed: str) -> str:
    """Returns the text of one request. Each heartbeat has the state for the next attempt."""
    before = activity.info().heartbeat_details
    point = ResumePoint.from_json(before[0] if before else fixed)
    text = "".join(TextPiece.read(piece).text for piece in point.pieces)
    async with AsyncClient(os.environ["BROKER_URL"], os.environ["KEYRING"]) as client:
        # Leaving the block cancels the request, also when Temporal cancels the activity.
        async with client.reattach(model, input, point, read=TextPiece.read) as reply:
            beats, number = asyncio.create_task(beat(reply)), 0
            try:
                async for piece in reply:
                    text, number = text + piece.text, number + 1
                    if number % EVERY == 1:
                        activity.heartbeat(reply.resume_point().to_json())
            finally:
                beats.cancel()
    return text


async def beat(reply: AsyncReply[TextPiece]) -> None:
    """Heartbeats while the reply is silent, as in a long queue."""
    while True:
        await asyncio.sleep(LONGEST)
        activity.heartbeat(reply.resume_point().to_json())


@workflow.defn
class Story:
    """Workflow with one request."""

    @workflow.run
    async def run(self, model: str, topic: str) -> str:
        """Writes a story."""
        soon = {"start_to_close_timeout": timedelta(minutes=15)}
        fixed = await workflow.execute_activity(fix, **soon)
        return await workflow.execute_activity(
            ask,
            args=[model, {"prompt": topic, "max_tokens": 400}, fixed],
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=5),
            **soon,
        )


async def main(address: str) -> None:
    """Runs a worker of Temporal."""
    temporal = await Temporal.connect(address)
    await Worker(temporal, task_queue=QUEUE, workflows=[Story], activities=[fix, ask]).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
