"""What a kube-apiserver does with our CRD before it stores an object, for tests without a control plane.

The order is the server's: nulls are dropped, unknown fields are refused (fieldValidation=Strict), defaults are filled
in, the schema is checked, and only if it holds the CEL rules run, by the C++ runtime of the same language.
"""

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from cel_expr_python import cel
from jsonschema import Draft202012Validator

from bireme.api.crd import definition

_CEL = cel.NewEnv(variables={"self": cel.Type.DYN})


def root_schema() -> dict[str, Any]:
    schema: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def refusals(document: dict[str, Any], schema: dict[str, Any] | None = None) -> list[str]:
    """Return the server's complaints as ``path: message``, empty when it would store the object."""
    schema = schema or _cached_schema()
    found = _without_nulls(document)
    if unknown := list(_unknown(found, schema, "")):
        return unknown
    _fill_defaults(found, schema)
    errors = Draft202012Validator(_plain_json_schema(json.dumps(schema))).iter_errors(found)
    structural = [f"{error.json_path.removeprefix('$.')}: {error.message}" for error in errors]
    return structural or [*_doubles(found, schema, ""), *_broken_rules(found, schema, "")]


@cache
def _cached_schema() -> dict[str, Any]:
    return root_schema()


@cache
def _plain_json_schema(text: str) -> Any:
    return _with_int_or_string(json.loads(text))


def _with_int_or_string(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_int_or_string(item) for item in node]
    if not isinstance(node, dict):
        return node
    extra = {"type": ["integer", "string"]} if node.get("x-kubernetes-int-or-string") is True else {}
    return {key: _with_int_or_string(value) for key, value in node.items()} | extra


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else copy.deepcopy(value)


def _children(value: Any, schema: dict[str, Any], path: str) -> Iterator[tuple[Any, dict[str, Any], str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if inner:
                yield item, inner, f"{path}.{key}".removeprefix(".")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield item, schema["items"], f"{path}[{index}]"


def _unknown(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    open_map = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(value, dict) and schema.get("type") == "object" and not open_map and path != "metadata":
        for key in value.keys() - schema.get("properties", {}).keys():
            yield f"{path}: unknown field {key!r}"
    for child in _children(value, schema, path):
        yield from _unknown(*child)


def _fill_defaults(value: Any, schema: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in schema.get("properties", {}).items():
            if key not in value and "default" in inner:
                value[key] = copy.deepcopy(inner["default"])
    for item, inner, _ in _children(value, schema, ""):
        _fill_defaults(item, inner)


def _doubles(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys", [])
        identities = [json.dumps([item[key] for key in keys] if keys else item) for item in value]
        if schema["x-kubernetes-list-type"] != "atomic":
            doubles = (index for index, identity in enumerate(identities) if identity in identities[:index])
            yield from (f"{path}[{index}]: duplicate value" for index in doubles)
    for child in _children(value, schema, path):
        yield from _doubles(*child)


def _broken_rules(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    for validation in schema.get("x-kubernetes-validations", []):
        verdict = _compiled(validation["rule"]).eval(data={"self": value}).value()
        assert isinstance(verdict, bool), f"{path}: {validation['rule']} gives {verdict}"
        if not verdict:
            where = f"{path}{validation.get('fieldPath', '')}"
            yield f"{where}: {validation['message']}"
    for child in _children(value, schema, path):
        yield from _broken_rules(*child)


@cache
def _compiled(rule: str) -> Any:
    return _CEL.compile(rule)
