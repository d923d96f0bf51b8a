"""Random faults, one after another, each written down with its time: the part of a soak that does harm.

Only what a cluster would do to a deployment: the router is stopped for moments but never killed, because the clients of
a killed router have lost their connection whatever Bireme does.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import inject, network
from tests.faults.parts import Part, address_of, parts
from tests.support.deployment import Deployment

KILLED = ("rank", "supervisor", "coordinator", "http", "spare")
STOPPED = ("rank", "supervisor", "coordinator", "http")
BRIEFLY_S = (0.2, 1.5)
NETWORK_S = (0.5, 3.0)
RATE = "4mbit"
LONG_S = (3.0, 7.5)
"""Longer than a rank may be silent (2.5 s), and around the limit at which it is killed (5 s)."""


@dataclass
class Chaos:
    """Does one random fault per ``strike``; everything random comes from ``dice``.

    ``own_network``: the loopback device is ours alone. ``disk``: the run directory is a small file system of its own.
    """

    deployment: Deployment
    dice: random.Random
    own_network: bool = False
    disk: Path | None = None
    done: list[tuple[float, str]] = field(default_factory=list)

    def strike(self) -> None:
        """One fault, now; a target that is gone already costs nothing."""
        faults: dict[Callable[[], str], int] = {
            self._kill: 8,
            self._kill_two: 2,
            self._stop_long: 2,
            self._stop_briefly: 3,
            self._cut: 3,
            self._stop_router: 1,
            self._spoil_network: 2 if self.own_network else 0,
            self._fill_disk: 2 if self.disk is not None else 0,
        }
        (fault,) = self.dice.choices(list(faults), weights=list(faults.values()))
        at = time.monotonic()
        what = fault()
        if what:
            self.done.append((at, what))

    def _pick(self, roles: tuple[str, ...], count: int = 1) -> list[Part]:
        """Roles come up equally often, however many processes each has."""
        found = parts(self.deployment)
        picked: list[Part] = []
        for role in self.dice.choices(roles, k=count):
            some = [part for part in found if part.role == role]
            if some:
                picked.append(self.dice.choice(some))
        return picked

    def _kill(self) -> str:
        return ", ".join(f"killed {part}" for part in self._pick(KILLED) if inject.kill(part))

    def _kill_two(self) -> str:
        return ", ".join(f"killed {part}" for part in self._pick(KILLED, 2) if inject.kill(part))

    def _stop_long(self) -> str:
        return self._stop(STOPPED, LONG_S)

    def _stop_briefly(self) -> str:
        return self._stop(STOPPED, BRIEFLY_S)

    def _stop_router(self) -> str:
        return self._stop(("router",), BRIEFLY_S)

    def _stop(self, roles: tuple[str, ...], bounds: tuple[float, float]) -> str:
        seconds = self.dice.uniform(*bounds)
        for part in self._pick(roles):
            inject.stop_for(part, seconds)
            return f"stopped {part} for {seconds:.1f} s"
        return ""

    def _spoil_network(self) -> str:
        seconds = self.dice.uniform(*NETWORK_S)
        with network.bad("lo", rate=RATE):
            time.sleep(seconds)
        return f"delayed and dropped packets for {seconds:.1f} s"

    def _fill_disk(self) -> str:
        """Somebody is killed meanwhile: what is started again finds no room either."""
        assert self.disk is not None
        ballast = inject.fill(self.disk)
        try:
            killed = self._kill()
            time.sleep(self.dice.uniform(*BRIEFLY_S))
        finally:
            ballast.unlink()
        return f"filled the disk, {killed}"

    def _cut(self) -> str:
        leaders = [pod for pod in parts(self.deployment) if pod.role == "supervisor"]
        if not leaders:
            return ""
        place = self.dice.choice(leaders)
        kind = self.dice.choice((inject.PLAN, inject.CONTROL, inject.DATA))
        count = inject.cut(address_of(self.deployment, place.group, place.stage), kind)
        return f"cut {count} {kind} connections of group {place.group} stage {place.stage}" if count else ""
