"""Whether a kernel may be set up while the one before it still runs (programmatic dependent launch).

Between two kernels of a graph a GPU idles for half a microsecond, hundreds of times a step. From compute capability 9
on the next grid can be scheduled before that, and waits inside. The rule that keeps every read and write in order:
whoever is launched with ``**early()`` calls ``wait_first(early)`` before anything else. Then a kernel's end still means
the end of all before it. A grid is let in only when the last block of the one before is running and past its own wait:
no more than two overlap, and blocks that wait never take the place of blocks that work.

The exchange of ranks is launched without: its blocks spin on peers' words, and what follows comes when it has ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LEAST_CAPABILITY: Final = 9
"""Major compute capability of the first GPUs with it."""
_closed: list[bool] = []


@triton.jit  # type: ignore[untyped-decorator]
def wait_first(early: tl.constexpr) -> None:
    """Wait for all kernels before this one, then let the next be set up."""
    if early:
        gdc_wait()
        gdc_launch_dependents()


def early() -> dict[str, bool]:
    """What a launch adds to its arguments: nothing where the GPU can't, in the interpreter, and inside ``plainly``."""
    if _closed or knobs.runtime.interpret or not _is_able():
        return {}
    return {"early": True, "launch_pdl": True}


@contextmanager
def plainly() -> Iterator[None]:
    """Inside, kernels are launched one after another has ended; a graph keeps the way in which it was captured."""
    _closed.append(True)
    try:
        yield
    finally:
        _closed.pop()


@cache
def _is_able() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= LEAST_CAPABILITY
