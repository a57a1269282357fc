"""Arithmetic of the processors that force tokens, on tensors of the CPU. It needs vLLM, and no model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", exc_type=ImportError)

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from vllm_forced import FORCED, Forced, ForcedV2, forced_tokens, processor_name

NONE: Any = None


def params(*forced: int) -> SamplingParams:
    return SamplingParams(extra_args={FORCED: list(forced)} if forced else None)


def kept(logits: Any) -> list[list[int]]:
    """Returns the tokens that are left in each row."""
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


def update(size: int, **changes: Any) -> BatchUpdate:
    all_changes: dict[str, Any] = {"removed": [], "added": [], "moved": [], **changes}
    return BatchUpdate(batch_size=size, **all_changes)


ALL = list(range(5))


def test_a_row_is_forced_until_its_reply_has_the_tokens() -> None:
    processor, made = Forced(NONE, torch.device("cpu"), False), list[int]()
    processor.update_state(update(2, added=[(0, params(), [], []), (1, params(3, 4), [1], made)]))
    assert kept(processor.apply(torch.zeros(2, 5))) == [ALL, [3]]
    # With asynchronous scheduling the token is a placeholder at first.
    made.append(-1)
    processor.update_state(None)
    assert kept(processor.apply(torch.zeros(2, 5))) == [ALL, [4]]
    made.append(4)
    assert kept(processor.apply(torch.zeros(2, 5))) == [ALL, ALL]
    assert not processor.is_argmax_invariant()


def test_rows_that_move_or_leave_keep_their_tokens() -> None:
    processor = Forced(NONE, torch.device("cpu"), False)
    processor.update_state(update(3, added=[(row, params(row), [], []) for row in (1, 2)]))
    swap = [(1, 0, MoveDirectionality.UNIDIRECTIONAL), (0, 2, MoveDirectionality.SWAP)]
    processor.update_state(update(3, moved=swap))
    assert kept(processor.apply(torch.zeros(3, 5))) == [[2], ALL, [1]]
    processor.update_state(update(3, removed=[2]))
    assert kept(processor.apply(torch.zeros(3, 5))) == [[2], ALL, ALL]


def test_the_logits_of_a_forced_row_leave_one_choice_for_every_way_to_sample() -> None:
    processor = Forced(NONE, torch.device("cpu"), False)
    processor.update_state(update(1, added=[(0, params(2), [], [])]))
    logits = processor.apply(torch.tensor([[9.0, float("-inf"), -50.0, 3.0, float("nan")]]))
    assert torch.equal(torch.softmax(logits / 0.01, -1), torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0]]))


def context(slots: list[int], lengths: list[int]) -> Any:
    return SimpleNamespace(idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(lengths))


def test_a_slot_of_the_second_runner_is_forced_by_the_length_of_its_sequence() -> None:
    states: Any = SimpleNamespace(prompt_len=SimpleNamespace(np=np.array([4, 9, 2], dtype=np.int32)))
    processor = ForcedV2(NONE, states)
    assert processor.add_request(0, params(1, 2))
    assert processor.add_request(2, params(3))
    assert not processor.add_request(1, params())
    # The slots are in another order in the batch; slot 2 has read a part of its prompt.
    assert kept(processor.apply(torch.zeros(3, 5), context([2, 0, 1], [1, 4, 9]))) == [ALL, [1], ALL]
    assert kept(processor.apply(torch.zeros(3, 5), context([0, 1, 2], [5, 10, 2]))) == [[2], ALL, [3]]
    assert kept(processor.apply(torch.zeros(2, 5), context([0, 2], [6, 3]))) == [ALL, ALL]
    assert not processor.add_request(0, params())
    assert kept(processor.apply(torch.zeros(1, 5), context([0], [4]))) == [ALL]


def test_vllm_loads_the_processor_of_its_runner_by_name() -> None:
    assert processor_name(False) == "vllm_forced:Forced"
    assert processor_name(True) == "vllm_forced:ForcedV2"
    assert forced_tokens(params()) == () and list(forced_tokens(params(5))) == [5]
