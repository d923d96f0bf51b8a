"""Everything that is rendered meets the published schemas of Kubernetes, strictly: no unknown field anywhere."""

from pathlib import Path
from typing import Final

import kubernetes_validate
import pytest
import yaml

from tests.chart.helm import CI_VALUES, ROOT, Helm, Object

VERSION: Final = "1.37"
OF_OTHERS: Final = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator's, whose schemas are not Kubernetes'."""
GOLDEN: Final = sorted((ROOT / "tests/operator/golden").glob("*.yaml"))


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_the_chart_renders_what_kubernetes_publishes(helm: Helm, values: Path) -> None:
    judged = {body["kind"] for body in helm.render("--values", values) if is_valid(body)}
    assert judged >= {"Deployment", "Pod", "Role", "RoleBinding"}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_operator_renders_what_kubernetes_publishes(golden: Path) -> None:
    judged = [body["kind"] for body in yaml.safe_load_all(golden.read_text()) if is_valid(body)]
    assert "Pod" in judged


def is_valid(body: Object) -> bool:
    """Whether there is a schema, which ``body`` then meets."""
    if body["kind"] in OF_OTHERS:
        return False
    judged_by = kubernetes_validate.validate(body, VERSION, strict=True)
    assert judged_by == VERSION
    return True


def test_a_misspelt_field_is_seen() -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a"}, "rulez": []}
    with pytest.raises(kubernetes_validate.ValidationError):
        is_valid(role)
