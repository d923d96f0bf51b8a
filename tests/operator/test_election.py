"""The Lease: whoever sees that another one holds it ends at once, however long its own turn would have lasted."""

import asyncio
from typing import Any

import pytest

from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import NotFound
from bireme_operator.shell.election import Candidate, Election, LostLease


class Server(Kube):
    """An API server that keeps one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound("no Lease")
        return self.lease

    async def create(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        return self.keep(manifest)

    async def replace(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        return self.keep(manifest)

    def keep(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = lease | {"metadata": lease["metadata"] | {"resourceVersion": str(self.version)}}
        return self.lease

    def give_to(self, identity: str) -> None:
        assert self.lease is not None
        self.keep(self.lease | {"spec": self.lease["spec"] | {"holderIdentity": identity}})


async def test_who_sees_another_holder_writes_nothing_more_and_ends() -> None:
    server = Server()
    # Its clock stands still: by that it would hold the Lease for ever.
    election = Election(server, Candidate("ns", "operator", "first", duration_s=1), lambda: 0.0)
    running = asyncio.create_task(election.run())
    await election.won.wait()
    election.may_write()
    server.give_to("second")
    async with asyncio.timeout(60):
        with pytest.raises(LostLease):
            await running
    with pytest.raises(LostLease):
        election.may_write()


async def test_a_lease_that_somebody_has_deleted_is_taken_again() -> None:
    server = Server()
    election = Election(server, Candidate("ns", "operator", "first", duration_s=1), lambda: 0.0)
    running = asyncio.create_task(election.run())
    await election.won.wait()
    server.lease = None
    async with asyncio.timeout(60):
        while server.lease is None:
            await asyncio.sleep(0)
    election.may_write()
    running.cancel()
