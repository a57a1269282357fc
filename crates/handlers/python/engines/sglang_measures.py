"""Measures of SGLang: those of its schedulers, and sums over the replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine_measures import values
from sglang_api import Load, Meta

class Measures:
    """Sums over all replies."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, meta: Meta, tokens: int, is_first: bool) -> None:
        """Adds an output with a number of tokens."""
        counts = self._counts
        counts["engine_generation_tokens"] += tokens
        if is_first:
            prompt = meta.get("prompt_tokens", 0)
            counts["engine_prompt_tokens"] += prompt
            counts["engine_prefix_cache_queries"] += prompt
            counts["engine_prefix_cache_hits"] += meta.get("cached_tokens", 0)
        if meta.get("finish_reason"):
            counts["engine_draft_tokens"] += meta.get("spec_num_proposed_drafts", 0)
            counts["engine_accepted_tokens"] += meta.get("spec_num_correct_drafts", 0)

    def read(self, loads: Sequence[Load]) -> dict[str, float]:
        """Returns the values by the names of the worker's metrics."""
        running = sum(load.num_running_reqs for load in loads)
        waiting = sum(load.num_waiting_reqs for load in loads)
        return values(self._counts, running, waiting, max((load.token_usage for load in loads), default=0.0))
