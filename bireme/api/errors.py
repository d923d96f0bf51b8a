"""What is wrong with a deployment file, as a list of instructions.

    InvalidDeployment      the text, or what it describes, is not a valid InferenceDeployment
      UnreadableFile       there is no text to be had

Pydantic says what was expected; the reader wants to know what to write, and where.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from bireme.api.types import IN_WORDS

Location = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to put right. ``line`` counts from 1, 0 when unknown."""

    line: int
    location: Location
    instruction: str

    def __str__(self) -> str:
        place = dotted(self.location) or "the document"
        prefix = f"line {self.line}: " if self.line else ""
        return f"{prefix}{place}: {self.instruction}"


class InvalidDeployment(ValueError):
    """A text or object is not a valid InferenceDeployment; the message lists every problem found."""

    def __init__(self, problems: list[Problem], source: str = "the deployment") -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{source} is not a valid InferenceDeployment:\n{lines}")


class UnreadableFile(InvalidDeployment):
    """A file that was named can't be read."""

    def __init__(self, path: Path, why: str) -> None:
        self.problems = ()
        ValueError.__init__(self, f"{path} can't be read ({why}): name a UTF-8 file with an InferenceDeployment")


def dotted(location: Location) -> str:
    """Write a location as people do: ``spec.placement.topology[0].key``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def with_lines(problems: Iterable[Problem], lines: Mapping[Location, int]) -> list[Problem]:
    """Add to each problem the line of its field, or of the nearest parent that is in the file."""
    return [replace(problem, line=_nearest_line(problem.location, lines)) for problem in problems]


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Translate what pydantic found in the alias form of ``root`` into instructions."""
    return [problem for detail in error.errors(include_url=False) for problem in _translate(dict(detail), root)]


def _nearest_line(location: Location, lines: Mapping[Location, int]) -> int:
    while location and location not in lines:
        location = location[:-1]
    return lines.get(location, 0)


def _translate(detail: dict[str, Any], root: type[BaseModel]) -> Iterator[Problem]:
    location: Location = detail["loc"]
    if detail["type"] == "broken_rules":
        for field, message in detail["ctx"]["broken"]:
            yield Problem(0, (*location, field) if field else location, message)
    elif detail["type"] == "extra_forbidden":
        yield Problem(0, location, _unknown_field(location, root))
    else:
        yield Problem(0, location, _instruction(detail))


def _unknown_field(location: Location, root: type[BaseModel]) -> str:
    parent = model_at(location[:-1], root)
    assert parent is not None, "only models forbid extra fields"
    known = list(_aliases(parent))
    word = str(location[-1])
    by_case = {name.lower(): name for name in known}
    close = by_case.get(word.lower().replace("_", "")) or next(iter(get_close_matches(word, known, 1)), None)
    if close:
        return f"unknown field; did you mean {close}?"
    elsewhere = [dotted(path) for path in _paths(root) if path[-1] == word]
    hint = f"it belongs to {' or '.join(elsewhere)}" if elsewhere else f"remove it or use one of {', '.join(known)}"
    return f"unknown field; {hint}"


def _quantity(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_INSTRUCTIONS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "missing": lambda _: "add this field, it is required",
    "greater_than_equal": lambda ctx: f"use {ctx['ge']} or more",
    "less_than_equal": lambda ctx: f"use {ctx['le']} or less",
    "int_type": lambda _: "write a whole number",
    "int_from_float": lambda _: "write a whole number",
    "bool_type": lambda _: "write true or false",
    "string_type": lambda _: "write a string, in quotes if it looks like a number",
    "tuple_type": lambda _: "write a list",
    "dict_type": lambda _: "write a mapping of fields",
    "model_type": lambda _: "write a mapping of fields",
    "enum": lambda ctx: f"use one of {ctx['expected']}",
    "literal_error": lambda ctx: f"write {ctx['expected']}",
    "too_long": lambda ctx: f"keep to {_quantity(ctx['max_length'], 'entry').replace('entrys', 'entries')}",
    "too_short": lambda ctx: f"list at least {ctx['min_length']}",
    "string_too_long": lambda ctx: f"shorten it to {_quantity(ctx['max_length'], 'character')}",
    "string_too_short": lambda ctx: f"write at least {_quantity(ctx['min_length'], 'character')}",
    "string_pattern_mismatch": lambda ctx: f"write {IN_WORDS.get(ctx['pattern'], 'text like ' + ctx['pattern'])}",
}


def _instruction(detail: dict[str, Any]) -> str:
    write = _INSTRUCTIONS.get(detail["type"])
    order = write(detail.get("ctx", {})) if write else str(detail["msg"])
    found = detail["input"]
    if detail["type"] == "missing" or isinstance(found, dict | list):
        return order
    close = _close_value(str(found), detail) if detail["type"] == "enum" else ""
    return f"{order}, found {found!r}{close}"


def _close_value(found: str, detail: dict[str, Any]) -> str:
    expected = [word.strip("'") for word in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    close = get_close_matches(found, expected, 1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _aliases(model: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}


def model_at(location: Location, root: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model that ``location`` (in aliases and list indices) leads to, None where a value stands."""
    model: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, str):
            model = _model_in(_aliases(model).get(part)) if model else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model inside ``X``, ``X | None``, ``tuple[X, ...]`` and their annotated forms."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


def _paths(model: type[BaseModel], prefix: Location = ()) -> Iterator[Location]:
    for alias, annotation in _aliases(model).items():
        yield (*prefix, alias)
        if inner := _model_in(annotation):
            yield from _paths(inner, (*prefix, alias))
