"""Forced tokens where a real vLLM is spread over machines."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", exc_type=ImportError)

from vllm.config import ParallelConfig

from vllm_forced import reaches_all

MP: dict[str, Any] = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.parametrize(
    ("options", "reaches"),
    [
        ({"distributed_executor_backend": "uni"}, True),
        (MP, True),
        ({**MP, "data_parallel_size": 2, "data_parallel_size_local": 2}, True),
        ({**MP, "nnodes": 2}, False),
        ({**MP, "data_parallel_size": 2, "data_parallel_size_local": 1}, False),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"}, False),
    ],
    ids=str,
)
def test_tokens_are_forced_only_if_all_ranks_are_on_this_machine(
    options: dict[str, Any], reaches: bool
) -> None:
    assert reaches_all(ParallelConfig(**options)) == reaches
