"""Triton's interpreter where there is no GPU, mended for numpy 2.4."""

from typing import Any

import numpy as np
import pytest
import torch


def mend_rounding(patch: Any = setattr) -> None:
    """Triton 3.6 rounds up to the next power of two wrongly in fp8, and ties away from even: torch does it right."""
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def converted(values: Any, kind: Any, target: Any, rounding: Any) -> Any:
        if str(kind) == "fp32" and str(target) == "fp8e4nv":
            wide = torch.from_numpy(np.frombuffer(values.tobytes(), np.float32).copy())
            return wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(values.shape)
        return original(values, kind, target, rounding).reshape(values.shape)

    patch(interpreter, "_convert_float", converted)


def mend_loop_bounds(patch: Any = setattr) -> None:
    """Triton 3.6 turns arrays of one element into integers, which numpy 2.4 refuses."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(autouse=True)
def loop_bounds_are_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mended interpreter."""
    pytest.importorskip("triton.runtime.interpreter")
    mend_loop_bounds(monkeypatch.setattr)
    mend_rounding(monkeypatch.setattr)
