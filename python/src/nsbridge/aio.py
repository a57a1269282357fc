"""Client in asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from .amqp import Amqp
from .broker import Broker
from .combine import in_order
from .errors import BrokerError, Closed
from .inquiry import Timing
from .keyring import DataKey, KeyProvider, Keyring
from .merge import text_replay_key
from .options import ReattachOptions, RequestOptions, SubmitOptions, TextOptions
from .pending import Pending
from .reply import AsyncReply
from .request import Request, ResumePoint
from .router import Router
from .text import (
    Embeddings,
    P,
    Prompt,
    Result,
    Scores,
    TextPiece,
    embed_input,
    judge_input,
    read_embeddings,
    read_json,
    read_scores,
    text_input,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")


class AsyncClient:
    """Client of nsbridge workers, for one event loop. It serves many requests at once.

    `broker` is a URL such as `amqp://user:password@host:5672/%2f`. `keys` is the path of a keyring
    file or a key provider. Entering the context connects; leaving it cancels all requests.
    The broker's tools show the connections under `name`.
    """

    def __init__(
        self,
        broker: str | Broker,
        keys: str | os.PathLike[str] | KeyProvider,
        *,
        tenant: str = "default",
        timing: Timing = Timing(),
        name: str = "nsbridge client",
    ):
        self._broker, self._name = broker, name
        self._keys = Keyring(keys) if isinstance(keys, (str, os.PathLike)) else keys
        self.tenant, self.timing = tenant, timing
        self._router: Router | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        state = "not connected"
        if self._router is not None:
            state = "closed" if self._router.closed else "connected"
        # Without the broker's URL, which may have a password.
        return f"<nsbridge.AsyncClient {self._name!r}, tenant {self.tenant!r}, {state}>"

    async def connect(self) -> AsyncClient:
        """Connects to the broker. Raises `BrokerError` if it cannot be used."""
        if self._router is None:
            self._loop, broker = asyncio.get_running_loop(), self._broker
            amqp = Amqp(broker, self.timing, self._name) if isinstance(broker, str) else broker
            router = Router(amqp, self.timing)
            try:
                await router.start()
            except BaseException:
                await router.close()
                raise
            self._router = router
        return self

    async def close(self) -> None:
        """Cancels all requests and disconnects."""
        if self._router is not None:
            await self._router.close()

    async def __aenter__(self) -> AsyncClient:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def router(self) -> Router:
        """Router of a connected client."""
        if self._router is None:
            raise BrokerError("the client is not connected: `await client.connect()` first")
        if self._router.closed:
            raise Closed("the client was closed")
        return self._router

    @property
    def reply_queue(self) -> str:
        """Name of the reply queue."""
        return self.router.queue

    async def data_key(self, model: str, tenant: str) -> DataKey:
        """Returns a key for a request. A key service is called in a thread."""
        if isinstance(self._keys, Keyring):
            return self._keys.data_key(model, tenant)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._keys.data_key, model, tenant)

    def drop(self, pending: Pending) -> None:
        """Cancels the request of a reply that was dropped, on any thread."""
        router, loop = self._router, self._loop
        if router is not None and loop is not None and not loop.is_closed() and not router.closed:
            try:
                loop.call_soon_threadsafe(router.end, pending, None)
            except RuntimeError:
                pass  # the loop was closed meanwhile: the worker ends at the deadline

    @overload
    def submit(
        self, model: str, input: Any, **options: Unpack[SubmitOptions]
    ) -> AsyncReply[Any]: ...

    @overload
    def submit(
        self,
        model: str,
        input: Any,
        *,
        read: Callable[[bytes], P],
        **options: Unpack[SubmitOptions],
    ) -> AsyncReply[P]: ...

    def submit(
        self,
        model: str,
        input: Any,
        *,
        read: Callable[[bytes], Any] = read_json,
        replay_key: Callable[[bytes], bytes] = text_replay_key,
        tenant: str | None = None,
        seed: int | None = None,
        revision: str | None = None,
        bulk: bool = False,
        timeout: float = 300,
        id: str | None = None,
        trace: str | None = None,
    ) -> AsyncReply[Any]:
        """Returns the reply to a request for any model. `read` decodes one piece.

        `replay_key` returns the bytes of a piece that must be equal in every attempt; by default,
        token and text of a piece of text, and all bytes of any other piece.

        `timeout` is the time limit in seconds, to the end of the reply. Workers take `bulk`
        requests only into slots that no interactive request needs. `trace` is the caller's span, a
        W3C `traceparent`.
        """
        request = Request(
            model,
            input,
            tenant or self.tenant,
            seed,
            revision,
            bulk,
            timeout,
            id,
            trace,
            replay_key=replay_key,
        )
        return AsyncReply(self, request, read)

    @overload
    def reattach(
        self, model: str, input: Any, point: ResumePoint, **options: Unpack[ReattachOptions]
    ) -> AsyncReply[Any]: ...

    @overload
    def reattach(
        self,
        model: str,
        input: Any,
        point: ResumePoint,
        *,
        read: Callable[[bytes], P],
        **options: Unpack[ReattachOptions],
    ) -> AsyncReply[P]: ...

    def reattach(
        self,
        model: str,
        input: Any,
        point: ResumePoint,
        *,
        read: Callable[[bytes], Any] = read_json,
        replay_key: Callable[[bytes], bytes] = text_replay_key,
        tenant: str | None = None,
        revision: str | None = None,
        bulk: bool = False,
        trace: str | None = None,
    ) -> AsyncReply[Any]:
        """Continues a request of another client with the pieces after those in `point`.

        Model, tenant, input and revision are those of the first submission.
        """
        request = Request(
            model,
            input,
            tenant or self.tenant,
            None,
            revision,
            bulk,
            trace=trace,
            point=point,
            replay_key=replay_key,
        )
        return AsyncReply(self, request, read)

    def text(
        self,
        model: str,
        prompt: Prompt,
        *,
        tenant: str | None = None,
        seed: int | None = None,
        revision: str | None = None,
        bulk: bool = False,
        timeout: float = 300,
        id: str | None = None,
        trace: str | None = None,
        **options: Unpack[TextOptions],
    ) -> AsyncReply[TextPiece]:
        """Returns the reply of a model of text.

        `prompt` is a text, token ids, or messages. `options` are fields of the model's input, such
        as `max_tokens`, `temperature`, `stop`, `tools` and `response_format`.
        """
        return self.submit(
            model,
            text_input(prompt, **options),
            read=TextPiece.read,
            tenant=tenant,
            seed=seed,
            revision=revision,
            bulk=bulk,
            timeout=timeout,
            id=id,
            trace=trace,
        )

    async def embed(self, model: str, texts: str | Sequence[str], **options: Any) -> Embeddings:
        """Returns the vectors of texts. `options` are `dimensions` and those of `submit`."""
        names = ("dimensions", "encoding_format", "priority")
        asked = embed_input(texts, **{name: options.pop(name, None) for name in names})
        result: Result[Any] = await self.submit(model, asked, **options).collect()
        return read_embeddings(result.pieces, result.summary.usage)

    async def judge(
        self,
        model: str,
        text: str,
        question: str | None = None,
        labels: Sequence[str] | Mapping[str, str | None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Scores:
        """Returns the scores of a text: of the labels, or of the judge's own categories."""
        reply = self.submit(model, judge_input(text, question, labels), **options)
        result: Result[Any] = await reply.collect()
        return read_scores(result.pieces)

    async def batch(
        self, model: str, inputs: Iterable[Any], *, concurrency: int = 32, **options: Any
    ) -> AsyncIterator[Result[Any]]:
        """Returns the complete replies to many inputs, in their order, as bulk requests."""
        options.setdefault("bulk", True)

        async def one(asked: Any) -> Result[Any]:
            return await self.submit(model, asked, **options).collect()

        async for result in in_order(inputs, one, concurrency):
            yield result
