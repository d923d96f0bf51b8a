"""What every model of the API is: frozen, camelCase outside, strict about unknown fields, with rules that hold twice.

A rule stands once, as CEL and as Python side by side: the CRD carries the first to the API server, pydantic runs the
second in `bireme up` and in the operator, and tests/api/test_agreement.py keeps the two saying the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bireme.api import unbuilt
from bireme.api.types import ObjectName


@dataclass(frozen=True)
class Rule:
    """One thing that must hold for a whole object.

    ``cel`` is evaluated by the API server with the object as ``self``, ``holds`` by us with the model.
    ``message`` is an instruction. ``field`` (camelCase) is the field to blame, empty for the object itself.
    """

    cel: str
    holds: Callable[[Any], bool]
    message: str
    field: str = ""

    def as_validation(self) -> dict[str, str]:
        """Return the entry of `x-kubernetes-validations`."""
        entry = {"rule": self.cel, "message": self.message}
        return entry | ({"fieldPath": f".{self.field}"} if self.field else {})


def _describe_rules(schema: dict[str, Any], model: type[BaseModel]) -> None:
    assert issubclass(model, ApiModel)
    if rules := model.all_rules():
        schema["x-kubernetes-validations"] = [rule.as_validation() for rule in rules]


class ApiModel(BaseModel):
    """Base of all models. Python reads snake_case, YAML and JSON are camelCase only."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        use_attribute_docstrings=True,
        json_schema_extra=_describe_rules,
    )

    at: ClassVar[str] = ""
    """Path of this model in the object, for the table of what is not built yet."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Cross-field rules of this model."""

    @classmethod
    def all_rules(cls) -> tuple[Rule, ...]:
        """Return the model's own rules and the refusals of what is not built yet."""
        return _rules_of(cls)

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        rules = _rules_of(type(self))
        broken = [(rule.field, rule.message) for rule in rules if not rule.holds(self)] if rules else []
        if broken:
            summary = "; ".join(message for _, message in broken)
            raise PydanticCustomError("broken_rules", "{summary}", {"summary": summary, "broken": broken})
        return self


@cache
def _rules_of(model: type[ApiModel]) -> tuple[Rule, ...]:
    """Asked for every object that is made, and a status has hundreds of them."""
    return (*model.rules, *(_refusal(model, field) for field in unbuilt.fields_of(model.at)))


def field_by_alias(model: type[BaseModel], alias: str) -> str:
    """Return the Python name of the field that YAML calls ``alias``."""
    return next(name for name, info in model.model_fields.items() if info.alias == alias)


def _refusal(model: type[ApiModel], alias: str) -> Rule:
    name = field_by_alias(model, alias)
    default = model.model_fields[name].get_default(call_default_factory=True)
    return Rule(
        cel=_equals_default(alias, default),
        holds=lambda self: bool(getattr(self, name) == default),
        message=unbuilt.message(f"{model.at}.{alias}", default),
        field=alias,
    )


def _equals_default(alias: str, default: object) -> str:
    """Write the CEL for "has its default". Scalars have a default in the CRD, so they are always there."""
    if default is None:
        return f"!has(self.{alias})"
    if isinstance(default, Sequence | dict) and not default:
        return f"!has(self.{alias}) || size(self.{alias}) == 0"
    literal = f"'{default}'" if isinstance(default, str) else str(default)
    return f"self.{alias} == {literal}"


def exactly_one(*aliases: str) -> Rule:
    """Return the rule of a union: exactly one of the fields is set."""
    return _count_set(aliases, "exists_one(x, x)", lambda n: n == 1, "set exactly one of")


def at_least_one(*aliases: str) -> Rule:
    """Return the rule that one or more of the fields is set."""
    return _count_set(aliases, "exists(x, x)", lambda n: n >= 1, "set at least one of")


def _count_set(aliases: Sequence[str], macro: str, enough: Callable[[int], bool], order: str) -> Rule:
    def holds(self: ApiModel) -> bool:
        return enough(sum(getattr(self, field_by_alias(type(self), alias)) is not None for alias in aliases))

    present = ", ".join(f"has(self.{alias})" for alias in aliases)
    return Rule(f"[{present}].{macro}", holds, f"{order} {', '.join(aliases)}")


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: str = Field(min_length=1, max_length=253)
    """Key inside it."""
