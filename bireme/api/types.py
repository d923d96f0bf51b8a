"""The value types that several parts of the API share, each with its bounds.

Bounds are part of the contract: they become `minimum`, `maxLength` and `pattern` in the CRD, where the API server
needs them to bound the cost of rules. A pattern has words, because a regular expression is no instruction.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_REPLICAS: Final = 1000
MAX_STAGES: Final = 64
POD_HASH_LENGTH: Final = 8
# A pod is named <name>-<group>-<stage>-<hash>, and its name is a host name too: 63 characters at most.
# Group indices get four digits, because a rollout's surge groups come on top of MAX_REPLICAS.
MAX_NAME_LENGTH: Final = 63 - len(f"-9999-{MAX_STAGES - 1}-") - POD_HASH_LENGTH

DNS_LABEL: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL_KEY: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
CAMEL_CASE: Final = r"^[A-Z][A-Za-z0-9]*$"
ABSOLUTE_PATH: Final = r"^/"
RELATIVE_PATH: Final = r"^[^/]"
PERCENT: Final = r"^[1-9][0-9]?%$"
ADAPTER_PATH: Final = r"^/[^,=]*$"
QUANTITY: Final = r"^[1-9][0-9]{0,14}(k|M|G|T|Ki|Mi|Gi|Ti)?$"

IN_WORDS: Final = {
    OBJECT_NAME: "the name of a Kubernetes object (lower-case letters, digits, '-' and '.')",
    LABEL_KEY: "a label key such as topology.kubernetes.io/rack",
    LABEL_VALUE: "letters, digits, '-', '_' and '.', with a letter or digit first and last",
    CAMEL_CASE: "one CamelCase word",
    ABSOLUTE_PATH: "an absolute path, which begins with /",
    RELATIVE_PATH: "a relative path, which does not begin with /",
    ADAPTER_PATH: "an absolute path without ',' and '='",
    PERCENT: "a whole percentage from 1% to 99%, such as 90%",
    QUANTITY: "a number of bytes, or one with k, M, G, T, Ki, Mi, Gi or Ti, such as 8Gi",
}

_FACTORS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def byte_count(quantity: int | str) -> int:
    """Return the bytes that a quantity such as ``8Gi``, ``"500M"`` or ``1048576`` means."""
    if isinstance(quantity, int):
        return quantity
    digits = quantity.rstrip("kKMGTi")
    return int(digits) * _FACTORS[quantity[len(digits) :]]


def _check_quantity(quantity: object) -> object:
    # Before the union is tried, because each of its branches would report an error of its own.
    if isinstance(quantity, bool) or not re.fullmatch(QUANTITY, str(quantity)):
        raise PydanticCustomError("string_pattern_mismatch", "not a quantity", {"pattern": QUANTITY})
    return quantity


Quantity = Annotated[
    int | str,
    BeforeValidator(_check_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY, "minimum": 1, "maxLength": 17}),
]
"""Bytes: an integer, or a string with a decimal or binary suffix."""


@dataclass(frozen=True)
class ListKeys:
    """Marks a tuple whose entries differ: wholly (a set), or in the field ``key`` (a map list, merged by that key)."""

    key: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_doubles, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        keys = {"x-kubernetes-list-map-keys": [self.key]} if self.key else {}
        return handler(core) | {"x-kubernetes-list-type": "map" if self.key else "set"} | keys

    def _refuse_doubles(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        identities = [getattr(entry, self.key) if self.key else entry for entry in entries]
        if len(set(identities)) < len(identities):
            what = self.key or "entry"
            raise PydanticCustomError("doubles", "list every {what} once", {"what": what})
        return entries


Seconds = Annotated[int, Field(ge=0, le=31_536_000)]
PositiveSeconds = Annotated[int, Field(ge=1, le=31_536_000)]
Milliseconds = Annotated[int, Field(ge=0, le=31_536_000_000)]
Percent = Annotated[int, Field(ge=0, le=100)]
Counter = Annotated[int, Field(ge=0)]
GroupCount = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
Text = Annotated[str, Field(max_length=1024)]
ObjectName = Annotated[str, Field(max_length=253, pattern=OBJECT_NAME)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
ModelRevision = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
Revision = Annotated[str, Field(max_length=63)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""An RFC 3339 time in UTC, such as 2026-11-27T18:00:00Z."""
