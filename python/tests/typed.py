"""Loops of the documentation, and wrong arguments, as a type checker must see them.

mypy checks this file in its strict mode, in which a comment without an error to ignore is an error too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nsbridge import AsyncClient, Client

if TYPE_CHECKING:
    from typing_extensions import assert_type


def loops(client: Client) -> None:
    for piece in client.submit("m", {"a": 1}, seed=7):
        print(piece)
    for number in client.submit("m", 3, read=lambda piece: len(json.loads(piece))):
        assert_type(number, int)
    for token in client.text("m", "Once a bear", max_tokens=40, temperature=0.2, timeout=10):
        assert_type(token.text, str)
    client.text("m", "Once a bear", max_tokns=3)  # type: ignore[call-arg]
    client.text("m", "Once a bear", max_tokens="40")  # type: ignore[arg-type]
    client.submit("m", 3, max_tokens=40)  # type: ignore[call-overload]
    client.judge("m", "text", seed="7")  # type: ignore[arg-type]


async def loops_of_asyncio(client: AsyncClient) -> None:
    async for piece in client.submit("m", {"a": 1}):
        print(piece)
    async for token in client.text("m", [{"role": "user", "content": "Hi"}], top_k=1):
        assert_type(token.token, "int | None")
    client.text("m", "Once a bear", top_kk=1)  # type: ignore[call-arg]
