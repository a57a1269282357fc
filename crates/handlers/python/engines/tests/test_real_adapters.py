"""LoRA adapters on a real vLLM, with the model that `NSBRIDGE_TEST_VLLM_MODEL` names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", exc_type=ImportError)
MODEL = os.environ.get("NSBRIDGE_TEST_VLLM_MODEL", "")
if not MODEL:
    pytest.skip("NSBRIDGE_TEST_VLLM_MODEL names no model", allow_module_level=True)

from nsbridge_handler import BadInput, Fatal
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from adapters import write_adapter
from job import Collector
from vllm_adapters import adapter_options, load_adapters
from vllm_engine import Engine

# In single precision a reply does not depend on its batch.
OPTIONS: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "enforce_eager": True,
    "dtype": "float32",
}
LOOP = asyncio.new_event_loop()
NAMES = ["sea", "sky"]
SEA: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, target = tmp_path_factory.mktemp("adapters"), Path(MODEL)
    made = {name: write_adapter(folder / name, target, seed) for seed, name in enumerate(NAMES)}
    return {"target": target, **made}


@pytest.fixture(scope="module")
def engine(models: dict[str, Path]) -> Iterator[Engine]:
    engine = Engine()
    LOOP.run_until_complete(engine.load(models, OPTIONS, NAMES))
    yield engine
    engine.close()


def run(engine: Engine, input: dict[str, Any], **fields: Any) -> Collector:
    job = Collector(**fields)
    LOOP.run_until_complete(engine.handle(input, job))
    return job


def tokens(job: Collector) -> list[int]:
    return [piece["token"] for piece in job.all]


def test_replies_of_adapters_differ_and_are_those_of_vllm(engine: Engine, models: dict[str, Path]) -> None:
    vllm: Any = LLM(MODEL, enable_lora=True, max_lora_rank=16, max_loras=3, **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=12)
    said = list[list[int]]()
    for number, name in enumerate([None, *NAMES]):
        adapter = LoRARequest(name, number, str(models[name])) if name else None
        [output] = vllm.generate(["The sea is"], params, use_tqdm=False, lora_request=adapter)
        said.append(tokens(run(engine, {**SEA, "adapter": name})))
        assert said[-1] == list(output.outputs[0].token_ids)
    assert len({*map(tuple, said)}) == 3


def test_a_later_attempt_goes_on_with_the_adapter(engine: Engine) -> None:
    for more in ({}, {"frequency_penalty": 0.5}):
        asked = {**SEA, **more, "adapter": "sky"}
        whole = run(engine, asked)
        later = run(engine, asked, before=whole.pieces[:5], attempt=2)
        assert tokens(later) == tokens(whole)


def test_adapters_of_one_batch_do_not_mix(engine: Engine) -> None:
    alone = [tokens(run(engine, {**SEA, "adapter": name})) for name in (None, *NAMES)]
    jobs = [Collector(id=f"00000000-0000-4000-8000-00000000000{place}") for place in range(3)]
    asked = [{**SEA, "adapter": name} for name in (None, *NAMES)]

    async def together() -> None:
        await asyncio.gather(*(engine.handle(input, job) for input, job in zip(asked, jobs)))

    LOOP.run_until_complete(together())
    assert [tokens(job) for job in jobs] == alone


def test_adapters_share_no_cache_of_prompts(engine: Engine) -> None:
    prompt = {"prompt": "The sea is calm. " * 40, "max_tokens": 1, "temperature": 0}
    cached = [
        run(engine, {**prompt, "adapter": name}).usage.get("cached_tokens")
        for name in (None, "sea", "sky", "sea")
    ]
    assert cached[:3] == [0, 0, 0] and (cached[3] or 0) > 0


def test_an_unknown_adapter_is_refused_by_the_known_names(engine: Engine) -> None:
    with pytest.raises(BadInput, match="`adapter` must be one of sea, sky"):
        run(engine, {**SEA, "adapter": "hill"})


def test_adapters_are_a_part_of_the_version_of_the_model(engine: Engine) -> None:
    assert engine.version.endswith(" sea sky")


def test_an_adapter_that_vllm_cannot_load_is_named(
    engine: Engine, models: dict[str, Path], tmp_path: Path
) -> None:
    broken = write_adapter(tmp_path / "broken", models["target"], 3)
    (broken / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(Fatal, match="vLLM cannot load the adapter `broken`: ") as refused:
        named = {**models, "broken": broken}
        LOOP.run_until_complete(load_adapters(engine.llm, named, [*NAMES, "broken"]))
    assert "\n" not in str(refused.value)
    # The engine goes on.
    assert tokens(run(engine, SEA))


def test_options_of_adapters_follow_their_ranks_and_those_of_the_operator(
    models: dict[str, Path], tmp_path: Path
) -> None:
    large = write_adapter(tmp_path / "large", models["target"], 4, rank=20)
    made = adapter_options({**models, "large": large}, [*NAMES, "large"], {"max_loras": 5})
    own = {"max_loras": 5, "max_cpu_loras": 5, "max_lora_rank": 32, "enable_lora": True}
    assert made == own
    assert adapter_options(models, [], {"seed": 1}) == {"seed": 1}
    own = adapter_options(models, ["sea"], {"max_lora_rank": 64})
    assert (own["max_lora_rank"], own["max_loras"]) == (64, 2)


@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        (None, {}, "cannot read adapter_config.json of the adapter `x` in .*: No such file"),
        ("{", {}, "cannot read adapter_config.json of the adapter `x` in .*: it is no JSON"),
        ("[]", {}, "adapter_config.json of the adapter `x` in .* is no JSON object"),
        ("{}", {}, "the adapter `x` must have a rank `r` from 1 to 512"),
        ('{"r": 513}', {}, "the adapter `x` must have a rank `r` from 1 to 512"),
        ('{"r": 8}', {"enable_lora": False}, "`enable_lora` in .* cannot be false beside `adapters`"),
        ('{"r": 8}', {"max_loras": 1}, "`max_loras` in .* must be at least 2 on a CPU"),
    ],
)
def test_a_broken_adapter_is_told_before_vllm_starts(
    tmp_path: Path, config: Any, options: dict[str, Any], told: str
) -> None:
    if config is not None:
        (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(Fatal, match=told):
        asyncio.run(Engine().load({"target": Path(MODEL), "x": tmp_path}, options, ["x"]))
