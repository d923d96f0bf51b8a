"""Which cases there are, what each costs, and which fit into the time of one call. No torch here.

Cases of one job share a process and what it has loaded. A job starts once; its cases then cost what they say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Job:
    """One process. ``seconds``: until its first case begins. ``cpu``: what it needs is there without a GPU."""

    name: str
    module: str
    gpus: int
    seconds: float
    cpu: bool = True


@dataclass(frozen=True)
class Case:
    """``value``: what is lost when it is left out, for choosing. ``needs_gpu``: where its job does not.

    ``times``: how often it does what it measures, where that can be chosen.
    """

    name: str
    job: str
    seconds: float
    value: int
    needs_gpu: bool = False
    times: int = 0

    @property
    def line(self) -> str:
        """The issue's name: letters behind the number tell its parts."""
        return self.name.rstrip("fghiptu")

    @property
    def text(self) -> str:
        """What ``chosen`` takes for it."""
        return f"{self.name}:{self.times}" if self.times else self.name

    def done(self, times: int) -> "Case":
        """So many times; a case that is done once stays as it is."""
        return replace(self, seconds=self.seconds / self.times * times, times=times) if self.times else self

    def is_part_of(self, name: str) -> bool:
        """Whether ``name`` means it: its own, or what is left when letters are taken from its end."""
        return self.name == name or (self.name.startswith(name) and self.name[len(name) :].isalpha())


JOBS: Final[tuple[Job, ...]] = (
    Job("solo", "benchmarks.gpu.jobs_solo", 1, 40),
    Job("small", "benchmarks.gpu.jobs_small", 1, 25),
    Job("kernels", "benchmarks.gpu.jobs_kernels", 1, 12, cpu=False),
    Job("served", "benchmarks.gpu.jobs_served", 1, 30),
    Job("reduce", "benchmarks.gpu.jobs_reduce", 2, 20, cpu=False),
    Job("tensor", "benchmarks.gpu.jobs_group", 2, 35),
    Job("pipeline", "benchmarks.gpu.jobs_group", 2, 35),
    Job("large", "benchmarks.gpu.jobs_large", 2, 10),
    Job("kill-tensor", "benchmarks.gpu.jobs_kill", 2, 45),
    Job("kill-pipeline", "benchmarks.gpu.jobs_kill", 2, 45),
    Job("two", "benchmarks.gpu.jobs_split", 2, 10),
    Job("four", "benchmarks.gpu.jobs_split", 4, 10),
    Job("reduce-four", "benchmarks.gpu.jobs_reduce", 4, 25, cpu=False),
    Job("kill-four", "benchmarks.gpu.jobs_kill", 4, 60),
    Job("kill-shared", "benchmarks.gpu.jobs_kill", 2, 60),
)
CASES: Final[tuple[Case, ...]] = (
    Case("A1", "solo", 6, 100),
    Case("A10", "solo", 4, 40, needs_gpu=True),
    Case("A2u", "solo", 22, 95),
    Case("A2f", "solo", 55, 88),
    Case("A3", "solo", 25, 90),
    Case("A4", "solo", 60, 60),
    Case("A5", "small", 25, 70),
    Case("A14", "kernels", 15, 45),
    Case("A11", "served", 80, 75),
    Case("A3h", "served", 35, 80),
    Case("A12", "served", 70, 65),
    Case("P1", "served", 25, 63),
    Case("A9", "reduce", 10, 50),
    Case("A7", "tensor", 25, 85),
    Case("A8", "pipeline", 55, 84),
    Case("A6i", "large", 55, 55),
    Case("A6f", "large", 55, 42),
    Case("A6p", "large", 55, 5, needs_gpu=True),
    Case("A13tg", "kill-tensor", 100, 61, times=10),
    Case("A13tp", "kill-tensor", 100, 62, times=10),
    Case("A13pg", "kill-pipeline", 100, 60, times=10),
    Case("A13pp", "kill-pipeline", 100, 60, times=10),
    Case("M1", "four", 50, 59),
    Case("M2", "four", 75, 54),
    Case("M3p", "four", 65, 58),
    Case("M3t", "four", 65, 57),
    Case("M5t", "four", 90, 53),
    Case("M5p", "four", 90, 52),
    Case("M7h", "four", 40, 43),
    Case("M7g", "four", 50, 43),
    Case("H2", "two", 75, 54),
    Case("H3", "two", 60, 48),
    Case("H5t", "two", 90, 53),
    Case("H5p", "two", 90, 44),
    Case("H7", "two", 60, 43),
    Case("M4", "reduce-four", 12, 56),
    Case("M6g", "kill-four", 100, 51, times=10),
    Case("M6p", "kill-four", 100, 51, times=10),
    Case("H6g", "kill-shared", 100, 47, times=5),
    Case("H6p", "kill-shared", 100, 46, times=5),
)
JOB: Final[Mapping[str, Job]] = {job.name: job for job in JOBS}
CASE: Final[Mapping[str, Case]] = {case.name: case for case in CASES}


