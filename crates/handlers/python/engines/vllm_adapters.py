"""LoRA adapters that vLLM applies by the request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, cast, get_args

from nsbridge_handler import Fatal, Models, Options
from vllm.config.lora import MaxLoRARanks
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

# Maximum number of adapters that a batch has, unless `max_loras` is set. Each takes memory of the device.
MOST_ACTIVE = 4
_CONFIG = "adapter_config.json"
_MOST_WHY = 300


def adapter_options(models: Models, adapters: Sequence[str], options: Options) -> Options:
    """Returns the options with those that the adapters need. Raises Fatal for a broken adapter."""
    if not adapters:
        return options
    if options.get("enable_lora") is False:
        raise Fatal("`enable_lora` in [handler.options] cannot be false beside `adapters`")
    ranks = [_rank(name, models.get(name)) for name in adapters]
    active = options.get("max_loras", _active(len(adapters)))
    if _last_is_applied() and isinstance(active, int) and active <= len(adapters):
        raise Fatal(
            f"`max_loras` in [handler.options] must be at least {len(adapters) + 1} on a CPU, one more than"
            " `adapters`: vLLM would apply the last of them to requests that name none"
        )
    own = {
        "max_loras": active,
        # All of them stay in memory.
        "max_cpu_loras": max(len(adapters), active) if isinstance(active, int) else len(adapters),
        "max_lora_rank": min(rank for rank in get_args(MaxLoRARanks) if rank >= max(ranks)),
    }
    return {**own, **options, "enable_lora": True}


async def load_adapters(llm: AsyncLLM, models: Models, adapters: Sequence[str]) -> dict[str, LoRARequest]:
    """Loads all adapters, and returns what a request names each by. Raises Fatal for a broken one."""
    loaded = dict[str, LoRARequest]()
    for number, name in enumerate(adapters, 1):
        request = LoRARequest(name, number, str(models[name]))
        try:
            await llm.add_lora(request)
        except Exception as error:
            why = " ".join(str(error).split())[:_MOST_WHY]
            raise Fatal(f"vLLM cannot load the adapter `{name}`: {why}") from None
        loaded[name] = request
    return loaded


def _active(adapters: int) -> int:
    return adapters + 1 if _last_is_applied() else min(adapters, MOST_ACTIVE)


def _last_is_applied() -> bool:
    """Returns true where vLLM applies its last place of an adapter to requests without one.

    In vLLM 0.32 for CPUs such a request has the index -1 in a batch with adapters. The last place does no harm
    while it is empty.
    """
    on_cpu: bool = current_platform.is_cpu()
    return on_cpu


def _rank(name: str, folder: Optional[Path]) -> int:
    """Returns the highest rank of an adapter's matrices."""
    if folder is None:
        raise Fatal(f"the adapter `{name}` has no folder: add it to [models]")
    config = _config(name, folder)
    pattern: dict[str, Any] = config.get("rank_pattern") or {}
    ranks: list[Any] = [config.get("r"), *pattern.values()]
    most = max(get_args(MaxLoRARanks))
    if not all(type(rank) is int and 0 < rank <= most for rank in ranks):
        raise Fatal(f"the adapter `{name}` must have a rank `r` from 1 to {most} in its {_CONFIG}")
    highest: int = max(ranks)
    return highest


def _config(name: str, folder: Path) -> Mapping[str, Any]:
    try:
        config: Any = json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise Fatal(f"cannot read {_CONFIG} of the adapter `{name}` in {folder}: {why}") from None
    if not isinstance(config, dict):
        raise Fatal(f"{_CONFIG} of the adapter `{name}` in {folder} is no JSON object")
    return cast("dict[str, Any]", config)
