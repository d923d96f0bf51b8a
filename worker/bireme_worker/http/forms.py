"""Fields that say what form an answer must have: `response_format`, and vLLM's `structured_outputs` and `guided_…`.

All become one grammar, which is compiled later, with the model's tokenizer.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bireme_worker.http.remedies import wrong
from bireme_worker.text.errors import InvalidGrammar
from bireme_worker.text.grammar import choice_grammar, json_grammar, lark_grammar, regex_grammar

MOST_CHOICES: Final = 1024


@dataclass(frozen=True, slots=True)
class Form:
    """``grammar``: what `text.grammar` made of it; ``field``: who asked, for the refusal."""

    field: str
    grammar: str


def _schema(value: object, *, strict: bool = True) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise wrong(f"is no JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise wrong("must be a JSON schema, which is an object")
    return json_grammar(value, strict=strict)


def _object(value: object) -> str:
    if value is not True:
        raise wrong("must be true, or left out")
    return json_grammar({"type": "object"})


def _text(make: Callable[[str], str]) -> Callable[[object], str]:
    def grammar(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise wrong("must be a text that is not empty")
        return make(value)

    return grammar


def _choice(value: object) -> str:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_CHOICES:
        raise wrong(f"must be a list of 1 to {MOST_CHOICES} texts")
    if not all(isinstance(choice, str) and choice for choice in value):
        raise wrong("has a choice that is no text, or an empty one")
    return choice_grammar(value)


_KINDS: Final[Mapping[str, Callable[[object], str]]] = {
    "json": _schema,
    "json_object": _object,
    "regex": _text(regex_grammar),
    "choice": _choice,
    "grammar": _text(lark_grammar),
}


def guided(kind: str) -> Callable[[object], Form]:
    """Reader of vLLM's field ``guided_<kind>``."""
    return lambda value: _made(f"guided_{kind}", _KINDS[kind], value)


def read_structured_outputs(value: object) -> Form:
    """VLLM's `structured_outputs`: an object with exactly one kind."""
    known = ", ".join(_KINDS)
    given = _given(value)
    if len(given) != 1 or not given.keys() <= _KINDS.keys():
        raise wrong(f"must be an object with exactly one of {known}")
    ((kind, part),) = given.items()
    return _made("structured_outputs", _KINDS[kind], part)


def read_response_format(value: object) -> Form | None:
    """OpenAI's `response_format`."""
    given = _given(value)
    match given.get("type"):
        case "text" if len(given) == 1:
            return None
        case "json_object" if len(given) == 1:
            return Form("response_format", json_grammar({"type": "object"}))
        case "json_schema" if given.keys() == {"type", "json_schema"}:
            return _named_schema(_given(given["json_schema"]))
    raise wrong(
        'must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "json_schema": {"name": …, "schema": …, "strict": …}}'
    )


def _named_schema(named: Mapping[str, Any]) -> Form:
    if not named.keys() <= {"name", "description", "schema", "strict"}:
        raise wrong("has a json_schema with other keys than name, description, schema and strict")
    if not isinstance(named.get("name"), str) or not 0 < len(named["name"]) <= 64:
        raise wrong("has a json_schema without a name of 1 to 64 characters")
    if not isinstance(named.get("strict", False), bool) or not isinstance(named.get("description", ""), str):
        raise wrong("has a json_schema whose strict is no boolean or whose description is no text")
    strict = named.get("strict", False)
    schema = named.get("schema", {"type": "object"})
    return _made("response_format", lambda value: _schema(value, strict=strict), schema)


def _given(value: object) -> dict[str, Any]:
    """An object without its nulls."""
    if not isinstance(value, dict):
        raise wrong("must be an object")
    return {name: part for name, part in value.items() if part is not None}


def _made(field: str, make: Callable[[object], str], value: object) -> Form:
    try:
        return Form(field, make(value))
    except (InvalidGrammar, RecursionError, UnicodeError) as error:
        raise wrong(f"can't be used: {error}") from error


def only_one(forms: Sequence[Form | None]) -> Form | None:
    """The form that was asked for; two would contradict each other."""
    asked = [form for form in forms if form is not None]
    if len(asked) > 1:
        raise wrong(" and ".join(form.field for form in asked) + " are given: leave out all but one")
    return asked[0] if asked else None