class UnknownCase(Exception):
    """The message lists what there is."""


def chosen(text: str, times: int = 0) -> list[Case]:
    """The cases of a comma-separated list; `all`. Letters may be left out: A3 takes A3 and A3h, A13t A13tg and A13tp.

    ``A13tp:8`` is done eight times; where nothing is said, ``times`` counts, and 0 is the case's own number.

    Raises:
        UnknownCase: one of them is none.
    """
    if text == "all":
        return [case.done(times or case.times) for case in CASES]
    found: dict[str, Case] = {}
    for one in text.split(","):
        found |= {case.name: case for case in _meant(one, times) if case.name not in found}
    return list(found.values())


def _meant(text: str, times: int) -> list[Case]:
    name, _, number = text.partition(":")
    wanted = int(number) if number.isdecimal() else times
    matching = [case for case in CASES if case.is_part_of(name)]
    countable = number.isdecimal() and wanted and all(case.times for case in matching)
    if not matching or (number and not countable):
        raise UnknownCase(f"there is no case {text}: take all, or some of {', '.join(CASE)}")
    return [case.done(wanted or case.times) for case in matching]


def able(cases: Sequence[Case], gpus: int) -> list[Case]:
    """What this many GPUs can run; without one, what a CPU can."""
    if gpus:
        return [case for case in cases if JOB[case.job].gpus <= gpus]
    return [case for case in cases if JOB[case.job].cpu and not case.needs_gpu]


def needs(case: Case) -> str:
    """How many GPUs."""
    count = JOB[case.job].gpus
    return "1 GPU" if count == 1 else f"{count} GPUs"


@dataclass(frozen=True)
class Task:
    """A process of the plan: a job with some of its cases, or a peer (``job`` None)."""

    name: str
    gpus: int
    seconds: float
    job: Job | None = None
    cases: tuple[Case, ...] = ()


def tasks_of(cases: Iterable[Case]) -> list[Task]:
    """The jobs that these cases need."""
    wanted = list(cases)
    tasks = []
    for job in JOBS:
        own = tuple(case for case in wanted if case.job == job.name)
        if own:
            tasks.append(Task(job.name, job.gpus, job.seconds + sum(case.seconds for case in own), job, own))
    return tasks


def lanes_of(tasks: Sequence[Task], gpus: int) -> tuple[list[list[Task]], list[Task]]:
    """Tasks of one GPU, side by side where there are several, then tasks of two, one after another.

    Peers have a GPU of their own, so that ours are measured under the same conditions with and without them.
    """
    alone, together = [task for task in tasks if task.gpus == 1], [task for task in tasks if task.gpus > 1]
    ours, peers = [task for task in alone if task.job], [task for task in alone if not task.job]
    if gpus < 2:
        return [ours + peers], together
    if peers:
        return [ours, peers], together
    lanes: list[list[Task]] = [[], []]
    for task in sorted(ours, key=lambda one: -one.seconds):
        min(lanes, key=_length).append(task)
    return lanes, together


def length(tasks: Sequence[Task], gpus: int) -> float:
    """Seconds that these tasks take."""
    lanes, together = lanes_of(tasks, gpus)
    return max(map(_length, lanes)) + _length(together)


def _length(tasks: Sequence[Task]) -> float:
    return sum(task.seconds for task in tasks)


def fitting(cases: Sequence[Case], peers: Sequence[Task], gpus: int, limit_s: float) -> tuple[list[Case], list[Case]]:
    """What fits into ``limit_s``, and what is left out: the least valuable first, and only what helps."""
    kept, left = list(cases), []
    while kept and (now := length([*tasks_of(kept), *peers], gpus)) > limit_s:
        helping = [
            case for case in kept if length([*tasks_of(one for one in kept if one is not case), *peers], gpus) < now
        ]
        if not helping:  # the peers alone take too long
            break
        worst = min(helping, key=lambda case: case.value)
        kept.remove(worst)
        left.append(worst)
    return kept, left
