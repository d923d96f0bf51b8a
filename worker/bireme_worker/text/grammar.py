"""Which ids may come next, when an output must have a form: JSON by a schema, a regular expression, a choice.

llguidance walks the grammar; one matcher per choice stands where the choice's ids have led it, so a resumed output is
continued by feeding it what was delivered. Masks have one bit per id of the vocabulary, lowest bit first. Of a model
that thinks before it answers only what follows the thought is bound.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from bireme_worker.text.errors import InvalidGrammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LONGEST: Final = 256 * 1024
"""Characters of a grammar: the largest schemas in use have a tenth of that."""
MOST_PROPERTIES: Final = 2000
"""Of one object: compiling and each mask take time that grows with their square (2,000: 0.3 s and 0.15 s)."""
_LIMITS: Final = LLParserLimits(max_items_in_row=10_000, step_max_items=200_000, verbose_errors=False)
"""An optional property takes four items of a row; the library's own 2,000 broke answers off after their first token."""
_SLOW: Final = 8192
"""Characters of a grammar from which a token may take milliseconds."""
_KEPT: Final = 32
"""Compiled grammars that are kept for the next request."""
_WHITESPACE: Final = r"[\x20\x0A]{0,32}"
"""Between the parts of JSON. Without a bound a weak model writes spaces until its last token."""


@dataclass(frozen=True, slots=True)
class Thought:
    """The ids that open and close a thought; ``begun``: the prompt has opened it already."""

    opens: int
    closes: int
    begun: bool


def json_grammar(schema: Mapping[str, Any] | bool, *, strict: bool = True) -> str:
    """JSON that fits ``schema``; not ``strict``: keywords that can't be enforced are passed over."""
    options: JsonCompileOptions = {"whitespace_pattern": _WHITESPACE, "lenient": not strict}
    text = json.dumps(schema)
    _check_length(text)
    most = max(map(len, _properties(schema)), default=0)
    if most > MOST_PROPERTIES:
        raise InvalidGrammar(f"an object of it has {most} properties, the most is {MOST_PROPERTIES}: split it")
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:
        raise InvalidGrammar(str(error)) from error


def _properties(schema: object) -> Iterator[Mapping[str, Any]]:
    """The properties of every object in it."""
    if isinstance(schema, Mapping):
        if isinstance(properties := schema.get("properties"), Mapping):
            yield properties
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _properties(part)


def regex_grammar(pattern: str) -> str:
    """The whole output matches ``pattern``, in the syntax of Rust's regular expressions."""
    _check_length(pattern)
    return LLMatcher.grammar_from_regex(pattern)


def choice_grammar(choices: Sequence[str]) -> str:
    """The output is one of ``choices``."""
    _check_length("".join(choices))
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))


def lark_grammar(grammar: str) -> str:
    """A grammar in Lark's notation, as llguidance reads it."""
    _check_length(grammar)
    return LLMatcher.grammar_from_lark(grammar)


def _check_length(text: str) -> None:
    if len(text) > LONGEST:
        raise InvalidGrammar(f"it has {len(text)} characters, the most is {LONGEST}")


class Grammars:
    """Compiles grammars for one tokenizer. ``vocabulary``: ids that the model has; ``ends``: those that end a text."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.ends = frozenset(ends)
        self.compile = lru_cache(_KEPT)(self._compile)

    @cached_property
    def _table(self) -> LLTokenizer:
        # The library wants an end; which ids may end a text is the request's matter, so its word on them is not used.
        size = max(self.vocabulary, self._tokenizer.get_vocab_size(with_added_tokens=True))
        return LLTokenizer(self._tokenizer.to_str(), n_vocab=size, eos_token=sorted(self.ends) or [0])

    def _compile(self, grammar: str) -> "Grammar":
        """Take a grammar of one of the functions above. May take a second: call ``compile``, which remembers, in a
        thread.

        Raises:
            InvalidGrammar: it is none, or more than can be enforced; says what.
        """
        try:
            table = self._table
        except ValueError as error:
            raise InvalidGrammar(f"this model's tokenizer can't be bound to a form: {error}") from error
        matcher = LLMatcher(table, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise InvalidGrammar(matcher.get_error().strip())
        compiled = Grammar(self, matcher, slow=len(grammar) > _SLOW)
        if compiled.begin(frozenset(), None).mask(may_end=True) is None and not matcher.is_accepting():
            raise InvalidGrammar("no text of this model's vocabulary fits it")
        return compiled


class Grammar:
    """A compiled grammar, from which every choice gets its own state. ``slow``: its tokens are a thread's work."""

    def __init__(self, grammars: Grammars, matcher: LLMatcher, *, slow: bool) -> None:
        self.slow = slow
        self._grammars = grammars
        self._matcher = matcher

    def begin(self, stops: Collection[int], thought: Thought | None) -> "Constraint":
        """The state before the first id. ``stops``: ids that end this request."""
        return Constraint(self._grammars, self._matcher.deep_copy(), frozenset(stops), thought)


class Constraint:
    """Where one output stands in its grammar, a pure function of its ids."""

    def __init__(self, grammars: Grammars, matcher: LLMatcher, stops: frozenset[int], thought: Thought | None) -> None:
        self._matcher = matcher
        self._stops = stops
        self._size = (grammars.vocabulary + 7) // 8
        self._vocabulary = grammars.vocabulary
        self._ends = grammars.ends
        self._thought = thought
        self._thinking = thought is not None and thought.begun

    def push(self, token: int) -> None:
        """Take the next id."""
        if self._thinking:
            assert self._thought is not None
            if token == self._thought.closes:
                self._thinking, self._thought = False, None
        elif self._thought is not None and token == self._thought.opens:
            self._thinking = True
        else:
            self._thought = None
            self._matcher.consume_token(token)

    @property
    def complete(self) -> bool:
        """Whether the output is whole and nothing can follow."""
        return not self._thinking and self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def may_stop(self) -> bool:
        """Whether what there is fits the grammar as a whole."""
        return not self._thinking and not self._matcher.is_error() and self._matcher.is_accepting()

    def mask(self, *, may_end: bool) -> bytes | None:
        """The ids that may follow, None when there are none. Not ``may_end``: no stop id may be among them."""
        if self._thinking:
            bits = bytearray(b"\xff" * self._size)
            self._clear(bits, self._ends)
        elif self._matcher.is_stopped():
            bits = bytearray(self._size)
        else:
            bits = bytearray(self._matcher.compute_bitmask()[: self._size])
            self._clear(bits, self._ends)
            if self._thought is not None:
                self._set(bits, (self._thought.opens,))
        if not may_end:
            self._clear(bits, self._stops)
        elif self.may_stop:
            self._set(bits, self._ends & self._stops)
        spare = self._size * 8 - self._vocabulary
        bits[-1] &= 0xFF >> spare
        return bytes(bits) if any(bits) else None

    def _set(self, bits: bytearray, ids: Collection[int]) -> None:
        for token in ids:
            bits[token >> 3] |= 1 << (token & 7)

    def _clear(self, bits: bytearray, ids: Collection[int]) -> None:
        for token in ids:
            if token < self._vocabulary:
                bits[token >> 3] &= ~(1 << (token & 7)) & 0xFF
