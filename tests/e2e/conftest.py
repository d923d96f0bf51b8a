"""Bireme on the cluster of `make e2e`, installed once as a user installs it, and the demo on it for whoever asks.

The tests only run where `make e2e` has made a cluster. Each leaves the demo as it found it: two groups that serve.
"""

import os
import time
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import ROOT
from tests.e2e.commands import run
from tests.e2e.ground import DEPLOYMENT, NODE_PORT, READY_TO_TEST, URL, Cluster
from tests.e2e.images import TAG
from tests.e2e.times import Times
from tests.e2e.traffic import Traffic

if READY_TO_TEST not in os.environ:
    collect_ignore_glob = ["test_*.py"]

TOKENS = 160
_TIMES = pytest.StashKey[Times]()
SYSTEM = "bireme-system"
_TEST_SECONDS = 600


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TIMES] = Times()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "e2e":
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_TIMES].rows:
        terminalreporter.section("times")
        for line in config.stash[_TIMES].table():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def times(request: pytest.FixtureRequest) -> Times:
    """Where a test notes what took how long."""
    return request.config.stash[_TIMES]


@pytest.fixture(scope="session")
def cluster(times: Times) -> Cluster:
    """The cluster with the chart installed."""
    os.environ["KUBECONFIG"] = os.environ[READY_TO_TEST]
    began = time.monotonic()
    run(
        "helm", "upgrade", "--install", "bireme", ROOT / "charts/bireme", "--namespace", SYSTEM, "--create-namespace",
        "--wait", "--timeout=180s", f"--set=image.tag={TAG}",
    )  # fmt: skip
    times.note("helm install, the operator is ready", time.monotonic() - began)
    return Cluster()


@pytest.fixture(scope="session")
def demo(cluster: Cluster, times: Times) -> Iterator[Cluster]:
    """The demo of examples/kind/smollm2.yaml, serving, with its router on the node port."""
    began = time.monotonic()
    cluster.kubectl("apply", "-f", str(ROOT / "examples/kind/smollm2.yaml"))
    cluster.await_ready(within=400)
    times.note("kubectl apply, two groups of two stages serve", time.monotonic() - began)
    cluster.apply(_node_port())
    yield cluster
    cluster.kubectl("delete", "-f", str(ROOT / "examples/kind/smollm2.yaml"), "--wait")


def _node_port() -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "e2e"},
        "spec": {
            "type": "NodePort",
            "selector": {"bireme.dev/deployment": DEPLOYMENT, "bireme.dev/role": "router"},
            "ports": [{"port": 8080, "targetPort": "http", "nodePort": NODE_PORT}],
        },
    }


@pytest.fixture(scope="session")
def undisturbed(demo: Cluster) -> list[list[int]]:
    """The ids of the eight answers when nothing happens."""
    return [item.ids for item in Traffic(URL, TOKENS).finish()]
