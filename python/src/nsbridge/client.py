"""Client without asyncio: its own thread has the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar, overload

from .aio import AsyncClient
from .broker import Broker
from .errors import Closed, Restarted
from .events import Event, Piece, Restart
from .inquiry import Timing
from .keyring import KeyProvider
from .options import ReattachOptions, RequestOptions, SubmitOptions, TextRequestOptions
from .reply import AsyncReply
from .request import ResumePoint
from .text import Embeddings, P, Prompt, Result, Scores, Summary, TextPiece, Usage, read_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")

CLOSE_S = 10  # time to cancel the requests and to disconnect


class Client:
    """Client of nsbridge workers, for any number of threads. Creating it connects.

    `broker` is a URL such as `amqp://user:password@host:5672/%2f`. `keys` is the path of a keyring
    file or a key provider. Leaving its context cancels all requests. The broker's tools show the
    connections under `name`.
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
        self._async = AsyncClient(broker, keys, tenant=tenant, timing=timing, name=name)
        self._process = os.getpid()
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=serve, args=(loop,), name="nsbridge", daemon=True)
        self._thread.start()
        # Also runs at the end of the process, before its daemon threads stop.
        self._finalizer = weakref.finalize(self, finish, self._async, loop, self._thread)
        try:
            self.run(self._async.connect())
        except BaseException:
            self._finalizer()
            raise

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncClient", "Client", 1)

    def close(self) -> None:
        """Cancels all requests and disconnects."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def aio(self) -> AsyncClient:
        """Client in asyncio, for coroutines that are given to `run`."""
        return self._async

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the client's event loop; an interrupt cancels it."""
        if os.getpid() != self._process or not self._thread.is_alive():
            work.close()
            raise Closed("the client was closed, or belongs to the parent of this process")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Returns the items of an asynchronous iterator."""

        async def following() -> tuple[T, ...]:
            try:
                return (await items.__anext__(),)
            except StopAsyncIteration:
                return ()

        try:
            while item := self.run(following()):
                yield item[0]
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and self._thread.is_alive():
                self.run(close())

    @overload
    def submit(self, model: str, input: Any, **options: Unpack[SubmitOptions]) -> Reply[Any]: ...

    @overload
    def submit(
        self,
        model: str,
        input: Any,
        *,
        read: Callable[[bytes], P],
        **options: Unpack[SubmitOptions],
    ) -> Reply[P]: ...

    def submit(
        self,
        model: str,
        input: Any,
        *,
        read: Callable[[bytes], Any] = read_json,
        **options: Unpack[SubmitOptions],
    ) -> Reply[Any]:
        """Submits a request for any model. `read` decodes one piece.

        Options are those of `AsyncClient.submit`: `tenant`, `seed`, `revision`, `bulk`, `timeout`,
        `id`, `trace`, `replay_key`.
        """
        return self._begin(self._async.submit(model, input, read=read, **options))

    @overload
    def reattach(
        self, model: str, input: Any, point: ResumePoint, **options: Unpack[ReattachOptions]
    ) -> Reply[Any]: ...

    @overload
    def reattach(
        self,
        model: str,
        input: Any,
        point: ResumePoint,
        *,
        read: Callable[[bytes], P],
        **options: Unpack[ReattachOptions],
    ) -> Reply[P]: ...

    def reattach(
        self,
        model: str,
        input: Any,
        point: ResumePoint,
        *,
        read: Callable[[bytes], Any] = read_json,
        **options: Unpack[ReattachOptions],
    ) -> Reply[Any]:
        """Continues a request of another client with the pieces after those in `point`."""
        return self._begin(self._async.reattach(model, input, point, read=read, **options))

    def text(
        self, model: str, prompt: Prompt, **options: Unpack[TextRequestOptions]
    ) -> Reply[TextPiece]:
        """Submits a request for a model of text.

        `prompt` is a text, token ids, or messages. Options are fields of the model's input, such as
        `max_tokens`, and those of `submit`.
        """
        return self._begin(self._async.text(model, prompt, **options))

    def _begin(self, reply: AsyncReply[P]) -> Reply[P]:
        async def start() -> None:
            await reply

        self.run(start())  # an interrupt cancels the request
        return Reply(self, reply)

    def embed(self, model: str, texts: str | Sequence[str], **options: Any) -> Embeddings:
        """Returns the vectors of texts."""
        return self.run(self._async.embed(model, texts, **options))

    def judge(
        self,
        model: str,
        text: str,
        question: str | None = None,
        labels: Sequence[str] | Mapping[str, str | None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Scores:
        """Returns the scores of a text: of the labels, or of the judge's own categories."""
        return self.run(self._async.judge(model, text, question, labels, **options))

    def batch(
        self, model: str, inputs: Iterable[Any], *, concurrency: int = 32, **options: Any
    ) -> Iterator[Result[Any]]:
        """Returns the complete replies to many inputs, in their order, as bulk requests."""
        return self.iterate(self._async.batch(model, inputs, concurrency=concurrency, **options))


