"""Adapters on rounded weights: what the rounded base and the adapter make together, on any layout, beside others."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bireme.wire.plan import Sampling
from tests.checkpoints.tiny import save_tiny
from tests.quantization.packers import linear_layers
from tests.quantization.reference import STEPS, VOCABULARY, expected
from tests.quantization.test_at_load import dense
from tests.support.adapters import ALL_LINEAR, write_adapter
from tests.support.generation import Request, generate
from tests.support.rank_threads import threaded_ranks


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_an_adapter_is_added_to_the_rounded_weights(tmp_path: Path, name: str, tensor: int, stages: int) -> None:
    torch.set_num_threads(1)
    base = save_tiny(tmp_path / "base", hidden_size=128, intermediate_size=256, initializer_range=0.1)
    for _, weight in linear_layers(base):
        weight.copy_(dense(weight, name))
    models: list[Any] = [base, write_adapter(tmp_path / "pirate", base, ALL_LINEAR, rank=4, seed=1)]
    requests = [
        Request(list(range(3, 20 + 7 * number)), STEPS, Sampling(logprobs=VOCABULARY), adapter=number % 2)
        for number in range(4)
    ]
    changes: dict[str, Any] = {"quantization": name, "adapters": (("pirate", tmp_path / "pirate"),)}
    with threaded_ranks(tmp_path / "base", tensor, stages, **changes) as ranks:
        generate(ranks, requests, chunk=24)
    for request in requests:
        wanted = expected(models[request.adapter], [*request.prompt, *request.outputs[:-1]])
        for step, told in enumerate(request.logprobs):
            assert told is not None
            ids, values = zip(*told.top, strict=True)
            found = torch.tensor(values, dtype=torch.float64)
            assert float((found - wanted[step, list(ids)]).abs().max()) < 1e-3
