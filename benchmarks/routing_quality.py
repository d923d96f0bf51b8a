"""How well the router chooses, counted over all offered requests: balance, prefixes, overload.

The router's own groups, waiting room and policies run as they are, against simulated groups on a virtual clock
(`simulated_groups`), so two runs give the same figures to the last digit. Compared are placement at random and by power
of two choices without prefixes, which differ in nothing else. Several seeds are run, none of which the policies'
constants were tuned on, and the worst of them is held against the aims. Last line: JSON with the medians.
"""

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.simulated_groups import Call, Curve, SimulatedGroup, VirtualLoop
from bireme.wire.routes import Routes
from bireme_router.accounts import Accounts
from bireme_router.affinity import Trail
from bireme_router.errors import NotTaken
from bireme_router.groups import Groups
from bireme_router.policies.cost import Cost
from bireme_router.policies.placement import Candidate, Price, place
from bireme_router.policies.prefix_credit import chain
from bireme_router.policies.priority import Priority
from bireme_router.room import WaitingRoom
from bireme_router.selection import Policy, Selection, Wish

UPDATE_S: Final = 1.0
PATIENCE_S: Final = 10.0
WARM_UP_S: Final = 15.0
TTFT_LIMIT_S: Final = {Priority.INTERACTIVE: 2.0, Priority.STANDARD: 15.0, Priority.BATCH: 60.0}
"""What counts as served: a first token later than that is no use to anybody."""


@dataclass(frozen=True)
class Kind:
    """One kind of request; ``prefixes`` different beginnings of ``shared`` tokens."""

    share: float
    priority: Priority
    prompt: int
    output: int
    prefixes: int = 0
    shared: int = 0


@dataclass
class Answered:
    """How one offered request went; ``ttft`` infinite: refused."""

    kind: Kind
    came: float
    ttft: float

    @property
    def good(self) -> bool:
        """Whether it counts."""
        return self.ttft <= TTFT_LIMIT_S[self.kind.priority]


@dataclass(frozen=True)
class Load:
    """What is offered: ``rate`` requests per second for ``seconds``."""

    kinds: tuple[Kind, ...]
    rate: float
    seconds: float = 60.0
    groups: int = 8
    routers: int = 1
    policy: Policy = place
    prefixes_known: bool = True
    queued: int = 1024


class Router:
    """One router's view and queue."""

    def __init__(self, groups: Sequence[SimulatedGroup], load: Load, seed: int) -> None:
        clock = asyncio.get_running_loop().time
        self.view = Groups(Accounts(), clock)
        self.selection = Selection(self.view, clock, random.Random(seed).random, load.policy)
        self.room = WaitingRoom(self.selection, load.queued)
        self.view.apply(Routes(1, ("m",), tuple(group.route for group in groups)), {})
        self.hear(groups, 0)

    def hear(self, groups: Sequence[SimulatedGroup], seq: int) -> None:
        """Every leader tells its state, and the router looks over its accounts."""
        for group in groups:
            self.view.heard(group.route, group.document(seq))
        self.view.abandon_lost()


