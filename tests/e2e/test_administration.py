"""What an administrator does before anything serves: have the CRD by hand or by the chart, and check the operator."""

import time
from pathlib import Path

from bireme.api.crd import COMMITTED
from tests.e2e.cluster import ROOT
from tests.e2e.commands import run
from tests.e2e.ground import Cluster, refused
from tests.e2e.release import NAME, SYSTEM, install, uninstall
from tests.e2e.times import Times

CRD = "inferencedeployments.bireme.dev"


def test_the_crd_comes_by_kubectl_and_the_chart_takes_it_over(cluster: Cluster, tmp_path: Path) -> None:
    assert not cluster.items("infd", "-A"), "the CRD is made anew and would take them along"
    uninstall()
    cluster.kubectl("delete", "crd", CRD)
    cluster.kubectl("apply", "-f", str(ROOT / "crds"))
    install("--set=crds.enabled=false")
    assert "helm.sh/chart" not in cluster.get("crd", CRD)["metadata"]["labels"]
    assert CRD in refused(install)
    install("--take-ownership")
    assert cluster.get("crd", CRD)["metadata"]["labels"]["helm.sh/chart"].startswith("bireme-")
    older = tmp_path / "older.yaml"
    older.write_text((ROOT / COMMITTED).read_text().replace("description: What is wanted.", "description: Wanted."))
    cluster.kubectl("apply", "-f", str(older))
    assert "conflict" in refused(install), "kubectl wrote something else over it"
    install("--force-conflicts")


def test_helm_test_finds_an_operator_that_acts(cluster: Cluster, times: Times) -> None:
    began = time.monotonic()
    said = run("helm", "test", NAME, "--namespace", SYSTEM, "--logs", "--timeout=120s")
    times.note("judged after", time.monotonic() - began)
    assert "holds the Lease and renews it" in said
