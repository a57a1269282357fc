"""Measures of engines, by the names of the worker's metrics."""

from __future__ import annotations

from collections import Counter

_COUNTERS = (
    "engine_prefix_cache_queries",
    "engine_prefix_cache_hits",
    "engine_draft_tokens",
    "engine_accepted_tokens",
    "engine_prompt_tokens",
    "engine_generation_tokens",
)


def values(counts: Counter[str], running: int, waiting: int, usage: float) -> dict[str, float]:
    """Returns all values: counters, numbers of requests, and the part of the KV cache that is in use."""
    return {
        **{name: counts[name] for name in _COUNTERS},
        "engine_requests_running": running,
        "engine_requests_waiting": waiting,
        "engine_kv_cache_usage_ratio": usage,
    }
