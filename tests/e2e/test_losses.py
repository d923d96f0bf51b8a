"""What is lost under eight live streams: a node, a frozen one, one that its peers lose, a pod.

No stream notices, the other group is not touched.
"""

import time

from bireme.names import GroupState, Label
from tests.e2e.commands import run
from tests.e2e.conftest import TOKENS
from tests.e2e.ground import DEPLOYMENT, URL, Cluster, Place
from tests.e2e.times import Times
from tests.e2e.traffic import Traffic

DEEP = 160
"""Ids that have come in all when the fault is made: every stream is in its middle."""


class Watched:
    """A loss of stages of one group, seen from outside: when the group serves again, and that nobody else was touched."""

    def __init__(self, demo: Cluster, places: frozenset[Place]) -> None:
        self._demo = demo
        self._places = places
        (self._group,) = {group for group, _ in places}
        self.before = demo.uids()
        self._restarts = demo.restarts()
        self._epoch = demo.groups()[self._group]["epoch"]
        self._began = time.monotonic()

    def await_group(self, times: Times, within: float) -> None:
        """Wait until other pods are in the places and the group serves under a new epoch; the table has when."""
        where = " and ".join(f"stage {stage}" for _, stage in sorted(self._places))
        self._demo.eventually(self._made_anew, within)
        times.note(f"{where} made anew after", time.monotonic() - self._began)
        self._demo.eventually(self._serves, within)
        times.note("the group serves again after", time.monotonic() - self._began)

    def await_silence(self, times: Times, within: float) -> None:
        """Wait until the status says that the group does not serve."""
        self._demo.eventually(lambda: self._state() not in {"", GroupState.SERVING}, within)
        times.note("the status tells of it after", time.monotonic() - self._began)

    def await_same_group(self, times: Times, within: float) -> None:
        """Wait until the same pods, none of them started again, serve; the time is from now.

        Under a new epoch, unless all stages were on the same side: then they have lost nothing.
        """
        began = time.monotonic()
        self._demo.eventually(lambda: self._state() == GroupState.SERVING, within)
        times.note("mended, the group serves again after", time.monotonic() - began)
        split = self._places != {place for place in self.before if place[0] == self._group}
        assert self._epoch_is_new() is split
        assert (self._demo.uids(), self._demo.restarts()) == (self.before, self._restarts)

    def _state(self) -> str:
        return str(self._demo.groups().get(self._group, {}).get("state", ""))

    def _epoch_is_new(self) -> bool:
        return bool(self._demo.groups()[self._group].get("epoch") != self._epoch)

    def _made_anew(self) -> bool:
        now = self._demo.uids()
        return all(now.get(place, self.before[place]) != self.before[place] for place in self._places)

    def _serves(self) -> bool:
        return self._state() == GroupState.SERVING and self._epoch_is_new() and self._made_anew()

    def others_untouched(self) -> None:
        """All other pods are the same processes as before."""
        after, restarts = self._demo.uids(), self._demo.restarts()
        others = self.before.keys() - self._places
        assert {place: after.get(place) for place in others} == {place: self.before[place] for place in others}
        assert {place: restarts[place] for place in others} == {place: self._restarts[place] for place in others}


def why() -> str:
    return run("kubectl", "bireme", "why", DEPLOYMENT)


def test_a_node_that_is_killed_costs_no_stream(demo: Cluster, undisturbed: list[list[int]], times: Times) -> None:
    node, places = demo.quiet_node()
    traffic = Traffic(URL, TOKENS)
    traffic.await_tokens(DEEP)
    watched = Watched(demo, places)
    demo.docker("kill", node)
    try:
        watched.await_group(times, within=240)
        assert [item.ids for item in traffic.finish()] == undisturbed
        watched.others_untouched()
    finally:
        demo.docker("start", node)
        demo.eventually(lambda: demo.node_ready(node), within=180)
    demo.await_ready()
    told = [f"stage {stage} is made anew as" for _, stage in places]
    demo.eventually(lambda: all(words in why() for words in told), within=30)


def test_a_node_that_is_frozen_costs_no_stream(demo: Cluster, undisturbed: list[list[int]], times: Times) -> None:
    node, places = demo.quiet_node()
    traffic = Traffic(URL, TOKENS)
    traffic.await_tokens(DEEP)
    watched = Watched(demo, places)
    demo.docker("pause", node)
    try:
        watched.await_group(times, within=240)
        assert [item.ids for item in traffic.finish()] == undisturbed
        watched.others_untouched()
    finally:
        demo.docker("unpause", node)
        demo.eventually(lambda: demo.node_ready(node), within=180)
    # The old stage wakes up and finds that another has taken its place.
    lost = {watched.before[place] for place in places}
    selector = f"{Label.DEPLOYMENT}={DEPLOYMENT}"
    demo.eventually(lambda: not lost & {one["metadata"]["uid"] for one in demo.items("pods", "-l", selector)}, 120)
    demo.await_ready()


def test_a_node_that_only_its_peers_lose_costs_no_stream_and_no_pod(
    demo: Cluster, undisturbed: list[list[int]], times: Times
) -> None:
    node, places = demo.quiet_node()
    traffic = Traffic(URL, TOKENS)
    traffic.await_tokens(DEEP)
    watched = Watched(demo, places)
    with demo.cut_off(node):
        watched.await_silence(times, within=60)
        assert [item.ids for item in traffic.finish()] == undisturbed
        assert demo.uids() == watched.before, "its kubelet renews its Lease"
    watched.await_same_group(times, within=120)
    demo.await_ready()


def test_a_leader_pod_that_is_deleted_costs_no_stream(
    demo: Cluster, undisturbed: list[list[int]], times: Times
) -> None:
    place, pod = min((place, pod) for place, pod in demo.stages().items() if place[1] == 0)
    traffic = Traffic(URL, TOKENS)
    traffic.await_tokens(DEEP)
    watched = Watched(demo, frozenset({place}))
    demo.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    watched.await_group(times, within=240)
    assert [item.ids for item in traffic.finish()] == undisturbed
    watched.others_untouched()
    demo.await_ready()
