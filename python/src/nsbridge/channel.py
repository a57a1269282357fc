"""Coroutines over pika's connections and channels, which have callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import re
import urllib.parse
from typing import Any

import pika
import pika.exceptions
from pika.adapters.asyncio_connection import AsyncioConnection

from .errors import BrokerError

ALLOW_PLAINTEXT = "allow_plaintext=true"  # in a URL: allows a remote broker without TLS
BETWEEN_NODES = re.compile(r"\s*[,\s]\s*(?=amqps?://)")
CONNECT_S = 5  # well below the 15 s after which an unused reply queue expires
HEARTBEAT_S = 10

# Without a handler, Python prints each of pika's errors to stderr.
logging.getLogger("pika").addHandler(logging.NullHandler())


class Gone(Exception):
    """Connection or channel that was closed. `code` is the broker's reply code, or 0."""

    def __init__(self, why: object, code: int = 0):
        super().__init__(str(why))
        self.code = code


def private(url: str) -> str:
    """Returns the URL for pika. A remote broker without TLS needs `?allow_plaintext=true`."""
    parts = urllib.parse.urlsplit(url)
    words = parts.query.split("&")
    query = "&".join(word for word in words if word != ALLOW_PLAINTEXT)
    host = parts.hostname or "localhost"
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    if parts.scheme == "amqp" and not here and ALLOW_PLAINTEXT not in words:
        raise BrokerError(
            f"the broker at {host} would be reached without TLS, with its password readable "
            f"on the network: use amqps://, or add ?{ALLOW_PLAINTEXT} to the URL"
        )
    return parts._replace(query=query).geturl()


def address(url: str, name: str) -> Any:
    """Returns pika's parameters for a URL. The broker's tools show the connection's name."""
    try:
        parameters = pika.URLParameters(private(url))
    except BrokerError:
        raise
    except Exception:  # pika raises many types, and may quote the password
        raise BrokerError("the URL is not amqp://user:password@host:5672/%2f") from None
    parameters.socket_timeout = parameters.stack_timeout = CONNECT_S
    parameters.connection_attempts = 1
    parameters.client_properties = {"connection_name": name}
    if "heartbeat=" not in url:
        parameters.heartbeat = HEARTBEAT_S
    return parameters


def reason(error: BaseException) -> str:
    """Returns the cause of a lost or refused connection, in a few words."""
    if isinstance(error, Gone) and error.__cause__ is not None:
        return reason(error.__cause__)
    if isinstance(error, pika.exceptions.ProbableAuthenticationError):
        return "it refused the user or the password"
    if isinstance(error, pika.exceptions.ProbableAccessDeniedError):
        return "it refused the virtual host"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    inner = [getattr(error, "exception", None), *getattr(error, "exceptions", ()), *error.args]
    for cause in inner:
        if isinstance(cause, BaseException):
            return reason(cause)
    return str(error) or "it does not answer"


def gone(error: BaseException) -> Gone:
    """Returns the error for a connection or channel that pika closed."""
    told = Gone(error, getattr(error, "reply_code", 0))
    told.__cause__ = error
    return told


class Connection:
    """Open connection."""

    def __init__(self, raw: Any, closed: asyncio.Future[None]):
        self.raw, self._closed = raw, closed

    @classmethod
    async def open(cls, parameters: Any) -> Connection:
        """Connects. Raises `Gone` if the broker cannot be reached."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        closed: asyncio.Future[None] = loop.create_future()

        def refuse(_raw: Any, error: Any) -> None:
            if not opened.done():
                cause = error if isinstance(error, BaseException) else Gone(error)
                opened.set_exception(gone(cause))
            settle(closed)

        raw: Any = AsyncioConnection(
            parameters,
            on_open_callback=lambda _: settle(opened),
            on_open_error_callback=refuse,
            on_close_callback=lambda *_: settle(closed),
            custom_ioloop=loop,
        )
        connection = cls(raw, closed)
        try:
            await asyncio.wait_for(opened, 2 * CONNECT_S)
        except asyncio.TimeoutError:
            await connection.close()
            raise Gone(f"it does not answer within {2 * CONNECT_S} s") from None
        except asyncio.CancelledError:
            await connection.close()
            raise
        return connection

    async def channel(self) -> Channel:
        """Opens a channel."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        lost = asyncio.ensure_future(asyncio.shield(self._closed))
        try:
            self.raw.channel(on_open_callback=lambda raw: settle(opened, raw))
            await asyncio.wait({opened, lost}, return_when=asyncio.FIRST_COMPLETED)
        except pika.exceptions.AMQPError as error:
            raise gone(error) from error
        finally:
            lost.cancel()
        if not opened.done():
            raise Gone("the connection was closed")
        return Channel(opened.result())

    async def close(self) -> None:
        """Closes the connection, and waits for the broker at most two seconds."""
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.raw.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._closed), 2)


class Nodes:
    """Nodes of a broker: a connection goes to the first one that can be reached, from one by chance on."""

    def __init__(self, urls: str, name: str):
        """Reads the nodes' URLs, separated by commas. The broker's tools show the connections' name."""
        self._nodes = [address(url, name) for url in BETWEEN_NODES.split(urls.strip())]
        self._at = random.randrange(len(self._nodes))

    @property
    def current(self) -> Any:
        """pika's parameters of the node that connections go to first."""
        return self._nodes[self._at]

    @property
    def where(self) -> str:
        """Hosts and ports."""
        return ", ".join(f"{node.host}:{node.port}" for node in self._nodes)

    async def connect(self) -> Connection:
        """Connects. Raises `Gone` if no node can be reached."""
        first = self._at
        for more in range(len(self._nodes)):
            at = (first + more) % len(self._nodes)
            try:
                connection = await Connection.open(self._nodes[at])
            except Gone as error:
                if more == len(self._nodes) - 1:
                    raise
                logging.getLogger("nsbridge").debug(
                    "no connection to the node %s: %s", self._nodes[at].host, reason(error)
                )
            else:
                self._at = at
                return connection
        raise AssertionError("a broker has a node")


class Channel:
    """Open channel."""

    def __init__(self, raw: Any):
        self.raw = raw
        self._waiting: set[asyncio.Future[Any]] = set()
        raw.add_on_close_callback(self._on_close)

    def _on_close(self, _raw: Any, error: Any) -> None:
        waiting, self._waiting = self._waiting, set()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(gone(error))

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the channel and waits for the broker's answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        try:
            self.send(method, *arguments, callback=lambda frame: settle(answer, frame), **options)
            return await answer
        finally:
            self._waiting.discard(answer)

    def send(self, method: str, *arguments: Any, **options: Any) -> None:
        """Calls a method of the channel that has no answer."""
        try:
            getattr(self.raw, method)(*arguments, **options)
        except pika.exceptions.AMQPError as error:
            raise gone(error) from error


def settle(future: asyncio.Future[Any], value: Any = None) -> None:
    """Sets the result of a future that has none."""
    if not future.done():
        future.set_result(value)
