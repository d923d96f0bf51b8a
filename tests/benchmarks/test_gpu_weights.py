"""Random weights for measurements are numbers: what is drawn beyond the range of fp8 would be NaN."""

import math

import pytest

from benchmarks.gpu import weights
from benchmarks.gpu.shapes import SHAPES, quantized


@pytest.mark.parametrize("name", ["none", "int8", "int4", "fp8"])
def test_every_value_is_finite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A GPU draws one of 300,000 values beyond 4.6 deviations; on the CPU float16 ends at 4.
    monkeypatch.setattr(weights, "FP8_SPREAD", 200.0)
    reader = weights.RandomReader(quantized(SHAPES["tiny"], name))
    assert [one for one in reader.tensors if not bool(reader.read(one).float().isfinite().all())] == []


def test_the_175b_shape_has_as_many_parameters() -> None:
    tensors = weights.RandomReader(SHAPES["175b"]).tensors.values()
    assert sum(math.prod(one.shape) for one in tensors) == pytest.approx(175e9, rel=0.01)


def test_the_175b_shape_in_int8_leaves_room_on_each_of_four_80_gb_gpus() -> None:
    tensors = weights.RandomReader(quantized(SHAPES["175b"], "int8")).tensors.values()
    held = sum(math.prod(one.shape) * one.dtype.itemsize for one in tensors)
    assert held / 4 < 50e9
