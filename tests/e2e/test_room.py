"""Where there is no room: a gang waits whole and says for what, a quota never leaves half a group."""

from collections.abc import Iterator
from typing import Any

import pytest

from bireme.names import GroupState, Reason
from tests.e2e.ground import Cluster, Document
from tests.e2e.images import NAMES

WORKER = next(name for name in NAMES if "worker" in name)

# The first process of a container does not end at SIGTERM unless it wants to.
SERVER = """
import signal, sys
from http.server import SimpleHTTPRequestHandler, test
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
test(SimpleHTTPRequestHandler, port=8000)
"""


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    cluster.kubectl("create", "namespace", "elsewhere")
    yield "elsewhere"
    cluster.kubectl("delete", "namespace", "elsewhere", "--timeout=120s")


def engine(name: str, stages: int, cpu: str, **spec: Any) -> Document:
    """Groups of an engine that is not ours and needs no weights: every stage is a web server of Python's."""
    container = {
        "name": "worker",
        "image": WORKER,
        "command": ["python3", "-c", SERVER],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "apiVersion": "bireme.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"path": "/tmp"}, "revision": "1"},
            "parallelism": {"pipeline": stages},
            "engine": {"type": "Custom"},
            "template": {"spec": {"containers": [container]}},
            "rollout": {"drainTimeoutSeconds": 1},
            **spec,
        },
    }


def nodes_of(cluster: Cluster, name: str, namespace: str) -> list[str]:
    """The nodes that hold a stage."""
    pods = cluster.stages(name, namespace).values()
    return [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]


RACK = "topology.bireme.dev/rack"


def most_of_a_node(cluster: Cluster) -> str:
    """CPU of which no node has room for two stages."""
    return f"{max(int(node['status']['allocatable']['cpu']) for node in cluster.items('nodes')) * 600}m"


def waits(cluster: Cluster, namespace: str, reason: Reason) -> Document | None:
    """The group that waits for this reason, once it does."""
    group = cluster.groups("gang", namespace).get(0, {})
    return group if group.get("state") == GroupState.PENDING and group.get("reason") == reason else None


def test_a_gang_that_no_rack_holds_waits_whole_and_says_for_what(cluster: Cluster, elsewhere: str) -> None:
    placement = {"topology": [{"key": RACK, "mode": "Required"}]}
    cluster.apply(engine("gang", 3, most_of_a_node(cluster), placement=placement), namespace=elsewhere)
    group = cluster.eventually(lambda: waits(cluster, elsewhere, Reason.NO_CAPACITY), 90, "gang", elsewhere)
    assert RACK in group["message"]
    assert nodes_of(cluster, "gang", elsewhere) == []
    cluster.patch({"parallelism": {"pipeline": 2}}, "gang", elsewhere)
    cluster.await_ready(120, "gang", elsewhere)
    nodes = nodes_of(cluster, "gang", elsewhere)
    assert len({cluster.get("node", node)["metadata"]["labels"][RACK] for node in nodes}) == 1


def test_a_gang_that_kubernetes_itself_places_waits_whole(cluster: Cluster, elsewhere: str) -> None:
    gang = engine("gang", 5, most_of_a_node(cluster), placement={"scheduler": "Native"})
    cluster.apply(gang, namespace=elsewhere)
    cluster.eventually(lambda: waits(cluster, elsewhere, Reason.UNSCHEDULABLE), 90, "gang", elsewhere)
    assert nodes_of(cluster, "gang", elsewhere) == []
    cluster.patch({"parallelism": {"pipeline": 4}}, "gang", elsewhere)
    cluster.await_ready(120, "gang", elsewhere)
    assert len(set(nodes_of(cluster, "gang", elsewhere))) == 4


def test_a_quota_for_one_and_a_half_groups_makes_one(cluster: Cluster, elsewhere: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {"hard": {"pods": "3"}}}
    cluster.apply(quota, engine("halves", 2, "50m", replicas=2), namespace=elsewhere)

    def one_and_none() -> bool:
        groups = cluster.groups("halves", elsewhere)
        states = sorted((group["state"], group["reason"]) for group in groups.values())
        return len(states) == 2 and states[0] == (GroupState.PENDING, Reason.QUOTA) and states[1][0] == "Serving"

    cluster.eventually(one_and_none, 120, "halves", elsewhere)
    # Every ten seconds it is tried again, and what of it could be made is taken back at once.
    cluster.eventually(lambda: groups_made(cluster, elsewhere) == 1, 60, "halves", elsewhere)
    quota["spec"] = {"hard": {"pods": "4"}}
    cluster.apply(quota, namespace=elsewhere)
    cluster.await_ready(120, "halves", elsewhere)


def groups_made(cluster: Cluster, namespace: str) -> int:
    """Groups of which there is a stage."""
    return len({group for group, _ in cluster.stages("halves", namespace)})
