"""Bireme on the cluster of `make e2e`, installed once as a user installs it, and the demo on it for whoever asks.

The tests only run where `make e2e` has made a cluster. Each leaves the demo as it found it: two groups that serve.
"""

import os
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.cluster import ROOT
from tests.e2e.ground import DEPLOYMENT, NODE_PORT, READY_TO_TEST, URL, Cluster
from tests.e2e.release import install
from tests.e2e.times import PAGE, RECORD, Times, record
from tests.e2e.traffic import Traffic

if READY_TO_TEST not in os.environ:
    collect_ignore_glob = ["test_*.py"]

TOKENS = 160
_TIMES = pytest.StashKey[Times]()
_TEST_SECONDS = 600


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TIMES] = Times()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "e2e":
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.config.stash[_TIMES].begin(item.name.removeprefix("test_").replace("_", " "))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    began = time.monotonic()
    try:
        return (yield)
    finally:
        item.config.stash[_TIMES].ended(time.monotonic() - began)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    times, reporter = config.stash[_TIMES], terminalreporter
    if not times.cases:
        return
    lines = times.table()
    reporter.section("times")
    for line in lines:
        reporter.write_line(line)
    whole = exitstatus == 0 and not reporter.stats.keys() & {"deselected", "skipped"}
    if RECORD in os.environ and whole:
        record(lines)
        reporter.write_line(f"written into {PAGE}")


@pytest.fixture(scope="session")
def times(request: pytest.FixtureRequest) -> Times:
    """Where a test notes what took how long."""
    return request.config.stash[_TIMES]


@pytest.fixture(scope="session")
def cluster(times: Times) -> Cluster:
    """The cluster with the chart installed."""
    os.environ["KUBECONFIG"] = os.environ[READY_TO_TEST]
    began = time.monotonic()
    install()
    times.setting("`helm install`, until the operator is ready", time.monotonic() - began)
    return Cluster()


@pytest.fixture(scope="session")
def demo(cluster: Cluster, times: Times) -> Iterator[Cluster]:
    """The demo of examples/kind/smollm2.yaml, serving, with its router on the node port."""
    began = time.monotonic()
    cluster.kubectl("apply", "-f", str(ROOT / "examples/kind/smollm2.yaml"))
    cluster.await_ready(within=400)
    times.setting("`kubectl apply`, until two groups of two stages serve", time.monotonic() - began)
    cluster.apply(_node_port())
    cluster.eventually(
        node_port_answers, within=60
    )  # every node's own rules come to know the Service in their own time
    yield cluster
    cluster.kubectl("delete", "-f", str(ROOT / "examples/kind/smollm2.yaml"), "--wait")


def node_port_answers() -> bool:
    try:
        return httpx.get(f"{URL}/readyz", timeout=10).is_success
    except httpx.TransportError:
        return False


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
