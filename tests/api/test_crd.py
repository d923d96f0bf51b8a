"""The committed CRD is the one that the models describe, small enough for `kubectl apply`, and keeps the conventions."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from bireme.api import InferenceDeployment
from bireme.api.crd import COMMITTED, definition, main, render
from bireme.api.structural import structural_schema
from tests.api.api_server import root_schema
from tests.api.crd_linter import violations, walk

REPOSITORY = Path(__file__).parents[2]


def test_the_committed_file_is_what_the_models_describe() -> None:
    assert main(["--check", "--output", str(REPOSITORY / COMMITTED)]) == 0, "run `make crds`"


def test_a_file_that_differs_is_shown_as_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crd.yaml"
    path.write_text(render().replace("infd", "infdep"))
    assert main(["--check", "--output", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "-    - infdep\n" in shown
    assert "+    - infd\n" in shown
    assert main(["--output", str(path)]) == 0
    assert main(["--check", "--output", str(path)]) == 0


def test_a_missing_file_differs(tmp_path: Path) -> None:
    assert main(["--check", "--output", str(tmp_path / "none.yaml")]) == 1


def test_the_crd_stays_under_60_kib() -> None:
    assert len(render().encode()) < 60 * 1024


def test_the_text_is_the_definition() -> None:
    assert yaml.safe_load(render()) == definition()


def test_the_crd_keeps_the_api_conventions() -> None:
    assert violations(root_schema()) == []


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ({"phase": {"type": "string", "maxLength": 3}}, "phase"),
        ({"ratio": {"type": "number"}}, "float"),
        ({"enabled": {"type": "boolean"}}, "boolean"),
        ({"count": {"type": "integer", "minimum": 0}}, "bounds"),
        ({"text": {"type": "string"}}, "maxLength"),
        ({"words": {"type": "array", "items": {"type": "string", "maxLength": 1}}}, "maxItems"),
        ({"words": {"type": "array", "maxItems": 1, "items": {"type": "string", "maxLength": 1}}}, "list type"),
        ({"labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}}}, "maxProperties"),
        ({"extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}, "open"),
        ({"idleTimeout": {"type": "integer", "minimum": 0, "maximum": 9}}, "unit"),
        ({"secretRef": {"type": "object", "properties": {"key": {"type": "string", "maxLength": 1}}}}, "reference"),
        ({"snake_case": {"type": "string", "maxLength": 1}}, "camelCase"),
        ({"mode": {"type": "string", "enum": ["inPlace"]}}, "CamelCase"),
        ({"size": {"type": "integer", "minimum": 1, "maximum": 2, "default": 3}}, "default"),
        ({"size": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "structural"),
    ],
)
def test_the_linter_catches(field: dict[str, Any], complaint: str) -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "description": "S.", "properties": field}}}
    assert any(complaint in violation for violation in violations(schema))


def test_the_linter_asks_for_descriptions() -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "object"}}}}}
    assert any("spec.a: has no description" in violation for violation in violations(schema))


def test_every_scalar_of_the_spec_has_a_default_or_is_optional_or_required() -> None:
    required = {f"{path}.{name}" for path, _, node in walk(root_schema()) for name in node.get("required", [])}
    silent = [
        path
        for path, name, node in walk(root_schema())
        if path.startswith("spec") and name and "default" not in node and path not in required
        if "properties" not in node
        and "Default" not in node["description"]
        and "exactly one" not in node["description"]
    ]
    # Fields of which at most one is set describe that at their parent.
    assert silent == ["spec.model.source.path", "spec.engine.kvCache.bytes"]


def test_kubectl_get_shows_the_columns_and_scale_works() -> None:
    version = definition()["spec"]["versions"][0]
    columns = [(column["name"], column.get("priority", 0)) for column in version["additionalPrinterColumns"]]
    assert columns[:4] == [("Ready", 0), ("Groups", 0), ("Restarts", 0), ("Age", 0)]
    assert columns[4:] == [("Model", 1), ("Topology", 1), ("Revision", 1)]
    paths = {f".{path}" for path, _, _ in walk(root_schema())} | {".metadata.creationTimestamp"}
    assert {column["jsonPath"] for column in version["additionalPrinterColumns"]} <= paths
    assert set(version["subresources"]["scale"].values()) <= paths
    assert version["subresources"]["status"] == {}


def test_the_crd_has_the_fields_of_the_model_in_their_order() -> None:
    aliases = [info.alias for info in InferenceDeployment.model_fields.values()]
    assert aliases == list(root_schema()["properties"])


def test_a_construct_that_no_structural_schema_has_is_not_written() -> None:
    class Tuple(BaseModel):
        pair: tuple[int, str]

    with pytest.raises(ValueError, match="prefixItems"):
        structural_schema(Tuple)
