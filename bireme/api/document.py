"""From YAML or JSON to an InferenceDeployment, or to a list of all that is wrong with it, with line numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bireme.api.deployment import InferenceDeployment
from bireme.api.errors import InvalidDeployment, Problem, UnreadableFile, problems_of, with_lines
from bireme.names import GROUP, KIND, VERSION


def load(source: str | Path) -> InferenceDeployment:
    """Read one InferenceDeployment from YAML text, or from a file when ``source`` is a Path.

    Raises:
        InvalidDeployment: with every problem found, each with its line and what to do.
        UnreadableFile: there is no such file, or it is no text.
    """
    name = str(source) if isinstance(source, Path) else "the text"
    text = _read(source) if isinstance(source, Path) else source
    try:
        return _load_text(text)
    except InvalidDeployment as error:
        raise InvalidDeployment(list(error.problems), name) from None


def parse(document: object) -> InferenceDeployment:
    """Make an InferenceDeployment of an object as the API server or YAML gives it.

    Raises:
        InvalidDeployment: with every problem found, without line numbers.
    """
    if not isinstance(document, Mapping):
        raise InvalidDeployment([Problem(0, (), "write a mapping with apiVersion, kind, metadata and spec")])
    text = json.dumps(_without_nulls(document), default=str)
    try:
        # JSON mode, because strictness there is the API server's: "2" is no number, but a list is a tuple.
        return InferenceDeployment.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidDeployment(problems_of(error, InferenceDeployment)) from None


def _load_text(text: str) -> InferenceDeployment:
    from bireme.api.yaml_source import read_yaml  # noqa: PLC0415  # PyYAML comes with the extras that read files

    source = read_yaml(text)
    problems = source.problems + _missing_kind(source.document)
    try:
        deployment = parse(source.document)
    except InvalidDeployment as error:
        problems = problems + with_lines(error.problems, source.lines)
    if problems:
        raise InvalidDeployment(problems)
    return deployment


def _missing_kind(document: object) -> list[Problem]:
    """Ask for what kubectl needs of a file. `parse` does not: the API server leaves it out of a list's items."""
    needed = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    absent = [name for name in needed if isinstance(document, Mapping) and name not in document]
    return [Problem(0, (name,), f"add `{name}: {needed[name]}`") for name in absent]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, str(error)) from None


def _without_nulls(value: Any) -> Any:
    """The API server drops a null before it looks at anything else, so `stageLayers: null` is an absent field."""
    if isinstance(value, Mapping):
        return {str(key): _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value
