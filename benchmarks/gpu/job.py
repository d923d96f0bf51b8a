"""A job's process: lays its ground once, runs its cases on it, and tells the driver each figure as it comes.

A module of a job has ``ground``, a context, and ``CASES``, functions of what it gives. A case that fails does not end
the others. What the driver reads are lines that begin with `## `; everything else is for the job's log.

    python -m benchmarks.gpu.job --job solo --cases A1,A10 --shape tiny --device cpu --scratch DIRECTORY
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.gpu.cases import JOB, Case, chosen

MARK: Final = "## "
TAIL: Final = 3
"""Lines of a traceback that the driver shows."""


@dataclass(frozen=True)
class Bench:
    """What a job may use. ``scratch`` is shared by the jobs of a call; ``ends_at``: when its last case must be over.

    ``keep`` is for files that are results. ``cases``: what this job shall do.
    """

    job: str
    shape: str
    device: str
    scratch: Path
    cases: tuple[Case, ...]
    ends_at: float
    keep: Path

    @property
    def quick(self) -> bool:
        """Whether this only proves that everything runs."""
        return self.shape == "tiny"

    @property
    def vocabulary(self) -> int:
        """Ids of the default shape."""
        size: int = self.config()["vocab_size"]
        return size

    def config(self, default: str = "llama8b") -> Mapping[str, Any]:
        """The shape that was asked for, or the job's own."""
        from benchmarks.gpu.shapes import SHAPES  # imports torch, which the driver shall not wait for

        return SHAPES[self.shape or default]

    def count(self, full: int, quick: int) -> int:
        """How many."""
        return quick if self.quick else full

    def measured(self, key: str, value: float, note: str = "") -> None:
        """A figure of ``benchmarks/gpu/lines.py``."""
        tell(key=key, value=round(value, 4), note=note)


class JobModule(Protocol):
    """What a module of a job has."""

    CASES: Mapping[str, Callable[[Any], None]]

    @staticmethod
    def ground(bench: Bench) -> AbstractContextManager[Any]:
        """What all cases stand on."""
        ...


def tell(**words: object) -> None:
    """Say something to the driver."""
    print(MARK + json.dumps(words), flush=True)


def run(bench: Bench) -> None:
    """All cases of this job, in their order."""
    module: Any = importlib.import_module(JOB[bench.job].module)
    begun = False
    try:
        with module.ground(bench) as ground:
            begun = True
            for case in bench.cases:
                _run_case(module, ground, bench, case)
    except Exception as error:  # noqa: BLE001  the driver must learn why nothing came
        traceback.print_exc()
        for name in [bench.job] if begun else [case.name for case in bench.cases]:
            tell(failed=name, text=_tail(error))


def _run_case(module: JobModule, ground: object, bench: Bench, case: Case) -> None:
    name, left = case.name, bench.ends_at - time.time()
    needed = case.seconds / max(case.times, 1)  # what is done many times looks at the clock itself
    if not bench.quick and needed > left:
        tell(dropped=name, text=f"takes {needed:.0f} s, {left:.0f} s are left")
        return
    begin = time.time()
    try:
        module.CASES[name](ground)
    except Exception as error:  # noqa: BLE001  a case that fails must not cost the others
        traceback.print_exc()
        tell(failed=name, text=_tail(error))
    tell(case=name, seconds=round(time.time() - begin, 1))


def _tail(error: Exception) -> str:
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return " / ".join(line.strip() for line in lines[-TAIL:])[-600:]


def _leave(*_: object) -> None:
    sys.exit(1)  # through every `finally`: a deployment under way is stopped


def main() -> None:
    """Command line of the driver's child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=JOB, required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--shape", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--keep", type=Path, default=Path("build/gpu"))
    parser.add_argument("--ends-at", type=float, default=time.time() + 3600)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cases = tuple(case for case in chosen(options.cases) if case.job == options.job)
    bench = Bench(options.job, options.shape, options.device, options.scratch, cases, options.ends_at, options.keep)
    begin = time.time()
    run(bench)
    tell(job=options.job, seconds=round(time.time() - begin, 1))


if __name__ == "__main__":
    main()