class Reply(Generic[P]):
    """Reply in progress; an iteration returns its pieces.

    An interrupt (Ctrl-C) while it is read, leaving its context, or dropping it cancels the request.
    One thread reads it; any thread may cancel it.
    """

    def __init__(self, client: Client, reply: AsyncReply[P]):
        self._client, self._reply = client, reply
        self._ready: deque[Event[P]] = deque()
        self._ended = False

    def __repr__(self) -> str:
        return repr(self._reply).replace("AsyncReply", "Reply", 1)

    def __iter__(self) -> Iterator[P]:
        return self

    def __next__(self) -> P:
        try:
            while True:
                event = self._next()
                if event is None:
                    raise StopIteration
                if isinstance(event, Piece):
                    return event.value
                if isinstance(event, Restart):
                    raise Restarted(event.kept)
        except Exception:
            raise
        except BaseException:  # an interrupt
            self.cancel()
            raise

    def _next(self) -> Event[P] | None:
        """Returns the next event. All events that are there come from the other thread at once."""
        if not self._ready and not self._ended:
            try:
                taken = self._client.run(self._take())
            except Exception:
                raise
            except BaseException:  # an interrupt
                self.cancel()
                raise
            self._ended = not taken
            self._ready.extend(taken)
        return self._ready.popleft() if self._ready else None

    async def _take(self) -> list[Event[P]]:
        await self._reply.fill()
        return self._reply.take_ready()

    def events(self) -> Iterator[Event[P]]:
        """Returns all events of the reply. The last one is `Done`, or an error is raised."""
        while (event := self._next()) is not None:
            yield event

    def collect(self) -> Result[P]:
        """Reads the whole reply."""
        return self._whole(self._reply.collect())

    def read(self) -> str:
        """Reads the whole reply and returns its text."""
        return self._whole(self._reply.read())

    def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._client.run(work)
        except Exception:
            raise
        except BaseException:  # an interrupt
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancels the request, and waits until its workers were told. No further event comes."""
        self._ended = True
        self._ready.clear()
        self._client.run(self._reply.cancel())

    def __enter__(self) -> Reply[P]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reply.summary is None:
            self.cancel()

    @property
    def id(self) -> str | None:
        """Id of the request, which is safe to log."""
        return self._reply.id

    @property
    def seed(self) -> int | None:
        """Seed of the reply, with which it can be made again."""
        return self._reply.seed

    @property
    def summary(self) -> Summary | None:
        """End of the reply; None before it is complete."""
        return self._reply.summary

    @property
    def usage(self) -> Usage | None:
        """Numbers of tokens; None before the reply is complete."""
        return self._reply.usage

    @property
    def finish_reason(self) -> str | None:
        """Reason for the end: `stop`, `length` or `stop_text`; None before the end."""
        return self._reply.finish_reason

    @property
    def revision(self) -> str | None:
        """Revision of the model that made the pieces so far, if its worker knows one."""
        return self._reply.revision

    @property
    def attempt(self) -> int | None:
        """Number of the attempt that made the last piece. It changes with the worker."""
        return self._reply.attempt

    @property
    def copies(self) -> int:
        """Number of copies of the request that were enqueued."""
        return self._reply.copies

    @property
    def restarts(self) -> int:
        """Number of restarts so far."""
        return self._reply.restarts

    @property
    def sealed_bytes(self) -> int:
        """Number of sealed bytes that were sent and received."""
        return self._reply.sealed_bytes

    def resume_point(self) -> ResumePoint:
        """Returns the state from which another client can continue the request."""
        return self._reply.resume_point()


def serve(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the event loop until `finish` stops it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def finish(client: AsyncClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Closes a client and ends its thread."""
    if loop.is_closed() or not thread.is_alive():
        return

    async def close() -> None:
        try:
            await asyncio.wait_for(client.close(), CLOSE_S)
        finally:
            await loop.shutdown_asyncgens()
            loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
    if thread is not threading.current_thread():
        thread.join(2 * CLOSE_S)
