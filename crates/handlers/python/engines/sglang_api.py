"""SGLang's Python interface, as far as it is used here. SGLang has no types of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Optional, Protocol, TypedDict

from nsbridge_handler import Fatal

# Before SGLang is imported: log-probabilities are those before the temperature, and its processes find the
# modules beside this one.
os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
_FOLDER = str(Path(__file__).resolve().parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_FOLDER, os.environ.get("PYTHONPATH"))))

# A log-probability, a token and its text, which is not asked for.
Scored = tuple[Optional[float], int, Optional[str]]


class Meta(TypedDict, total=False):
    """Facts of an output."""

    finish_reason: Optional[Mapping[str, Any]]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    input_token_logprobs: Sequence[Scored]
    """Those of the whole prompt in every output."""
    input_top_logprobs: Sequence[Optional[Sequence[Scored]]]
    output_token_logprobs: Sequence[Scored]
    """Those of the tokens of this output."""
    output_top_logprobs: Sequence[Optional[Sequence[Scored]]]
    spec_num_proposed_drafts: int
    spec_num_correct_drafts: int


class Output(TypedDict):
    """What a step adds to a reply, with `incremental_streaming_output`."""

    output_ids: list[int]
    meta_info: Meta


class Load(Protocol):
    """State of one scheduler."""

    num_running_reqs: int
    num_waiting_reqs: int
    token_usage: float


class LoadReader(Protocol):
    """Reader of the states that the schedulers publish in shared memory."""

    def read_all(self) -> Sequence[Load]:
        """Returns the latest states, or none before the first one."""
        ...


class ModelConfig(Protocol):
    """Configuration of the model."""

    vocab_size: int
    context_len: int
    hf_eos_token_id: Optional[Collection[int]]

    def get_default_sampling_params(self) -> Mapping[str, Any]:
        """Returns those of `generation_config.json`, unless `sampling_defaults` says otherwise."""
        ...


class TokenizerManager(Protocol):
    """Part of SGLang in this process."""

    tokenizer: Any
    model_config: ModelConfig
    max_req_input_len: int
    num_reserved_tokens: int
    load_snapshot_reader: LoadReader

    def abort_request(self, rid: str) -> None:
        """Drops the requests whose names begin with a text."""
        ...


class ServerArgs(Protocol):
    """Raw configuration."""

    custom_sigquit_handler: Any
    enable_custom_logit_processor: bool
    enable_watermark: bool
    incremental_streaming_output: bool

    def resolved_dict(self) -> Mapping[str, Any]:
        """Returns the configuration with all that SGLang has decided by itself."""
        ...


class SglangEngine(Protocol):
    """SGLang without a server."""

    server_args: ServerArgs
    tokenizer_manager: TokenizerManager

    async def async_generate(self, **arguments: Any) -> AsyncGenerator[Output, None]:
        """Returns the outputs of a request, with `stream=True`."""
        ...

    def get_all_child_pids(self) -> Sequence[int]:
        """Returns the processes of the schedulers and the detokenizer."""
        ...

    def shutdown(self) -> None:
        """Ends the processes."""
        ...


def sglang(module: str) -> Any:
    """Imports a module of SGLang."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "sglang":
            raise
        raise Fatal(
            f"SGLang is not installed in the environment of {sys.executable}: pip install sglang"
        ) from None
