"""The chart's files agree with one another and with what they are written from. Needs no helm."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.api import parse
from bireme.api.crd import CHART as CRD_TEMPLATE
from bireme.api.crd import definition, main, render_template
from bireme.api.deployment import Spec
from bireme.names import Metric
from bireme_operator.render.owned import Owner
from bireme_operator.render.router import render_router
from charts import dashboards, readme
from tests.chart.helm import CHART, ROOT
from tests.operator import rights

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ABOUT: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
SERIES = re.compile(r"\bbireme_[a-z_]+")
SUFFIXES = ("_bucket", "_sum", "_count")


def test_the_readme_is_written_from_the_comments_of_the_values() -> None:
    assert readme.main(["--check"]) == 0, "run `make chart`"


def test_the_dashboards_are_written_from_their_tables() -> None:
    assert dashboards.main(["--check"]) == 0, "run `make chart`"


def test_a_value_without_a_comment_is_named() -> None:
    with pytest.raises(readme.Undocumented, match=r"above a\.c in values\.yaml"):
        readme.rows("a:\n  # -- Known.\n  b: 1\n\n  c: 2\n")


def test_a_comment_may_have_several_lines_and_covers_a_whole_mapping() -> None:
    (row,) = readme.rows("a:\n  # -- First\n  # second.\n  b:\n    c: 1\n    d: [x]\n")
    assert row == readme.Row("a.b", {"c": 1, "d": ["x"]}, "First second.")


def test_the_crd_of_the_chart_is_the_crd() -> None:
    assert (ROOT / CRD_TEMPLATE).read_text() == render_template(), "run `make crds`"


def test_both_copies_of_the_crd_are_written_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    template = tmp_path / CRD_TEMPLATE
    template.write_text(template.read_text().replace("infd", "infdep"))
    assert main(["--check"]) == 1


def test_the_schema_knows_exactly_the_values() -> None:
    assert sorted(_keys(VALUES, SCHEMA)) == []


def _keys(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    """Keys that only one of them has, and objects of ours that are open."""
    if "properties" not in schema:  # a type of Kubernetes', or labels
        return []
    assert schema["additionalProperties"] is False, f"{path} takes unknown keys"
    only_helm = {".global", "operator.resources.claims"}
    different = {f"{path}.{key}" for key in values.keys() ^ schema["properties"].keys()}
    found = sorted(one.removeprefix(".") if one != ".global" else one for one in different)
    for key, value in values.items():
        if isinstance(value, dict) and key in schema["properties"]:
            found += _keys(value, schema["properties"][key], f"{path}.{key}".lstrip("."))
    return [one for one in found if one not in only_helm]


def test_the_roles_of_the_chart_are_the_rights_that_are_documented() -> None:
    assert rights.granted("namespace") == rights.documented("namespace")
    assert rights.granted("cluster") == rights.documented("cluster")


def test_the_operator_gives_a_router_no_right_that_it_does_not_hold() -> None:
    spec = Spec.model_validate({"model": {"source": {"path": "/m"}, "revision": "1"}})
    objects = render_router(Owner("demo", "team", "uid"), spec, image="i", token_secret="s")
    (role,) = (body for body in objects if body["kind"] == "Role")
    assert rights.pairs(role["rules"]) <= rights.granted("namespace")


def test_chart_and_wheel_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ABOUT["version"] == ABOUT["appVersion"] == project["version"]
    images = yaml.safe_load(ABOUT["annotations"]["artifacthub.io/images"])
    assert {image["image"].rpartition(":")[2] for image in images} == {project["version"]}


def test_the_example_and_the_crd_on_artifact_hub_are_real() -> None:
    (example,) = yaml.safe_load(ABOUT["annotations"]["artifacthub.io/crdsExamples"])
    parse(example)
    (crd,) = yaml.safe_load(ABOUT["annotations"]["artifacthub.io/crds"])
    assert crd["name"] == definition()["metadata"]["name"]
    assert crd["kind"] == definition()["spec"]["names"]["kind"]


def _expressions() -> list[str]:
    alerts = yaml.safe_load((CHART / "alerts.yaml").read_text())
    found = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    for path in sorted(CHART.glob("dashboards/*.json")):
        board = json.loads(path.read_text())
        found += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        found += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return found


@pytest.mark.parametrize("expression", _expressions())
def test_every_alert_and_every_panel_asks_for_series_that_exist(expression: str) -> None:
    known = {str(metric) for metric in Metric}
    asked = set(SERIES.findall(expression))
    missing = {name for name in asked if name not in known and not _is_part(name, known)}
    assert not missing


def _is_part(name: str, known: set[str]) -> bool:
    return any(name.endswith(suffix) and name.removesuffix(suffix) in known for suffix in SUFFIXES)


def test_every_alert_has_a_page_that_opens_with_its_name() -> None:
    alerts = yaml.safe_load((CHART / "alerts.yaml").read_text())
    names = {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert pages.keys() == names
    assert all(text.startswith(f"# {name}\n") for name, text in pages.items())
