"""Runner of a Python model: loads model.py and answers the calls of a worker. Continues api.py; the
files are one module.

The worker starts this code in a process of its own. Standard input is the control socket; each slot
connects a socket of its own. A frame is a big-endian u32 length and JSON. Only the standard library is
used.
"""

import asyncio
import collections.abc
import ctypes
import dataclasses
import enum
import hashlib
import importlib.util
import inspect
import json
import os
import pathlib
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
import typing

# Bytes of pieces that may be on their way to the worker.
_WINDOW = 4096
# Maximum size of an encoded piece, in bytes. The worker's limit is smaller.
_MOST = 8 << 20
# Seconds between the notice of a stop and an exception in the call's thread, and between two of them.
_PATIENCE = 0.2
# Reply that is sent if no better one can be made.
_FALLBACK = {"error": {"kind": "retry", "type": "MemoryError", "place": ""}}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class _Told(Exception):
    """Failure whose sentence has no text of a request, so that the log may have it."""


class _NotJson(_Told):
    """Piece that is no JSON, with the line that made it."""

    place = ""


class _ToldRetry(_Told, Retry):
    """The same for a failure that another try may not meet."""


def _parse(body):
    """Returns the value of an input."""
    try:
        return json.loads(body)
    except RecursionError:
        raise BadInput("the input is nested too deeply") from None
    except ValueError as error:
        # Errors of JSON and of UTF-8 have types of their own.
        if type(error) is not ValueError:
            raise
        raise BadInput("the input has a number with too many digits") from None


class _Link:
    """Frames on a blocking socket."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = bytearray()

    def read(self):
        """Returns the next frame, or None at the end of the stream."""
        if not self._fill(4):
            return None
        size = int.from_bytes(self.buffer[:4], "big")
        if not self._fill(4 + size):
            return None
        frame = bytes(memoryview(self.buffer)[4 : 4 + size])
        del self.buffer[: 4 + size]
        return frame

    def _fill(self, size):
        while len(self.buffer) < size:
            part = self.sock.recv(max(65536, size - len(self.buffer)))
            if not part:
                return False
            self.buffer += part
        return True

    def write(self, data):
        self.sock.sendall(struct.pack(">I", len(data)) + data)


def _piece(value):
    """Encodes a piece as a frame's content."""
    try:
        data = _encode(value).encode("utf-8")
    except TypeError as error:
        # The message names types alone: "Object of type float32 is not JSON serializable".
        raise _NotJson("a piece is not JSON: %s" % error) from None
    except UnicodeEncodeError:
        raise _NotJson("a piece is not JSON: its text has half of a surrogate pair") from None
    except RecursionError:
        raise _NotJson("a piece is not JSON: it is nested too deeply, or has itself in it") from None
    except ValueError:
        raise _NotJson("a piece is not JSON: it has a NaN, an infinity or itself in it") from None
    return b'{"piece":%b}' % data if len(data) <= _MOST else b'"oversize"'


class _Job:
    """Request in progress."""

    def __init__(self, slot, head):
        self.id = head["id"]
        self.seed = head["seed"]
        self.attempt = head["attempt"]
        self.tenant = head["tenant"]
        self.scope = head["scope"]
        self.submitted_at = head["submitted_at"]
        self.deadline = head["deadline"]
        self._slot = slot
        self._stopped = False
        self._resumed = None
        self._emitted = False
        self._end = {"reason": "stop"}

    def check(self):
        """Raises Stopped if the call must end."""
        if self._slot.job is not self:
            raise RuntimeError("the call has ended")
        if self._stopped:
            raise Stopped

    def at_most(self, pieces):
        """Declares the maximum number of pieces, those of an earlier attempt included."""
        self._slot.send(_encode({"at_most": int(pieces)}).encode())

    def finish(self, reason="stop", input_tokens=0, output_tokens=0, cached_tokens=0):
        """Sets the reason of the end ("stop", "length" or "stop_text") and the token counts."""
        if reason not in ("stop", "length", "stop_text"):
            raise ValueError("the reason of an end is stop, length or stop_text")
        counts = (int(input_tokens), int(output_tokens), int(cached_tokens))
        self._end = {"reason": reason, "usage": dict(zip(_COUNTS, counts))}

    def _may_resume(self):
        self.check()
        if self._emitted:
            raise RuntimeError("job.resumed() must come before the first piece")


_COUNTS = ("input_tokens", "output_tokens", "cached_tokens")


class _ThreadJob(_Job):
    """Job of a function or a generator."""

    def emit(self, piece):
        """Sends a piece. Waits while the client is too far behind."""
        self.check()
        self._emitted = True
        self._slot.send_piece(self, _piece(piece))

    def resumed(self):
        """Returns the pieces that the client has from an earlier attempt; continue after them."""
        if self._resumed is None:
            self._may_resume()
            self._resumed = self._slot.ask_resumed(self)
        return self._resumed


class _TaskJob(_Job):
    """Job of a coroutine or an asynchronous generator."""

    async def emit(self, piece):
        """Sends a piece. Waits while the client is too far behind."""
        self.check()
        self._emitted = True
        await self._slot.send_piece(_piece(piece))

    async def resumed(self):
        """Returns the pieces that the client has from an earlier attempt; continue after them."""
        if self._resumed is None:
            self._may_resume()
            self._resumed = await self._slot.ask_resumed()
        return self._resumed
