"""LoRA adapters beside the base model in one batch, on any split, judged by transformers with merged weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bireme.wire.plan import Sampling
from bireme_worker.checkpoints.adapter import read_adapter
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.models.progress import Progress
from bireme_worker.rank.loading import load_runner
from tests.checkpoints.tiny import save_tiny
from tests.support.adapters import ALL_LINEAR, ATTENTION, write_adapter
from tests.support.engine_driver import Engine, submit
from tests.support.generation import Request, generate
from tests.support.oracle import Oracle
from tests.support.rank_threads import identity, threaded_ranks

PROMPT = list(range(3, 43))


class Family:
    """A base model and two adapters on it; ``models`` by adapter number."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "base"
        model = save_tiny(self.base, initializer_range=0.3)
        self.folders = {"small": folder / "small", "wide": folder / "wide"}
        small = write_adapter(self.folders["small"], model, ATTENTION, rank=3, seed=1)
        wide = write_adapter(self.folders["wide"], model, ALL_LINEAR, rank=8, seed=2, rslora=True)
        self.models: list[Any] = [model, small, wide]
        self.adapters = tuple(self.folders.items())


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    torch.set_num_threads(1)
    return Family(tmp_path_factory.mktemp("lora"))


def batch(adapters: tuple[int, ...] = (0, 1, 2, 1, 0, 2)) -> list[Request]:
    return [
        Request(PROMPT[: 5 + 6 * number], 16, Sampling(temperature=0.7 * (number % 2), seed=number), number, adapter)
        for number, adapter in enumerate(adapters)
    ]


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_each_request_gets_its_own_adapter_whoever_else_is_in_the_batch(
    family: Family, tensor: int, stages: int
) -> None:
    requests = batch()
    with threaded_ranks(family.base, tensor, stages, adapters=family.adapters) as ranks:
        generate(ranks, requests, chunk=24)
    for number, model in enumerate(family.models):
        oracle = Oracle(model)
        for request in requests:
            if request.adapter == number:
                oracle.judge(request.prompt, request.outputs, request.sampling, f"adapter {number}")
        oracle.verdict.check()
    assert len({tuple(request.outputs) for request in requests}) == len(requests)


def test_neighbours_with_adapters_change_no_bit_of_the_base_model(family: Family) -> None:
    def logprobs(*others: int) -> list[object]:
        requests = batch((0, *others))
        requests[0].sampling = Sampling(logprobs=3)
        with threaded_ranks(family.base, adapters=family.adapters) as ranks:
            generate(ranks, requests, chunk=24)
        return list(requests[0].logprobs)

    assert logprobs(1, 2) == logprobs(0, 0)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("wide", {"max_adapter_rank": 7}, "has rank 8, the most is 7: raise BIREME_MAX_ADAPTER_RANK"),
        ("bias", {}, "has bias 'all', which is not served: only 'none' is"),
        ("dora", {}, "has use_dora True"),
        ("head", {}, "is for lm_head, which this model can't adapt: it can down_proj, gate_proj, k_proj"),
        ("half", {}, "lacks base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"),
        ("shape", {}, "makes 64 outputs of 63 inputs at model.layers.0.self_attn.q_proj, the model 64 of 64"),
        ("nowhere", {}, "adapter_config.json"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_by_the_numbers(
    family: Family, tmp_path: Path, name: str, changes: dict[str, int], words: str
) -> None:
    directory = family.folders["wide"] if name == "wide" else tmp_path
    broken: dict[str, dict[str, Any]] = {"bias": {"bias": "all"}, "dora": {"use_dora": True}}
    if name not in {"wide", "nowhere"}:
        write_adapter(tmp_path, family.models[0], ATTENTION, rank=4, seed=1, **broken.get(name, {}))
        _spoil(tmp_path / "adapter_model.safetensors", name)
    pod = identity(family.base, adapters=((name, directory),), **changes)
    with pytest.raises(CheckpointError) as refused:
        load_runner(pod, 0, pod.checkpoint, Progress())
    assert words in str(refused.value)


def _spoil(path: Path, how: str) -> None:
    tensors = load_file(path)
    first = "base_model.model.model.layers.0.self_attn.q_proj"
    if how == "head":
        tensors |= {"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}
        tensors |= {"base_model.model.lm_head.lora_B.weight": torch.ones(131, 4)}
    if how == "half":
        del tensors[f"{first}.lora_B.weight"]
    if how == "shape":
        tensors[f"{first}.lora_A.weight"] = torch.ones(4, 63)
    save_file(tensors, path)


def test_the_scale_follows_the_config(family: Family) -> None:
    small, wide = (read_adapter(name, folder, 64) for name, folder in family.adapters)
    plain = load_file(family.folders["small"] / "adapter_model.safetensors")
    name = "model.layers.1.self_attn.v_proj"
    assert torch.equal(small.pairs[name].up, 2.0 * plain[f"base_model.model.{name}.lora_B.weight"])
    stable = load_file(family.folders["wide"] / "adapter_model.safetensors")
    expected = 16 / 8**0.5 * stable[f"base_model.model.{name}.lora_B.weight"]
    assert torch.allclose(wide.pairs[name].up, expected)


def test_adapters_share_no_prefix() -> None:
    engine = Engine(adapters=("a", "b"))
    prompt = [index % 7 for index in range(40)]
    for adapter, cached in (("a", 0), ("b", 0), ("", 0), ("a", 32), ("b", 32), ("", 32)):
        sequence = engine.submit(submit(prompt, 3, adapter=adapter))
        engine.run()
        assert engine.cached.get(sequence, 0) == cached
        admits = [admit for plan in engine.plans for admit in plan.admits]
        assert admits[-1].adapter == ("", "a", "b").index(adapter)
