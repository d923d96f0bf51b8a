"""Kernels compiled side by side, before the first step needs them.

Triton compiles a kernel when it is launched for the first time, and the launches of a step come one after the other:
most of a start that finds an empty cache. So the steps are first run without their kernels, only to learn which ones
they want; then all of these are compiled by threads (the compiler lets others run meanwhile). A kernel that is asked
for in just the same way later is there; nothing has to be kept in step with the launches by hand.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
from triton import knobs

MOST_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kernel that was asked for: of which function, how specialised, and where its compiled form belongs."""

    function: Any
    specialization: str
    place: MutableMapping[Any, Any]
    key: Any


class _Left:
    """Stands in for a kernel that is left out."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None:
        """Nothing is told of it."""

    def run(self, *_: object) -> None:
        """Nothing is launched."""


def compile_ahead(steps: Callable[[], object]) -> int:
    """Run ``steps`` without the kernels that are not compiled yet, then compile these; returns their number.

    What ``steps`` leave in memory means nothing. What can't be compiled is left to its first launch, which says why.
    """
    with _left_out() as wanted:
        steps()
    if wanted:
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        threads = min(len(wanted), os.cpu_count() or 1, MOST_THREADS)
        with ThreadPoolExecutor(threads, "compile", _enter_thread, (device,)) as pool:
            with triton.AsyncCompileMode(pool, ignore_errors=True):
                for one in wanted:
                    one.function.preload(one.specialization)
            list(pool.map(_make_ready, wanted))
    return len(wanted)


def _enter_thread(device: int | None) -> None:
    if device is not None:  # a thread begins on the first GPU
        torch.cuda.set_device(device)


def _make_ready(one: Wanted) -> None:
    """Load the kernel to the device, and compile what launches it: a C compiler's work, done at the first launch."""
    kernel = one.place.get(one.key)
    with suppress(triton.OutOfResources, RuntimeError, OSError, subprocess.SubprocessError):  # told at the launch
        _ = kernel is not None and kernel.run


@contextmanager
def _left_out() -> Iterator[list[Wanted]]:
    """Inside, whatever would be compiled is listed instead, and its launches do nothing."""
    wanted: list[Wanted] = []

    def hear(*, key: Any, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002  Triton's own name
        place = fn.jit_function.device_caches[compile["device"]][0]
        place[key] = _Left()  # the next launch finds it, and does not ask
        wanted.append(Wanted(fn.jit_function, compile["specialization_data"], place, key))
        return True

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = hear
    try:
        yield wanted
    finally:
        knobs.runtime.jit_cache_hook = before
        for one in wanted:
            del one.place[one.key]
