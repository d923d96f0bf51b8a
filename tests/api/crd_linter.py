"""The rules of kube-api-linter and of structural schemas that matter for our CRD, over its generated form."""

import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

Node = dict[str, Any]

BOOLEANS = {"paused"}  # two states for ever, by the custom of Deployment and CronJob
TIMES_BY_NAME = {"since"}
OPEN = re.compile(r"(^|\.)template\.(metadata|spec)$")
OWNED_BY_KUBERNETES = {"apiVersion", "kind", "metadata"}
# Words of the model's own field, written as checkpoints and other engines write them.
LOWER_CASE_ENUMS = {"dtype", "quantization"}
NOT_STRUCTURAL = {"$ref", "$defs", "title", "nullable", "anyOf", "oneOf", "allOf", "not", "const", "prefixItems"}
NOT_STRUCTURAL |= {"exclusiveMinimum", "exclusiveMaximum", "uniqueItems", "propertyNames"}


def violations(root: Node) -> list[str]:
    return [f"{path or 'root'}: {what}" for path, name, node in walk(root) for what in _of_node(path, name, node)]


def walk(node: Node, path: str = "", name: str = "") -> Iterator[tuple[str, str, Node]]:
    """Yield every node with its path and the name of its field; list items have the name of their list."""
    yield path, name, node
    for key, inner in node.get("properties", {}).items():
        if path or key not in OWNED_BY_KUBERNETES:
            yield from walk(inner, f"{path}.{key}".removeprefix("."), key)
    if "items" in node:
        yield from walk(node["items"], f"{path}[]", "")
    if isinstance(node.get("additionalProperties"), dict):
        yield from walk(node["additionalProperties"], f"{path}{{}}", "")


def _of_node(path: str, name: str, node: Node) -> Iterator[str]:
    yield from (f"{key} is not allowed in a structural schema" for key in node.keys() & NOT_STRUCTURAL)
    yield from _of_name(name, node)
    yield from _of_type(path, name, node)
    yield from _of_presence(node)
    yield from _of_rules(node)


def _of_name(name: str, node: Node) -> Iterator[str]:
    if not name:
        return
    if not node.get("description", "").endswith("."):
        yield "has no description in sentences"
    if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name):
        yield "is not camelCase"
    if name.lower() == "phase":
        yield "a phase can't be extended; use conditions"
    if re.search(r"[Dd]uration|[Tt]imestamp", name):
        yield "a duration is …Seconds, a moment …Time"
    if re.search(r"(Timeout|Deadline|Period|Interval)$", name):
        yield "has no unit in its name; end it in Seconds or Milliseconds"
    if name.endswith(("Ref", "Reference")) and "name" not in node.get("properties", {}):
        yield "a reference is an object with a name"


def _of_type(path: str, name: str, node: Node) -> Iterator[str]:
    kind = "int-or-string" if node.get("x-kubernetes-int-or-string") else node.get("type")
    match kind:
        case "number":
            yield "a float is not portable; use an integer or a quantity"
        case "boolean" if name not in BOOLEANS:
            yield "a boolean can't grow; use an enum"
        case "integer" if "minimum" not in node or (path.startswith("spec") and "maximum" not in node):
            yield "an integer needs its bounds"
        case "string":
            yield from _of_string(name, node)
        case "array":
            yield from _of_list(node)
        case "object":
            yield from _of_object(path, node)
        case None:
            yield "has no type"
    if name.endswith(("Seconds", "Milliseconds")) and kind != "integer":
        yield "is not an integer"


def _of_string(name: str, node: Node) -> Iterator[str]:
    if "enum" in node:
        if name not in LOWER_CASE_ENUMS and not all(re.fullmatch(r"[A-Z][A-Za-z0-9]*", word) for word in node["enum"]):
            yield "enum values are CamelCase"
    elif node.get("format") == "date-time":
        if not name.endswith("Time") and name not in TIMES_BY_NAME:
            yield "a moment is named …Time"
    elif "maxLength" not in node:
        yield "a string needs a maxLength"


def _of_list(node: Node) -> Iterator[str]:
    if "maxItems" not in node:
        yield "a list needs maxItems"
    kind = node.get("x-kubernetes-list-type")
    if kind not in {"atomic", "set", "map"}:
        yield "a list needs its list type"
    keys = set(node.get("x-kubernetes-list-map-keys", []))
    if kind == "map" and (not keys or not keys <= set(node["items"].get("required", []))):
        yield "a map list needs keys that are required in its items"


def _of_object(path: str, node: Node) -> Iterator[str]:
    if node.get("x-kubernetes-preserve-unknown-fields"):
        if not OPEN.search(path):
            yield "only the halves of a pod template are open"
    elif "additionalProperties" in node:
        if "maxProperties" not in node:
            yield "a map needs maxProperties"
    elif not node.get("properties"):
        yield "an object needs properties"


def _of_presence(node: Node) -> Iterator[str]:
    required = node.get("required", [])
    properties = node.get("properties", {})
    yield from (f"requires {name}, which it has not" for name in required if name not in properties)
    yield from (f"{name} is required and has a default" for name in required if "default" in properties.get(name, {}))
    if "default" in node and not Draft202012Validator(node).is_valid(node["default"]):
        yield "the default is not valid"


def _of_rules(node: Node) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", []):
        message = rule.get("message", "")
        if not re.match(r"(set|list|shorten|write|not built yet, .*: (keep|leave))\b", message) or "\n" in message:
            yield f"the message of {rule['rule']!r} is no one-line instruction"
        if "oldSelf" in rule["rule"]:
            yield f"{rule['rule']!r} makes a field immutable; none has to be"
        if rule.get("fieldPath", "")[1:] not in {"", *node.get("properties", {})}:
            yield f"{rule['fieldPath']} is not a field here"
