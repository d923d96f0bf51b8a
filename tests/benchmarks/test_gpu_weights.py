"""Random weights for measurements are numbers: what is drawn beyond the range of fp8 would be NaN."""

import pytest

from benchmarks.gpu import weights
from benchmarks.gpu.shapes import SHAPES, quantized


@pytest.mark.parametrize("name", ["none", "int8", "int4", "fp8"])
def test_every_value_is_finite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A GPU draws one of 300,000 values beyond 4.6 deviations; on the CPU float16 ends at 4.
    monkeypatch.setattr(weights, "FP8_SPREAD", 200.0)
    reader = weights.RandomReader(quantized(SHAPES["tiny"], name))
    assert [one for one in reader.tensors if not bool(reader.read(one).float().isfinite().all())] == []
