"""The status is written on the version that is known: what somebody else wrote meanwhile is seen, and never overwritten."""

from typing import Any

import pytest

from bireme.api.status import Condition, ConditionStatus, Status
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import Conflict, Refused, Unavailable
from bireme_operator.kube.resources import Resource
from bireme_operator.plan.memory import Memory
from bireme_operator.render.owned import Owner
from bireme_operator.shell.errands import Errands
from bireme_operator.shell.notes import read_memory
from bireme_operator.shell.status_writer import Found, Overtaken, StatusWriter

FIRST = Memory(floor=1)


class Server(Kube):
    """An API server that keeps one object. ``unheard``: it does what it is asked and fails to say so."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {"metadata": {"uid": "uid", "resourceVersion": "1"}, "status": {}}
        self.unheard = False
        self.lacks: set[str] = set()

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        return self.body

    async def apply_status(self, manifest: dict[str, Any]) -> dict[str, Any]:
        meta = manifest["metadata"]
        if meta["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        for name in sorted(self.lacks & manifest["status"].keys()):
            raise Unavailable(
                f"HTTP 500: failed to create typed patch object (…): .status.{name}: field not declared in schema"
            )
        self.touch(manifest["status"])
        if self.unheard:
            raise Unavailable("the answer was lost")
        return self.body

    def touch(self, status: dict[str, Any] | None = None) -> None:
        """Let the object change."""
        version = str(int(self.body["metadata"]["resourceVersion"]) + 1)
        meta = {**self.body["metadata"], "resourceVersion": version}
        self.body = {"metadata": meta, "status": self.body["status"] if status is None else status}

    @property
    def memory(self) -> Memory:
        return read_memory(self.body["status"].get("memory", ""))


def writer(server: Server) -> StatusWriter:
    owner = Owner("demo", "default", "uid")
    return StatusWriter(server, owner, lambda: 0.0, Errands(lambda: None), Found.of(server.body))


def status(restart: str = "") -> Status:
    now = "2026-11-28T12:00:00Z"
    ready = Condition(type="Ready", status=ConditionStatus.TRUE, reason="AllGroupsServing", last_transition_time=now)
    return Status(conditions=(ready,), restart=restart)


async def test_a_change_of_somebody_else_is_no_obstacle() -> None:
    server = Server()
    written = writer(server)
    await written.write(status(), FIRST)
    server.touch()
    await written.write(status("again"), Memory(floor=2))
    assert server.memory == Memory(floor=2)


async def test_what_another_operator_has_written_is_never_overwritten() -> None:
    server = Server()
    written = writer(server)
    other = writer(server)
    await other.write(status(), Memory(floor=9))
    with pytest.raises(Overtaken):
        await written.write(status(), FIRST)
    assert server.memory == Memory(floor=9)
    await writer(server).write(status(), FIRST)
    assert server.memory == FIRST, "one that has read it goes on from there"


async def test_a_write_whose_answer_was_lost_is_known_as_one_s_own() -> None:
    server = Server()
    written = writer(server)
    server.unheard = True
    with pytest.raises(Unavailable):
        await written.write(status(), FIRST)
    server.unheard = False
    await written.write(status(), Memory(floor=2))
    assert server.memory == Memory(floor=2)


async def test_fields_that_the_crd_lacks_are_left_out_and_named_until_it_has_them() -> None:
    server = Server()
    server.lacks = {"restart", "topology"}
    written = writer(server)
    await written.write(status("now"), FIRST)
    assert server.memory == FIRST
    assert server.lacks.isdisjoint(server.body["status"])
    told = server.body["status"]["conditions"][0]
    assert (told["status"], told["reason"]) == ("True", "AllGroupsServing")
    assert told["message"].startswith("the CRD is older than the operator and lacks status.restart, status.topology")
    server.lacks = set()
    written.try_all_fields()
    written.clock = lambda: 100.0
    written.offer(status("now"), FIRST)
    await written.errands.finish("status")
    assert server.body["status"]["restart"] == "now"
    assert "older" not in str(server.body["status"]["conditions"])


async def test_without_its_memory_an_operator_does_not_act() -> None:
    server = Server()
    server.lacks = {"memory"}
    with pytest.raises(Unavailable, match=r"status\.memory"):
        await writer(server).write(status(), FIRST)
    assert not issubclass(Overtaken, Refused), "it is tried again"
