"""Measures of vLLM, from its own statistics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Optional

from vllm.v1.metrics.loggers import StatLoggerBase

from engine_measures import values

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

class Measures:
    """Sums over the engines of a worker: one, or one for each rank of data parallelism."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._latest: dict[int, SchedulerStats] = {}

    def logger(self, vllm_config: VllmConfig, engine_index: int = 0) -> StatLoggerBase:
        """Creates the logger of one engine."""
        return _Logger(self, engine_index)

    def add(self, engine: int, scheduler: Optional[SchedulerStats], step: Optional[IterationStats]) -> None:
        """Adds the statistics of a step."""
        if scheduler is not None:
            self._latest[engine] = scheduler
            cache, drafts = scheduler.prefix_cache_stats, scheduler.spec_decoding_stats
            self._counts["engine_prefix_cache_queries"] += cache.queries
            self._counts["engine_prefix_cache_hits"] += cache.hits
            if drafts is not None:
                self._counts["engine_draft_tokens"] += drafts.num_draft_tokens
                self._counts["engine_accepted_tokens"] += drafts.num_accepted_tokens
        if step is not None:
            self._counts["engine_prompt_tokens"] += step.num_prompt_tokens
            self._counts["engine_generation_tokens"] += step.num_generation_tokens

    def read(self, unfinished: int) -> dict[str, float]:
        """Returns the values by the names of the worker's metrics. `unfinished` requests are those of now.

        An engine without requests takes no step, and so tells nothing of those that were aborted last.
        """
        latest = list(self._latest.values()) if unfinished else []
        running = min(sum(stats.num_running_reqs for stats in latest), unfinished)
        usage = max((stats.kv_cache_usage for stats in latest), default=0.0)
        return values(self._counts, running, unfinished - running, usage)


class _Logger(StatLoggerBase):
    def __init__(self, measures: Measures, engine: int) -> None:
        self._measures, self._engine = measures, engine

    def record(
        self,
        scheduler_stats: Optional[SchedulerStats],
        iteration_stats: Optional[IterationStats],
        mm_cache_stats: Optional[MultiModalCacheStats] = None,
        engine_idx: int = 0,
    ) -> None:
        self._measures.add(self._engine, scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Does nothing: vLLM logs its configuration itself."""
