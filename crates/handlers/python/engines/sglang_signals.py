"""Signal by which a process of SGLang tells the one that has started it that it failed.

SGLang's own answer kills that process too. This module is a part of SGLang's configuration, which its
processes import, where `nsbridge_handler` is not known.
"""

from __future__ import annotations

import threading

failed = threading.Event()


def note(number: int, frame: object) -> None:
    """Notes the signal. SGLang's start then fails with a reason, or the model is broken."""
    failed.set()
