"""From pydantic's JSON Schema to the structural schema that an API server accepts in a CRD.

Kubernetes wants no references, no titles, no null branches, no `additionalProperties: false`; it wants list types, and
has a word of its own for "integer or string" and for "anything". Only what our models can produce is translated;
anything else raises, so that a new construct in a model is looked at once.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]

# The order in which a node's keys are written; `properties` comes last because it is long.
_KEYS: Final = (
    "description",
    "type",
    "format",
    "default",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
    "items",
    "additionalProperties",
    "properties",
)
_DROPPED: Final = frozenset({"title", "propertyNames"})


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model, with every reference inlined and keys in a fixed order."""
    raw = model.model_json_schema(by_alias=True)
    definitions = raw.pop("$defs", {})
    return _node(raw, definitions)


def _node(raw: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    schema = _flatten(raw, definitions)
    node: Schema = {}
    for key, value in schema.items():
        if key in _DROPPED or _is_void_default(key, value):
            continue
        node |= _translate(key, value, definitions)
    if node.get("type") == "array":
        node.setdefault("x-kubernetes-list-type", "atomic")
    return {key: node[key] for key in sorted(node, key=_KEYS.index)}


def _translate(key: str, value: Any, definitions: Mapping[str, Any]) -> Schema:
    match key, value:
        case "description", str():
            return {key: " ".join(value.split())}
        case "const", _:
            return {"enum": [value]}
        case "additionalProperties", False:
            return {}
        case "additionalProperties", True:
            return {"x-kubernetes-preserve-unknown-fields": True}
        case (("additionalProperties" | "items"), dict()):
            return {key: _node(value, definitions)}
        case "properties", dict():
            return {key: {name: _node(inner, definitions) for name, inner in value.items()}}
        case _ if key in _KEYS:
            return {key: value}
    raise ValueError(f"teach bireme/api/structural.py to translate {key}: {value!r}, or write the model without it")


def _flatten(raw: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Inline a reference and take the one branch beside null; what stands at the field itself wins."""
    outer = {key: value for key, value in raw.items() if key not in {"$ref", "anyOf"}}
    if "$ref" in raw:
        return _flatten(definitions[raw["$ref"].rpartition("/")[2]], definitions) | outer
    if "anyOf" in raw:
        [branch] = [branch for branch in raw["anyOf"] if branch != {"type": "null"}]
        return _flatten(branch, definitions) | outer
    return outer


def _is_void_default(key: str, value: Any) -> bool:
    """Null and empty defaults say nothing; objects get theirs field by field, once the object is there."""
    return key == "default" and (value is None or isinstance(value, dict | list) or value == "")
