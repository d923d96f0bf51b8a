"""What all request bodies have in common: strict types, unknown fields refused by name, a null is a field left out."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, PlainValidator, model_validator

from bireme_worker.http.unbuilt import without_neutral


def checked(function: Callable[[Any], object]) -> PlainValidator:
    """A field that ``function`` reads."""
    return PlainValidator(function)


class Body(BaseModel):
    """Base of everything that a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = without_neutral(value)
        return {name: part for name, part in given.items() if part is not None or name not in cls.model_fields}
