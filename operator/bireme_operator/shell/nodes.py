"""The second witness of a node's death: its Lease, which a living kubelet renews every few seconds.

Only Leases of nodes in doubt are read, once a second, and a few others beside them: when those stand still too, it is
the API server or our way to it that is sick, and nothing is declared. Time is our own clock's, from the first read.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import KubeError, NotFound
from bireme_operator.kube.resources import LEASES

log = logging.getLogger(__name__)

_NAMESPACE: Final = "kube-node-lease"
_EVERY_S: Final = 1.0
_FORGET_S: Final = 5.0
_CONTROLS: Final = 8
_RENEWALS: Final = 4
"""A kubelet renews its Lease this often in a lease duration."""
_GONE: Final = float("inf")


@dataclass
class _Lease:
    """What is known of one Lease. ``since`` is when this version was first read."""

    version: str
    since: float
    read_at: float
    renewal_s: float

    def still_for(self) -> float:
        return self.read_at - self.since


@dataclass
class Nodes:
    """See the module."""

    kube: Kube
    clock: Callable[[], float]
    _doubted: dict[str, tuple[float, frozenset[Callable[[], None]]]] = field(default_factory=dict)
    _others: dict[str, None] = field(default_factory=dict)
    _leases: dict[str, _Lease] = field(default_factory=dict)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def doubt(self, nodes: Iterable[str], others: Iterable[str], changed: Callable[[], None]) -> None:
        """Read the Leases of ``nodes`` for a while, some of ``others`` to compare, and call ``changed`` each time."""
        for node in nodes:
            _, callers = self._doubted.get(node, (0.0, frozenset()))
            self._doubted[node] = (self.clock() + _FORGET_S, callers | {changed})
            self._wanted.set()
        self._others = dict.fromkeys(list({**dict.fromkeys(others), **self._others})[:_CONTROLS])

    def lost(self, node: str, after_s: float) -> bool:
        """Whether the Lease of a node in doubt has stood still for so long that its kubelet must be gone.

        ``after_s`` is `nodeLostAfterSeconds`: the first witness needs some of it, four seconds in all.
        """
        lease = self._leases.get(node)
        if lease is None or node not in self._doubted or self._all_stand_still():
            return False
        return lease.still_for() >= max(1.5 * lease.renewal_s, after_s - 4.0)

    async def run(self) -> None:
        """Read Leases for as long as any node is in doubt."""
        while True:
            await self._wanted.wait()
            await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Read every Lease that is wanted now."""
        now = self.clock()
        self._doubted = {node: doubt for node, doubt in self._doubted.items() if doubt[0] > now}
        if not self._doubted:
            self._leases.clear()
            self._wanted.clear()
            return
        await asyncio.gather(*(self._read(node) for node in {**self._doubted, **self._others}))
        for changed in frozenset().union(*(callers for _, callers in self._doubted.values())):
            changed()

    async def _read(self, node: str) -> None:
        try:
            lease = await self.kube.get(LEASES, _NAMESPACE, node)
        except NotFound:
            self._leases[node] = _Lease("", -_GONE, self.clock(), 0.0)
            return
        except KubeError as error:
            log.info("the Lease of node %s can't be read, so nothing is known of it: %s", node, error)
            self._leases.pop(node, None)
            return
        now, version = self.clock(), str(lease["metadata"]["resourceVersion"])
        known = self._leases.get(node)
        since = known.since if known is not None and known.version == version else now
        renewal = float(lease["spec"].get("leaseDurationSeconds") or 40) / _RENEWALS
        self._leases[node] = _Lease(version, since, now, renewal)

    def _all_stand_still(self) -> bool:
        """Whether most of the Leases that nobody doubts stand still as well."""
        others = [self._leases[node] for node in self._others if node in self._leases and node not in self._doubted]
        still = sum(lease.still_for() >= 1.5 * lease.renewal_s for lease in others)
        return len(others) >= 2 and still > len(others) / 2
