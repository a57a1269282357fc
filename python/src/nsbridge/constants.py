"""Constants of version 1 of the protocol (`docs/protocol.md`)."""

from __future__ import annotations

from typing import Any

CONTENT_TYPE = "application/vnd.nsbridge.v1"
VERSION, SUITE = 1, 1
KEYRING_PROVIDER, KMS_PROVIDER = range(2)
PLAIN, PIECES = 1, 2  # content types
OPEN, DATA, HEARTBEAT, FINAL_OK, FINAL_ERROR, MOVED = range(6)  # kinds of NSBR
CANCEL, RESUME = range(2)  # kinds of NSBC
MAX_REQUEST_BYTES = 8 << 20
MAX_WRAPPED_BYTES = 4 << 10
MAX_REPLY_BYTES = 8 << 20  # pieces of a reply, each with four bytes for its length
MAX_AHEAD = 256  # frames of one stream kept until the frames before them come
MAX_EARLY, MAX_EARLY_BYTES = 256, 1 << 20  # frames of one request kept until their open comes
MAX_STREAMS = 4  # streams of one request followed at once
MAX_GONE = 64  # evicted streams of one request whose ids are remembered
MAX_WORKERS = 8  # workers of one request that get a cancel at its end
MAX_HINTS = 16  # hints of one request that are shown
MAX_AGAIN = 3  # new copies of one request
MAX_SECONDS = 25 * 60  # from sealing to the end of a reply
PREFETCH = 512  # unacked reply frames that the broker may send
CODES = (
    "bad-input model-failed cancelled deadline expired clock-skew malformed unsupported-version "
    "oversized unknown-key wrong-key tampered wrong-model key-scope poison reply-too-large "
    "key-denied internal wrong-revision"
).split()  # the code with number n is CODES[n - 1]
USAGE = "input_tokens output_tokens cached_tokens drafted_tokens accepted_tokens".split()
REASONS = ("stop", "length", "stop_text", "content_filter")  # finish reasons

REPLY_EXCHANGE, CONTROL_EXCHANGE = "nsbridge.reply", "nsbridge.control"
REPLY_QUEUE_ARGUMENTS: dict[str, Any] = {
    "x-queue-type": "classic",
    "x-expires": 15_000,
    "x-max-length-bytes": 64 << 20,
    "x-overflow": "reject-publish",
}
MODEL_HEADER, KEY_ID_HEADER, EPOCH_HEADER = "nsb-model", "nsb-kid", "nsb-epoch"
TRACE_HEADER, TRACE_BEFORE_HEADER = "traceparent", "nsb-traceparent-before"
