"""A release comes and goes while it serves: uninstall and install again, upgrade. No stage is touched, no request fails."""

import time
from pathlib import Path

from tests.e2e.ground import DEPLOYMENT, URL, Cluster, Document, Place
from tests.e2e.images import PREVIOUS, TAG
from tests.e2e.release import NAME, SYSTEM, install, install_previous, uninstall
from tests.e2e.times import Times
from tests.e2e.traffic import steady

OWNED = f"bireme.dev/deployment={DEPLOYMENT}"


def test_an_uninstall_stops_nothing_that_serves_and_holds_nothing_back(demo: Cluster) -> None:
    before = pods(demo)
    key = demo.get("secret", f"{NAME}-master-key", "-n", SYSTEM)["data"]
    with steady(URL) as load:
        uninstall()
        assert not demo.items("deployments", "-n", SYSTEM)
        answered = load.answered
        demo.eventually(lambda: load.answered > answered + 5, within=120)
        kept = [demo.get("infd", DEPLOYMENT), *demo.items("all,secrets,configmaps,leases", "-l", OWNED)]
        assert [body["metadata"]["name"] for body in kept if "finalizers" in body["metadata"]] == []
        assert demo.get("secret", f"{NAME}-master-key", "-n", SYSTEM)["data"] == key
        install()
        demo.await_ready()
    load.check()
    assert pods(demo) == before


def pods(cluster: Cluster) -> dict[Place, Document]:
    """The stage pods: which they are and what they were made of."""
    found = cluster.stages().items()
    return {place: {"uid": pod["metadata"]["uid"], "spec": pod["spec"]} for place, pod in found}


def test_an_upgrade_of_the_chart_touches_no_stage(demo: Cluster, times: Times, tmp_path: Path) -> None:
    install_previous(tmp_path)
    demo.await_ready()
    demo.restart()  # which takes the image of the operator of that time
    before = pods(demo)
    assert images(before) == {f"bireme-worker:{PREVIOUS}"}
    with steady(URL) as load:
        began = time.monotonic()
        install()
        demo.eventually(lambda: router_images(demo) == {f"bireme-router:{TAG}"}, within=200)
        times.note("operator and router replaced after", time.monotonic() - began)
        demo.await_ready()
        assert pods(demo) == before
    load.check()
    try:
        demo.kubectl("scale", "infd", DEPLOYMENT, "--replicas=3")
        demo.await_ready(within=300)
        assert images(pods(demo)) == images(before), "a group that is added to a revision is made as its peers are"
    finally:
        demo.kubectl("scale", "infd", DEPLOYMENT, "--replicas=2")
        demo.await_ready()


def images(found: dict[Place, Document]) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in found.values()}


def router_images(cluster: Cluster) -> set[str]:
    """Images of the routers that are there, those that still end too."""
    found = cluster.items("pods", "-l", f"{OWNED},bireme.dev/role=router")
    return {pod["spec"]["containers"][0]["image"] for pod in found}
