"""Triton's interpreter where there is no GPU, mended for numpy 2.4."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def loop_bounds_are_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 turns arrays of one element into integers, which numpy 2.4 refuses."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
