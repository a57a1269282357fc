"""One request of a workflow, which a killed process and its successor share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nsbridge import Client, ResumePoint, TextPiece

EVERY = 10  # pieces between two stored states


def connect() -> Client:
    """Returns a client of the broker and the keys that the environment names."""
    return Client(os.environ["BROKER_URL"], os.environ["KEYRING"])


def write(
    client: Client,
    model: str,
    input: dict[str, Any],
    point: ResumePoint,
    store: Callable[[ResumePoint], None],
) -> str:
    """Returns the text of the request that `point` began, and stores its state on the way.

    The first call submits the request. A later call, in this process or another, continues it after
    the pieces in `point`: its id, its seed and its deadline stay.
    """
    text = "".join(TextPiece.read(piece).text for piece in point.pieces)
    with client.reattach(model, input, point, read=TextPiece.read) as reply:
        store(reply.resume_point())
        for number, piece in enumerate(reply, 1):
            text += piece.text
            if number % EVERY == 0:
                store(reply.resume_point())
    return text
