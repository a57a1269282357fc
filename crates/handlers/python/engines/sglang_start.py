"""Start of SGLang, and what the worker asks it afterwards."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Optional

from nsbridge_handler import Fatal, Models, Options

import sglang_signals
from sglang_api import SglangEngine, sglang
from sglang_measures import Measures
from sglang_options import server_args
from sglang_reply import why
from sglang_running import Running

# Version whose sources this module follows.
READ = "0.5.23"
MOST_SLOTS = 1024
# Resolved arguments that decide the tokens beside the model and the options.
_DECIDERS = (
    "device",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "sampling_backend",
    "tp_size",
    "enable_deterministic_inference",
)


class Sglang:
    """Model that SGLang serves in processes of its own."""

    slots = 1
    version = ""
    engine: SglangEngine

    def start(self, models: Models, options: Options, adapters: Sequence[str]) -> Mapping[str, Any]:
        """Starts SGLang's processes, and waits until they have loaded the model.

        Returns the arguments that are in effect.
        """
        if "target" not in models:
            raise Fatal("the engine sglang needs the folder of a model: set `target` in [models]")
        version: str = sglang("sglang.version").__version__
        if version != READ:
            print(f"SGLang {version} is not the version that this worker was written for, {READ}")
        self._loop = asyncio.get_running_loop()
        self.measured, self.running = Measures(), Running()
        self._broken: Optional[str] = None
        self.engine = _started(models, options, adapters)
        pids = set(self.engine.get_all_child_pids())
        self._children = [child for child in multiprocessing.active_children() if child.pid in pids]
        resolved = self.engine.server_args.resolved_dict()
        self.slots = min(resolved.get("max_running_requests") or MOST_SLOTS, MOST_SLOTS)
        deciders = (resolved.get(name) for name in _DECIDERS)
        parts = ["sglang", version, import_module("torch").__version__, _device(), *deciders, *adapters]
        self.version = " ".join(map(str, parts))
        return resolved

    def measures(self) -> dict[str, float]:
        """Returns SGLang's own numbers."""
        return self.measured.read(self.engine.tokenizer_manager.load_snapshot_reader.read_all())

    def health(self) -> Optional[str]:
        """Returns the reason why no further request can be answered, or None.

        The runner asks once a second, from a thread without the loop of the requests.
        """
        if self._broken is None and self._ended():
            self._broken = "a process of SGLang has ended"
            self._loop.call_soon_threadsafe(self.running.end, self._broken)
        return self._broken

    def _ended(self) -> bool:
        return sglang_signals.failed.is_set() or not all(child.is_alive() for child in self._children)

    def close(self) -> None:
        """Ends SGLang's processes."""
        self.engine.shutdown()


def _started(models: Models, options: Options, adapters: Sequence[str]) -> SglangEngine:
    # The module first: it loads SGLang's plugins, which may add arguments.
    module = sglang("sglang.srt.entrypoints.engine")
    args = server_args(models, options, adapters)
    args.incremental_streaming_output = True
    # SGLang refuses watermarks beside it.
    args.enable_custom_logit_processor = not args.enable_watermark
    # SGLang sets it in this thread, the main one. The handler that would replace it is set only if the first
    # request is in the main thread, and the runner has the requests in another one.
    args.custom_sigquit_handler = sglang_signals.note
    try:
        engine: SglangEngine = module.Engine(server_args=args)
    except Exception as error:
        raise Fatal(f"SGLang does not start: {why(error)}") from error
    return engine


def _device() -> str:
    """Returns the name of the first GPU. CUDA itself would take memory for this process too."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        return str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)))
    except Exception:
        return "no NVIDIA GPU"
