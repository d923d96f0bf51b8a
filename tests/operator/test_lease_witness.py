"""A node's Lease as a witness: still for long enough, read at all, and not alone in standing still."""

from typing import Any

from bireme_operator.kube.errors import NotFound, Unavailable
from bireme_operator.shell.nodes import Nodes


class Leases:
    """The API server as far as Leases go."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {"a": 1, "b": 1, "c": 1}
        self.sick = False

    async def get(self, _resource: object, _namespace: str, name: str) -> dict[str, Any]:
        if self.sick:
            raise Unavailable("out of reach")
        if name not in self.versions:
            raise NotFound(name)
        meta = {"resourceVersion": str(self.versions[name])}
        return {"metadata": meta, "spec": {"leaseDurationSeconds": 40}}


class Watch:
    """Looks once a second on a clock of its own, in doubt about node a."""

    def __init__(self) -> None:
        self.now = 0.0
        self.leases = Leases()
        kube: Any = self.leases
        self.nodes = Nodes(kube, lambda: self.now)

    async def look(self, seconds: int, renewing: str = "bc") -> None:
        for _ in range(seconds):
            self.now += 1
            for name in renewing:
                self.leases.versions[name] += 1
            self.nodes.doubt(["a"], ["b", "c"], lambda: None)
            await self.nodes.look()


async def test_a_lease_that_stands_still_long_enough_means_loss() -> None:
    watch = Watch()
    await watch.look(16)
    assert not watch.nodes.lost("a", 20)
    await watch.look(1)
    assert watch.nodes.lost("a", 20)


async def test_one_renewal_is_life() -> None:
    watch = Watch()
    await watch.look(16)
    await watch.look(1, renewing="abc")
    await watch.look(10)
    assert not watch.nodes.lost("a", 20)


async def test_the_bound_is_never_shorter_than_what_a_kubelet_needs_to_renew() -> None:
    watch = Watch()
    await watch.look(15)
    assert not watch.nodes.lost("a", 5)
    await watch.look(1)
    assert watch.nodes.lost("a", 5)


async def test_when_the_others_stand_still_too_the_fault_is_elsewhere() -> None:
    watch = Watch()
    await watch.look(60, renewing="")
    assert not watch.nodes.lost("a", 20)


async def test_what_can_t_be_read_is_not_dead() -> None:
    watch = Watch()
    await watch.look(30)
    watch.leases.sick = True
    await watch.look(1)
    assert not watch.nodes.lost("a", 20)


async def test_a_node_that_nobody_doubts_is_never_lost() -> None:
    watch = Watch()
    await watch.look(30)
    assert not watch.nodes.lost("b", 20)


async def test_a_node_without_a_lease_is_gone() -> None:
    watch = Watch()
    del watch.leases.versions["a"]
    await watch.look(1)
    assert watch.nodes.lost("a", 20)
