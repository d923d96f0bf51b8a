"""One operator acts at a time: whoever holds the Lease. The others watch and are warm.

The holder renews the Lease every few seconds. One that could not for too long must not write any more, even if it only
slept: ``may_write`` is asked before every write, and ``run`` ends, which ends the process. Others count the Lease as
free when it has not changed for its duration by their own clock, so clocks need not agree.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from bireme_operator.kube.resources import LEASES

log = logging.getLogger(__name__)

_RETRY_SHARE: Final = 2 / 15
_DEADLINE_SHARE: Final = 10 / 15


class LostLease(Exception):
    """Another process may act now: this one must end."""


@dataclass(frozen=True)
class Candidate:
    """Who stands for which Lease. ``duration_s`` is how long the others wait for a holder that has fallen silent."""

    namespace: str
    name: str
    identity: str
    duration_s: int = 15


class Election:
    """See the module. ``clock`` is monotonic, in seconds."""

    def __init__(self, kube: Kube, candidate: Candidate, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._who = candidate
        self._clock = clock
        self._renewed_at = float("-inf")
        self._seen: tuple[str, float] = ("", float("-inf"))
        self.won = asyncio.Event()
        """Set from the moment this process may act."""

    def may_write(self) -> None:
        """Return while this process holds the Lease.

        Raises:
            LostLease: it does not, or can't be sure.
        """
        if self._clock() - self._renewed_at >= self._who.duration_s * _DEADLINE_SHARE:
            raise LostLease(f"the Lease {self._who.namespace}/{self._who.name} is not held by {self._who.identity}")

    async def run(self) -> None:
        """Stand for the Lease, then hold it.

        Raises:
            LostLease: it was held and is not any more.
        """
        while not await self._try():  # noqa: ASYNC110  # what is waited for happens in the cluster
            await asyncio.sleep(self._who.duration_s * _RETRY_SHARE)
        log.info("%s holds the Lease %s/%s", self._who.identity, self._who.namespace, self._who.name)
        self.won.set()
        while True:
            await asyncio.sleep(self._who.duration_s * _RETRY_SHARE)
            await self._try()
            self.may_write()

    async def release(self) -> None:
        """Let another process act at once."""
        if not self.won.is_set():
            return
        try:
            lease = await self._kube.get(LEASES, self._who.namespace, self._who.name)
            if lease["spec"].get("holderIdentity") == self._who.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.replace(lease)
        except KubeError as error:
            log.info("the Lease could not be released, it runs out by itself: %s", error)

    async def _try(self) -> bool:
        """Take or renew the Lease; whether it is held now."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._who.duration_s * _DEADLINE_SHARE / 2):
                held = await self._take()
        except (KubeError, TimeoutError) as error:
            log.warning("the Lease could not be renewed: %s", str(error) or "no answer in time")
            return False
        if held:
            self._renewed_at = began  # the answer came later, but the server may have counted from here
        return held

    async def _take(self) -> bool:
        try:
            lease = await self._kube.get(LEASES, self._who.namespace, self._who.name)
        except NotFound:
            return await self._write(self._kube.create, self._new())
        if not self._is_free(lease):
            self._renewed_at = float("-inf")  # that another one acts is known now: no more is written from here
            return False
        holder = lease["spec"].get("holderIdentity")
        spec = lease["spec"] | {"renewTime": _now(), "leaseDurationSeconds": self._who.duration_s}
        if holder != self._who.identity:
            transitions = int(spec.get("leaseTransitions") or 0) + 1
            spec |= {"holderIdentity": self._who.identity, "acquireTime": _now(), "leaseTransitions": transitions}
        return await self._write(self._kube.replace, lease | {"spec": spec})

    def _is_free(self, lease: dict[str, Any]) -> bool:
        spec = lease["spec"]
        if spec.get("holderIdentity") in {"", None, self._who.identity}:
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = version, self._clock()
        return self._clock() - self._seen[1] >= float(spec.get("leaseDurationSeconds") or self._who.duration_s)

    async def _write(self, write: Callable[[dict[str, Any]], Any], lease: dict[str, Any]) -> bool:
        try:
            await write(lease)
        except (Conflict, AlreadyExists):
            return False  # another process was quicker
        return True

    def _new(self) -> dict[str, Any]:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._who.name, "namespace": self._who.namespace},
            "spec": {
                "holderIdentity": self._who.identity,
                "leaseDurationSeconds": self._who.duration_s,
                "acquireTime": _now(),
                "renewTime": _now(),
                "leaseTransitions": 0,
            },
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
