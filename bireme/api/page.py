"""The page docs/api.md, made of the models and written by `python -m bireme.api.crd` beside the CRD.

It says what the CRD says, because it is made of the same structural schema: every field with type, bounds, default and
the docstring that documents it, and the rules that hold for each object.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bireme.api.deployment import InferenceDeployment
from bireme.api.structural import Schema, structural_schema
from bireme.names import GROUP, KIND, VERSION

PAGE: Final = Path("docs") / "api.md"

_HEAD: Final = f"""\
# The API: {KIND}

Generated from the models in `bireme/api` by `make crds`; change the docstrings there. `kubectl explain infd.spec` says
the same. API group `{GROUP}/{VERSION}`, short name `infd`. A field that is marked *required* has no default. What is
not built yet is refused by a rule of its object, with what to do until then.

```yaml
apiVersion: {GROUP}/{VERSION}
kind: {KIND}
metadata: {{name: demo}}
spec:
  replicas: 2
  model: {{source: {{path: /models/demo}}, revision: "1"}}
  parallelism: {{tensor: 1, pipeline: 2}}
```
"""


def render_page() -> str:
    """Return the whole page."""
    root = structural_schema(InferenceDeployment)
    parts = [_HEAD + _rules(root)]
    for name in ("spec", "status"):
        parts += [_section(path, schema) for path, schema in _objects(name, root["properties"][name])]
    return "\n".join(parts)


def _objects(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every object with fields of its own, parents first."""
    yield path, schema
    for name, inner in schema["properties"].items():
        kind = _inside(inner)
        if "properties" in kind:
            yield from _objects(f"{path}.{name}{'[]' if kind is not inner else ''}", kind)


def _inside(schema: Schema) -> Schema:
    """The object of a list of objects, else the thing itself."""
    items = schema.get("items")
    return items if isinstance(items, dict) and "properties" in items else schema


def _section(path: str, schema: Schema) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"| `{name}` | {_cell(_type(f'{path}.{name}', inner))} | {_default(name in required, inner)} "
        f"| {_cell(inner.get('description', ''))} |\n"
        for name, inner in schema["properties"].items()
    )
    about = schema.get("description", "")
    table = f"| field | type | default | meaning |\n|---|---|---|---|\n{rows}"
    return f"## {path}\n\n{about}\n\n{table}{_rules(schema)}"


def _rules(schema: Schema) -> str:
    rules = "".join(f"- {_cell(one['message'])}\n" for one in schema.get("x-kubernetes-validations", ()))
    return f"\nRules:\n\n{rules}" if rules else ""


def _type(path: str, schema: Schema) -> str:
    inside = _inside(schema)
    if "properties" in inside:
        below = path + ("[]" if inside is not schema else "")
        anchor = "".join(letter for letter in below.lower() if letter.isalnum())
        return f"{'list of objects' if inside is not schema else 'object'}, [below](#{anchor})"
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return "anything"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{word}`" for word in schema["enum"])
    return _container(schema) or f"{schema['type']}{_bounds(schema)}"


def _container(schema: Schema) -> str:
    if schema["type"] == "array":
        return f"list of {_type('', schema['items'])}{_span(schema, 'minItems', 'maxItems', 'entries')}"
    if isinstance(schema.get("additionalProperties"), dict):
        values = _type("", schema["additionalProperties"])
        return f"map of {values}{_span(schema, 'minProperties', 'maxProperties', 'entries')}"
    return ""


def _bounds(schema: Schema) -> str:
    return _span(schema, "minimum", "maximum") + _span(schema, "minLength", "maxLength", "characters")


def _span(schema: Mapping[str, Any], low: str, high: str, what: str = "") -> str:
    least, most = schema.get(low), schema.get(high)
    unit = f" {what}" if what else ""
    if least is None and most is None:
        return ""
    if most is None:
        return f", at least {least}{unit}"
    return f", at most {most}{unit}" if not least and what else f", {least or 0} to {most}{unit}"


def _default(required: bool, schema: Schema) -> str:
    if required:
        return "*required*"
    return f"`{_word(schema['default'])}`" if "default" in schema else ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
