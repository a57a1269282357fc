"""Command `nsbridge-ask`, or `python -m nsbridge`: asks a model and streams the reply.

The command `nsbridge` is another one, in Rust.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from typing import Any, TextIO

from .client import Client, Reply
from .constants import MAX_SECONDS
from .errors import Error, Failed
from .events import EnqueuedAgain, Event, Hint, Opened, Piece, Restart, Waiting
from .text import TextPiece, join


class Printer:
    """Prints the events of a reply as they come: text to stdout, notes to stderr."""

    def __init__(self, reply: Reply[TextPiece], notes: TextIO, show: bool):
        self.reply, self.notes, self.show = reply, notes, show
        self.pieces: list[TextPiece] = []
        self.attempts = 0
        self.hint: str | None = None

    def run(self) -> None:
        """Prints the whole reply."""
        for event in self.reply.events():
            self.event(event)

    def event(self, event: Event[TextPiece]) -> None:
        """Prints an event."""
        if isinstance(event, Piece):
            self.pieces.append(event.value)
            self.text(event.value.text)
        elif isinstance(event, Restart):
            del self.pieces[event.kept :]
            self.note(f"\nrestarted: {event.kept} pieces stand, here again:")
            self.text(join(self.pieces))
        elif isinstance(event, Opened):
            self.attempts += 1
        elif isinstance(event, Waiting):
            self.note(f"waiting: no frame came for {event.seconds:.0f} seconds")
        elif isinstance(event, EnqueuedAgain):
            self.note("no worker is heard any more: asking again")
        elif isinstance(event, Hint):
            self.note(f"unauthenticated hint from a worker: {event.code}")

    def text(self, text: str) -> None:
        """Prints text of the reply."""
        if self.show:
            sys.stdout.write(text)
            sys.stdout.flush()

    def note(self, line: str) -> None:
        """Prints a line for the user."""
        print(line, file=self.notes)

    def report(self) -> dict[str, Any]:
        """Returns the facts of a complete reply."""
        reply = self.reply
        usage = reply.usage.__dict__ if reply.usage else {}
        return {
            "id": reply.id,
            "seed": reply.seed,
            "revision": reply.revision,
            "pieces": len(self.pieces),
            "finish_reason": reply.finish_reason,
            "usage": {name: count for name, count in usage.items() if count},
            "enqueues": reply.copies,
            "attempts": self.attempts,
            "restarts": reply.restarts,
        }


def ask(args: argparse.Namespace) -> int:
    """Asks one question; returns the exit code."""
    given = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    prompt: Any = [{"role": "user", "content": args.prompt}] if args.chat else args.prompt
    with Client(args.url, args.keyring, tenant=args.tenant) as client:
        reply = client.text(
            args.model,
            prompt,
            seed=args.seed,
            revision=args.revision,
            timeout=args.timeout,
            bulk=args.bulk,
            **given,
        )
        printer = Printer(reply, sys.stderr, show=not args.json)
        try:
            with reply:
                printer.run()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no error at exit
            raise Error("the output was closed, the request is cancelled") from None
        if args.json:
            print(json.dumps({"text": join(printer.pieces), **printer.report()}))
        else:
            print()
            facts = printer.report().items()
            printer.note(" ".join(f"{name}={json.dumps(value)}" for name, value in facts))
    return 0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    about = "Ask a model behind nsbridge and stream the reply."
    parser = argparse.ArgumentParser(prog="nsbridge-ask", description=about)
    parser.add_argument("prompt", metavar="PROMPT")
    # Names, variables and defaults are those of `nsbridge ask`. The URL of the environment may have
    # a password, so the help does not show it.
    parser.add_argument(
        "--broker",
        "--url",
        dest="url",
        metavar="URL",
        default=os.environ.get("NSBRIDGE_BROKER__URL", "amqp://localhost"),
        help="such as amqps://host/%%2f; other users of this machine can read arguments, so put a "
        "URL with a password into NSBRIDGE_BROKER__URL (default: that, or amqp://localhost)",
    )
    parser.add_argument(
        "--keyring",
        metavar="FILE",
        default=os.environ.get("NSBRIDGE_KEYS__KEYRING", "keys.json"),
        help="mode 600 (default: NSBRIDGE_KEYS__KEYRING, or keys.json)",
    )
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--tenant", default="default", help="default: %(default)s")
    parser.add_argument("--revision", help="the only revision of the model that may answer")
    parser.add_argument("--seed", type=int, help="the same seed gives the same text")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, at most 1500")
    parser.add_argument("--bulk", action="store_true", help="let interactive requests go first")
    parser.add_argument("--json", action="store_true", help="print one object at the end instead")
    args = parser.parse_args(argv)
    args.seed = secrets.randbits(53) if args.seed is None else args.seed
    if not 0 <= args.seed < 1 << 64:
        parser.error("--seed is between 0 and 2^64 - 1")
    if not 0 < args.timeout <= MAX_SECONDS:
        parser.error(f"--timeout is at most {MAX_SECONDS} seconds")
    return args


def main(argv: list[str] | None = None) -> int:
    """Runs the command: 0 complete, 1 failed, 2 wrong command line, 130 after Ctrl-C."""
    args = arguments(argv)
    try:
        return ask(args)
    except Failed as error:
        print(f"nsbridge-ask: {error.code}: {error.message}", file=sys.stderr)
        return 1
    except Error as error:
        print(f"nsbridge-ask: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncancelled", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
