"""Kernels that steps want are compiled before their launch, for the same keys, and nothing is launched on the way."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from bireme_worker.kernels.ahead import compile_ahead
from bireme_worker.rank.graphs import batch_sizes, telling_sizes


class Gpu:
    """A driver without a GPU: kernels are compiled for an H100, launches are listed."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, Any]] = []
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (0, 0, 0, 0, 1024), get_device_properties=lambda _: {"max_shared_mem": 1 << 17}
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches a kernel."""
        return lambda *given: self.launched.append((given[0], metadata.num_warps))

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpu:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = Gpu()
    monkeypatch.setattr(driver, "_active", made)
    return made


def _double(x: tl.tensor, y: tl.tensor, count: tl.tensor, block: tl.constexpr) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)


def test_what_steps_want_is_compiled_for_the_keys_of_their_launches(gpu: Gpu) -> None:
    kernel: Any = JITFunction(_double)
    x = torch.zeros(65)

    def steps() -> None:
        for count in (1, 3, 16, 32):  # 1 and multiples of 16 are special to Triton
            kernel[(count,)](x, x, count, block=32, num_warps=1)
        kernel[(7,)](x[1:], x, 3, block=32, num_warps=2)  # not aligned

    assert compile_ahead(steps) == 4
    assert not gpu.launched
    steps()
    assert gpu.launched == [(1, 1), (3, 1), (16, 1), (32, 1), (7, 2)]
    assert compile_ahead(steps) == 0  # none was compiled at its launch, or is left now


def test_a_kernel_that_can_not_be_compiled_is_left_to_its_launch(gpu: Gpu) -> None:
    def wrong(x: tl.tensor) -> None:
        tl.store(x, tl.arange(0, 3))

    kernel: Any = JITFunction(wrong)
    assert compile_ahead(lambda: kernel[(1,)](torch.zeros(1))) == 1
    with pytest.raises(Exception, match="power of 2"):
        kernel[(1,)](torch.zeros(1))


def test_the_telling_sizes_have_one_of_each_power_of_two() -> None:
    assert telling_sizes(257) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 257]
    assert set(telling_sizes(7)) <= set(batch_sizes(7))
