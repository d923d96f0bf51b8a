"""Triton's interpreter where there is no GPU, mended for numpy 2.4."""

from typing import Any

import pytest


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
