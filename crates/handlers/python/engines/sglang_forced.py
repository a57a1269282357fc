"""Logit processor of SGLang that forces the first tokens of a reply: `custom_params["nsbridge_forced"]`.

SGLang applies it after its penalties and the mask of a grammar, and before it samples. So the grammar and the
penalties advance by themselves, as in the first attempt.

SGLang imports this module in its schedulers, where `nsbridge_handler` is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Optional

FORCED = "nsbridge_forced"

_processors: Any = import_module("sglang.srt.sampling.custom_logit_processor")
_Base: Any = _processors.CustomLogitProcessor


class Forced(_Base):
    """Processor of all requests with forced tokens in a batch, which has one row for each."""

    def __call__(
        self, logits: Any, custom_param_list: Optional[Sequence[Optional[Mapping[str, Any]]]] = None
    ) -> Any:
        """Leaves one token in each row that has a forced one."""
        for row, params in enumerate(custom_param_list or ()):
            forced: Sequence[int] = (params or {}).get(FORCED) or ()
            place = _place((params or {}).get("__req__"))
            if 0 <= place < len(forced):
                logits[row, :] = float("-inf")
                logits[row, forced[place]] = 0.0
        return logits


def _place(request: Any) -> int:
    """Returns the place in the reply of the token that is sampled now, or -1 in the middle of a prompt.

    With overlapped scheduling the tokens of the request may lag behind, but not its part of the cache. A
    version of SGLang without this number forces nothing, and the worker tries the request again.
    """
    try:
        return int(request.kv.kv_committed_len) - len(request.origin_input_ids)
    except (AttributeError, ReferenceError):
        return -1
