"""Logits processors of vLLM that force the first tokens of a reply: `extra_args["nsbridge_forced"]`.

A reply that outlives its worker is replayed by them from its prompt. The matcher of a grammar, the penalties,
`min_tokens` and the random state of the request advance by themselves then, as in the first attempt.

vLLM imports this module in its own processes, where `nsbridge_handler` is not known. It has two model
runners, each with an interface of its own: see `processor_name`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig

FORCED = "nsbridge_forced"


def processor_name(uses_v2_runner: bool) -> str:
    """Returns the name by which vLLM loads the processor of a model runner."""
    return f"{__name__}:{ForcedV2.__name__ if uses_v2_runner else Forced.__name__}"


def reaches_all(parallel: ParallelConfig) -> bool:
    """Returns true if all processes that sample are on this machine: others do not have this module."""
    is_here = parallel.nnodes == 1 and parallel.data_parallel_size_local == parallel.data_parallel_size
    return is_here and parallel.distributed_executor_backend in ("mp", "uni")


def forced_tokens(params: SamplingParams) -> Sequence[int]:
    """Returns the first tokens of a reply, or none."""
    return (params.extra_args or {}).get(FORCED) or ()


def force(logits: torch.Tensor, tokens: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Leaves one token in some rows of logits, each given by the row and the token."""
    if tokens:
        rows, columns = torch.tensor(tokens, dtype=torch.int64).to(logits.device, non_blocking=True).unbind(1)
        logits[rows] = float("-inf")
        logits[rows, columns] = 0.0
    return logits


class Forced(LogitsProcessor):
    """Processor of the first model runner, which has one row for each request."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        # Forced tokens of each row, and the tokens of its reply so far, which vLLM extends. With asynchronous
        # scheduling the last ones may be placeholders, but their number is right.
        self._rows: dict[int, tuple[Sequence[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """Returns false: greedy sampling is forced too."""
        return False

    def update_state(self, batch_update: Optional[BatchUpdate]) -> None:
        """Follows the requests that enter and leave the batch, and those that change rows."""
        process_dict_updates(self._rows, batch_update, _state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Forces the next token of each row that has one."""
        rows = self._rows.items()
        return force(
            logits, [(row, forced[len(made)]) for row, (forced, made) in rows if len(made) < len(forced)]
        )


def _state(
    params: SamplingParams, prompt: Any, made: list[int]
) -> Optional[tuple[Sequence[int], list[int]]]:
    forced = forced_tokens(params)
    return (forced, made) if forced else None


class ForcedV2(LogitsProcessorV2):
    """Processor of the second model runner, which names requests by slots.

    Without speculative decoding a request has one row, and the number of its tokens is known on the host.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self._prompts = req_states.prompt_len
        self._slots: dict[int, Sequence[int]] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Notes the forced tokens of a request, in place of those of the slot's last one."""
        self._slots[req_idx] = forced_tokens(sampling_params)
        return bool(self._slots[req_idx])

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Forces the next token of each row that has one."""
        tokens = list[tuple[int, int]]()
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            forced = self._slots.get(slot, ())
            made = int(ctx.seq_lens_upper_bound_np[row]) - int(self._prompts.np[slot])
            if 0 <= made < len(forced):
                tokens.append((row, forced[made]))
        return force(logits, tokens)
