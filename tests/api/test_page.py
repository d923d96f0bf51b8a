"""docs/api.md is what the models say: every field is on it, with type, default and meaning."""

from pathlib import Path
from typing import Any

from bireme.api import InferenceDeployment, load
from bireme.api.page import PAGE, render_page
from bireme.api.structural import structural_schema
from bireme.api.unbuilt import UNBUILT

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_what_the_models_describe() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == render_page(), "run `make crds`"


def _sections() -> dict[str, str]:
    parts = render_page().split("\n## ")[1:]
    return {part.partition("\n")[0]: part for part in parts}


def _objects(path: str, schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {path: schema["properties"]}
    for name, inner in schema["properties"].items():
        for kind, suffix in ((inner, ""), (inner.get("items") or {}, "[]")):
            if "properties" in kind:
                found |= _objects(f"{path}.{name}{suffix}", kind)
    return found


def test_every_field_has_a_row_in_the_section_of_its_object() -> None:
    root, sections = structural_schema(InferenceDeployment)["properties"], _sections()
    for name in ("spec", "status"):
        for path, fields in _objects(name, root[name]).items():
            for field, schema in fields.items():
                [row] = [line for line in sections[path].splitlines() if line.startswith(f"| `{field}` |")]
                assert row.count(" | ") == 3, row
                assert schema.get("description", "")[:40].split("<")[0].replace("|", "\\|") in row


def test_rows_have_bounds_defaults_and_words() -> None:
    sections = _sections()
    assert "| `replicas` | integer, 0 to 1000 | `1` |" in sections["spec"]
    assert "| `revision` | string, at most 63 characters | *required* |" in sections["spec.model"]
    assert "| `dtype` | one of `auto`, `float32`, `bfloat16`, `float16` | `auto` |" in sections["spec.model"]
    assert "| `paused` | boolean | `false` |" in sections["spec"]
    assert "list of objects, [below](#specplacementtopology)" in sections["spec.placement"]
    assert "- set exactly one of path" in sections["spec.model.source"]


def test_the_example_and_the_rules_of_the_whole_object_stand_first() -> None:
    head, _, _ = render_page().partition("\n## ")
    example = head.partition("```yaml\n")[2].partition("```")[0]
    assert load(example).spec.parallelism.pipeline == 2
    assert "- shorten metadata.name to 46 characters" in head


def test_what_is_not_built_is_said_where_its_field_is() -> None:
    sections = _sections()
    for path in UNBUILT:
        assert "not built yet" in sections[path.rpartition(".")[0]]
