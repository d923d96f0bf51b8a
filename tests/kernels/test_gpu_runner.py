"""The runner on a GPU gives the CPU's tokens: graphs, steps launched ahead of results, weights changed in place."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from bireme.names import Env
from bireme.wire.control import Checkpoint
from bireme.wire.plan import Plan, Result, Sampling
from bireme_worker.models import page_lock
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.loading import load_runner, read_beside
from bireme_worker.rank.runner import Handle, Runner
from tests.checkpoints.tiny import save_tiny, tiny_llama
from tests.quantization.packers import SIZES
from tests.support.generation import Request, generate
from tests.support.rank_group import rank_group
from tests.support.rank_threads import identity

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

EVERYTHING = Sampling(temperature=0.7, top_p=0.9, top_k=20, repetition_penalty=1.1, logit_bias={1: 1.0}, seed=4)
PLAIN = Sampling(temperature=0.8, seed=77, choice=1)


class Direct:
    """A group of one runner, without processes; plans are launched when they are sent."""

    epoch = 1

    def __init__(self, source: Path, device: str, **changes: Any) -> None:
        settings = {"dtype": "float32", "kv_bytes": 1 << 22, "max_running_requests": 8, "max_batched_tokens": 64}
        self.pod = identity(source, device=device, **{**settings, **changes})
        self.runner: Runner = load_runner(self.pod, 0, self.pod.checkpoint, Progress())
        self.runner.begin(SoloCommunicator(EpochGate(1)))
        self._handles: deque[Handle] = deque()

    def send_plan(self, plan: Plan) -> None:
        self._handles.append(self.runner.launch(plan))

    def receive_result(self) -> Result:
        return self.runner.collect(self._handles.popleft())

    def outputs(self, sampling: Sampling) -> list[list[int]]:
        self.runner.slots.reset()
        requests = [Request([3 + n, 1, 4, 1, 5] * (n + 1), 20, sampling, arrives=n) for n in range(5)]
        generate(self, requests, chunk=48, depth=3, slots=8)
        assert not any(request.bad for request in requests)
        return [request.outputs for request in requests]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "a")
    return tmp_path / "a"


@pytest.mark.parametrize("sampling", [Sampling(), PLAIN, EVERYTHING], ids=["greedy", "plain", "everything"])
def test_the_gpu_draws_what_the_cpu_draws(source: Path, sampling: Sampling) -> None:
    assert Direct(source, "cuda").outputs(sampling) == Direct(source, "cpu").outputs(sampling)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_gpu_draws_what_the_cpu_draws_from_packed_weights(tmp_path: Path, quantization: str) -> None:
    save_tiny(tmp_path, **SIZES)
    gpu, cpu = (Direct(tmp_path, device, quantization=quantization).outputs(PLAIN) for device in ("cuda", "cpu"))
    assert gpu == cpu


@pytest.mark.parametrize("changes", [{"quantization": "fp8"}, {"kv_dtype": "fp8"}, {"kv_dtype": "int8"}], ids=str)
def test_the_gpu_begins_as_the_cpu_does_where_a_tie_may_be_rounded_to_either_side(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    save_tiny(tmp_path, **SIZES)
    gpu, cpu = (Direct(tmp_path, device, **changes).outputs(Sampling()) for device in ("cuda", "cpu"))
    assert [ids[0] for ids in gpu] == [ids[0] for ids in cpu]


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_other_packed_weights_take_effect_in_place_and_in_the_graphs(tmp_path: Path, quantization: str) -> None:
    save_tiny(tmp_path / "a", **SIZES)
    model = tiny_llama(**SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path / "b")
    gpu = Direct(tmp_path / "a", "cuda", quantization=quantization)
    before = gpu.outputs(Sampling())
    other = Checkpoint(str(tmp_path / "b"), "2")
    gpu.runner.exchange(read_beside(gpu.pod, 0, other, gpu.runner.model.config, lambda reader: reader))
    fresh = Direct(tmp_path / "b", "cuda", quantization=quantization)
    assert gpu.outputs(Sampling()) == fresh.outputs(Sampling()) != before


@pytest.mark.parametrize("overrides", [{}, {"rms_norm_eps": 0.5}], ids=["same configuration", "another one"])
@pytest.mark.parametrize("least", [page_lock.LEAST_BYTES, 1], ids=["as they are", "locked"])
def test_other_weights_take_effect_in_place_and_in_the_graphs(
    source: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, float], least: int
) -> None:
    monkeypatch.setattr(page_lock, "LEAST_BYTES", least)
    other = source.parent / "b"
    model = tiny_llama(**overrides)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(other)
    gpu = Direct(source, "cuda")
    before, address = gpu.outputs(Sampling()), next(gpu.runner.model.weights()).tensor.data_ptr()
    staged = read_beside(gpu.pod, 0, Checkpoint(str(other), "2"), gpu.runner.model.config, lambda reader: reader)
    locked = page_lock.PageLock(gpu.runner.device)
    locked.lock((tensor for weight in staged.weights() for tensor in weight.tensors()), lambda: None)
    gpu.runner.exchange(staged, locked)
    locked.release()
    after = gpu.outputs(Sampling())
    assert after == Direct(other, "cpu").outputs(Sampling()) != before
    assert next(gpu.runner.model.weights()).tensor.data_ptr() == address


def test_a_rank_process_serves_epoch_after_epoch_from_the_gpu(source: Path, tmp_path: Path) -> None:
    environment = {
        Env.DEVICE: "cuda",
        Env.MODEL_DTYPE: "float32",
        Env.KV_BYTES: str(1 << 22),
        Env.MAX_RUNNING_REQUESTS: "8",
        Env.MAX_BATCHED_TOKENS: "64",
    }
    expected = Direct(source, "cpu").outputs(Sampling())
    with rank_group(source, tmp_path, environment={str(name): value for name, value in environment.items()}) as group:
        group.load()
        for epoch in (1, 2):
            group.form(epoch)
            requests = [Request([3 + n, 1, 4, 1, 5] * (n + 1), 20, Sampling(), arrives=n) for n in range(5)]
            generate(group, requests, chunk=48, depth=3, slots=8)
            assert [request.outputs for request in requests] == expected
            group.end()