class Run:
    """One load on a fresh fleet."""

    def __init__(self, load: Load, seed: int) -> None:
        self._load = load
        self._random = random.Random(seed)
        self._groups = [SimulatedGroup(index, Curve()) for index in range(load.groups)]
        self._routers = [Router(self._groups, load, seed + index) for index in range(load.routers)]
        self._clock = asyncio.get_running_loop().time
        self.answered: list[Answered] = []
        self.balance: list[float] = []
        self._serial = 0

    async def finish(self) -> "Run":
        """Offer the whole load and wait for the last answer."""
        background = [asyncio.create_task(group.run()) for group in self._groups]
        background += [asyncio.create_task(self._update()), asyncio.create_task(self._watch_balance())]
        requests = []
        while self._clock() < self._load.seconds:
            await asyncio.sleep(self._random.expovariate(self._load.rate))
            kind = self._random.choices(self._load.kinds, [kind.share for kind in self._load.kinds])[0]
            requests.append(asyncio.create_task(self._ask(kind, self._random.choice(self._routers))))
        await asyncio.gather(*requests)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        return self

    @property
    def goodput(self) -> float:
        """Good output tokens per second, of requests offered after the warm-up."""
        tokens = sum(one.kind.output for one in self._counted() if one.good)
        return tokens / (self._load.seconds - WARM_UP_S)

    @property
    def good_share(self) -> float:
        """Share of offered requests that were good."""
        return statistics.fmean(one.good for one in self._counted())

    def ttft_p99(self, priority: Priority) -> float:
        """Over all offered requests of a class, refused ones as infinite."""
        times = sorted(one.ttft for one in self._counted() if one.kind.priority is priority)
        return times[int(0.99 * (len(times) - 1))]

    def _counted(self) -> list[Answered]:
        return [one for one in self.answered if one.came >= WARM_UP_S]

    async def _ask(self, kind: Kind, router: Router) -> None:
        came = self._clock()
        prefix, trail = self._prompt(kind)
        cost = Cost(kind.prompt, kind.output)
        wish = Wish(cost, None, {}, kind.priority, kind.priority.name, trail, PATIENCE_S)
        try:
            async with asyncio.timeout(PATIENCE_S):
                lease = await router.room.take(wish, begun=False)
        except (NotTaken, TimeoutError):
            self.answered.append(Answered(kind, came, float("inf")))
            return
        group = self._groups[int(lease.where.group)]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = Call(prefix, kind.shared, kind.prompt, kind.output, lease, done)
        lease.opened(kind.prompt)
        group.submit(call)
        await done
        router.view.affinity.verified(lease.key, round(lease.predicted_share * kind.prompt), call.cached)
        lease.release()
        self.answered.append(Answered(kind, came, call.first_at - came))

    def _prompt(self, kind: Kind) -> tuple[int, Trail]:
        self._serial += 1
        prefix = self._random.randrange(kind.prefixes) if kind.prefixes else -self._serial
        if not self._load.prefixes_known:
            return prefix, Trail()
        shared = b"%12d" % prefix * (kind.shared // 3)
        own = b"%12d" % self._serial * ((kind.prompt - kind.shared) // 3)
        return prefix, Trail(chain(shared + own), len(shared) + len(own))

    async def _update(self) -> None:
        seq = 0
        while True:
            await asyncio.sleep(UPDATE_S)
            seq += 1
            for router in self._routers:
                router.hear(self._groups, seq)

    async def _watch_balance(self) -> None:
        """Between two updates: each group's mean load in that second, the largest over the mean of all."""
        while True:
            sums = [0.0] * len(self._groups)
            for _ in range(20):
                await asyncio.sleep(UPDATE_S / 20)
                sums = [total + group.load for total, group in zip(sums, self._groups, strict=True)]
            if WARM_UP_S < self._clock() < self._load.seconds and max(sums) > 0:
                self.balance.append(max(sums) / statistics.fmean(sums))


def at_random(candidates: Sequence[Candidate], _price: Callable[[int], Price], draws: tuple[float, float]) -> int:
    """The baseline: any usable group."""
    return int(draws[0] * len(candidates))


def run(load: Load, seed: int) -> Run:
    """One run on its own clock."""

    async def whole() -> Run:
        return await Run(load, seed).finish()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(whole())


CHAT: Final = Kind(1.0, Priority.STANDARD, prompt=512, output=128)
SHARED: Final = Kind(1.0, Priority.STANDARD, prompt=7200, output=128, prefixes=150, shared=6000)
MIXED: Final = (
    Kind(0.2, Priority.INTERACTIVE, prompt=512, output=64),
    Kind(0.6, Priority.STANDARD, prompt=2048, output=192),
    Kind(0.2, Priority.BATCH, prompt=4096, output=256),
)


def peak(load: Callable[[float], Load], rates: Sequence[float], seed: int) -> tuple[float, float]:
    """The best goodput over the rates, and at which it is."""
    return max((run(load(rate), seed).goodput, rate) for rate in rates)


def balance(seconds: float, seed: int) -> dict[str, float]:
    """Eight groups, two routers that know each other only through the leaders."""
    figures = {}
    for name, policy in (("random", at_random), ("router", place)):
        ordered = sorted(run(Load((CHAT,), rate=120.0, seconds=seconds, routers=2, policy=policy), seed).balance)
        figures[f"balance_{name}_mean"] = statistics.fmean(ordered)
        figures[f"balance_{name}_p95"] = ordered[int(0.95 * (len(ordered) - 1))]
    return figures


def prefixes(seconds: float, rates: Sequence[float], seed: int) -> dict[str, float]:
    """Long shared beginnings at the knee and beyond, then prompts that share nothing."""

    def shared(policy: Policy, known: bool) -> float:
        return peak(lambda rate: Load((SHARED,), rate, seconds, policy=policy, prefixes_known=known), rates, seed)[0]

    def short(known: bool) -> float:
        return peak(lambda rate: Load((CHAT,), rate, seconds, prefixes_known=known), (150.0, 220.0), seed)[0]

    figures = {"shared_random": shared(at_random, known=False), "shared_router": shared(place, known=True)}
    figures["shared_two_choices"] = shared(place, known=False)
    figures |= {"unshared_two_choices": short(known=False), "unshared_router": short(known=True)}
    figures["shared_gain"] = figures["shared_router"] / figures["shared_random"]
    figures["unshared_ratio"] = figures["unshared_router"] / figures["unshared_two_choices"]
    return figures


def overload(seconds: float, rates: Sequence[float], seed: int) -> dict[str, float]:
    """Three classes: the peak, twice the rate of the peak, and half of it."""
    best, rate = peak(lambda rate: Load(MIXED, rate, seconds), rates, seed)
    half, at_peak, twice = (run(Load(MIXED, share * rate, seconds), seed) for share in (0.5, 1.0, 2.0))
    return {
        "peak_rate": rate,
        "overload_goodput_ratio": twice.goodput / best,
        "interactive_p99_half": half.ttft_p99(Priority.INTERACTIVE),
        "interactive_p99_peak": at_peak.ttft_p99(Priority.INTERACTIVE),
        "interactive_p99_at_2x": twice.ttft_p99(Priority.INTERACTIVE),
        "good_share_at_2x": twice.good_share,
    }


def measured(seconds: float, seed: int) -> dict[str, float]:
    """Every figure with one seed: of arrivals, of prompts and of the routers' draws."""
    figures = balance(seconds, seed) | prefixes(seconds, (20.0, 40.0, 60.0), seed)
    return figures | overload(seconds, (50.0, 60.0, 70.0), seed)


LINES: Final[dict[str, tuple[bool, float]]] = {
    "balance_router_mean": (False, 1.3),
    "shared_gain": (True, 1.5),
    "unshared_ratio": (True, 0.99),
    "overload_goodput_ratio": (True, 0.95),
}
"""Figures that the worst seed is held against: whether more is better, and the line."""


def main() -> None:
    """Print every seed's figures, then the median and the worst of each; last line: JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--seeds", type=int, default=5, help="how many; none of them tuned any constant (%(default)s)")
    options = parser.parse_args()
    seeds = range(101, 101 + options.seeds)
    every: list[dict[str, float]] = []
    for seed in seeds:
        every.append(measured(35.0 if options.quick else 90.0, seed))
        print(f"seed {seed}:", {name: round(value, 3) for name, value in every[-1].items()}, flush=True)
    result: dict[str, Any] = {"seeds": len(every)}
    for name in every[0]:
        values = [figures[name] for figures in every]
        result[name] = round(statistics.median(values), 3)
        if name in LINES:
            more_is_better, line = LINES[name]
            worst = min(values) if more_is_better else max(values)
            result[f"{name}_worst"] = round(worst, 3)
            held = worst >= line if more_is_better else worst <= line
            print(f"{name}: worst {worst:.3f}, line {line:g}: {'held' if held else 'NOT HELD'}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
