"""Kernels compiled by several processes beforehand: each makes some of the calls once, and the cache on disk keeps it.

A kernel takes a second or more to compile, whatever the GPU, and one process compiles one at a time.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Final, TypeVar

Task = TypeVar("Task")
MOST: Final = 12
"""Each has a context on the card."""


def beforehand(call: Callable[[Task], object], tasks: Sequence[Task], seconds: float) -> str:
    """Call each of ``tasks`` in some process, the first ones first, for as long as ``seconds``; how that went.

    What fails here fails again where it is measured, and is told there.
    """
    begin = time.monotonic()
    processes = max(min(MOST, (os.cpu_count() or 1) - 2), 1)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    calls = [pool.submit(call, task) for task in tasks]
    done = wait(calls, timeout=seconds).done
    pool.shutdown(wait=False, cancel_futures=True)
    failed = [str(one.exception())[-200:] for one in done if one.exception() is not None]
    text = f"compiled {len(done)} of {len(tasks)} calls in {time.monotonic() - begin:.1f} s with {processes} processes"
    return text + (f", {len(failed)} failed: {failed[0]}" if failed else "")
