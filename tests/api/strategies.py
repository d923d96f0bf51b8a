"""Deployments for property tests, drawn from the CRD's own schema: right ones, and ones with something odd in them."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from bireme.api.unbuilt import UNBUILT
from tests.api.api_server import root_schema
from tests.api.objects import minimal, put

ROOT = root_schema()
# One string for each pattern of the API, and some that fit none.
STRINGS = ["llama", "8Gi", "90%", "/models/a", "a/b", "s3://bucket/a", "Word", "", "-", "0", "100%", "x" * 1100, "é"]


def fields(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every field below a node, objects included, lists not opened."""
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name), inner
        yield from fields(inner, (*path, name))


def fitting(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw values that the node allows, but for rules and patterns that no sample string fits."""
    if "enum" in node:
        return st.sampled_from(node["enum"])
    match node.get("type"):
        case "integer":
            return st.integers(node["minimum"], node.get("maximum", 2**40))
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(fitting(node["items"]), max_size=3)
        case "object":
            return objects(node)
        case _ if node.get("format") == "date-time":
            return st.just("2026-11-27T18:00:00Z")
    return st.sampled_from(STRINGS)


def objects(node: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    required = set(node.get("required", []))
    parts = {name: fitting(inner) for name, inner in node.get("properties", {}).items()}
    return st.fixed_dictionaries(
        {name: part for name, part in parts.items() if name in required},
        optional={name: part for name, part in parts.items() if name not in required},
    )


def anything(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    edges = [node[key] + step for key in ("minimum", "maximum") if key in node for step in (-1, 0, 1)]
    odd = st.sampled_from([None, 0, -1, True, "1", "llama", [], {}, [0], ["a", "a"], {"misspelt": 1}, *edges])
    return st.one_of(fitting(node), fitting(node), odd)


SPEC = [(("spec", *path), node) for path, node in fields(ROOT["properties"]["spec"])]
BUILT = [
    (path, node) for path, node in SPEC if not any(".".join(path[:end]) in UNBUILT for end in range(len(path) + 1))
]


@st.composite
def documents(draw: st.DrawFn, *, right: bool = False) -> dict[str, Any]:
    """Draw the smallest deployment with up to four fields changed."""
    document = minimal()
    for _ in range(draw(st.integers(0, 4))):
        path, node = draw(st.sampled_from(BUILT if right or draw(st.booleans()) else SPEC))
        put(document, path, draw(fitting(node) if right else anything(node)))
    return document
