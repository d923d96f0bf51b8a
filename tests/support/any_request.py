"""Any request body: every field of the schema, right, at the edge of what is right, or spoiled.

Bodies begin right, with a handful of fields, and up to two of all fields are then replaced: by numbers at and beyond
every limit, by values of other types, or by structures with the right keys in the wrong places.
"""

from typing import Any, Final

from hypothesis import strategies as st

from bireme_worker.http.embeddings import EmbeddingsBody
from bireme_worker.http.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from bireme_worker.http.unbuilt import NEUTRAL

Strategies = dict[str, st.SearchStrategy[Any]]

VOCABULARY: Final = 267
LIMITS: Final = (0, 1, 2, 5, 10, 16, 20, 100, 128, 256, 512, 1024, VOCABULARY, 2**31, 2**63, 2**64, 10**40)
EDGES: Final = [
    *(sign * limit + step for limit in LIMITS for sign in (1, -1) for step in (-1, 0, 1)),
    *(0.0, -0.0, 5e-324, 1e-320, 1e-45, 1e-38, 1e-30, 1e-6, 1e-5, 0.009, 0.01, 0.999999999, 1 + 1e-12),
    *(1.0, 2.0, 2.0000001, 10.0, 10.000001, -2.0, -2.0000001, 1e308, -1e308),
]
KEYS: Final = ["type", "function", "name", "parameters", "arguments", "content", "role", "text", "json_schema", "id"]
MORE_KEYS: Final = ["schema", "strict", "json", "regex", "choice", "grammar", "include_usage", "properties", "$ref", ""]
WORDS: Final = ["function", "text", "user", "tool", "assistant", "json_object", "json_schema", "auto", "weather", "é🏳"]
SCALARS = (
    st.sampled_from([None, True, False, *EDGES])
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
    | st.integers(-3, 5)
    | st.floats(-3, 3)
)
JUNK = st.recursive(
    SCALARS,
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, *MORE_KEYS, "0", "65"]), part, max_size=3)
        | st.dictionaries(st.text(max_size=3), part, max_size=2)
    ),
    max_leaves=6,
)
TOKENS = st.integers(0, VOCABULARY - 1)
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL: Final = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CLOCK: Final = {"type": "function", "function": {"name": "clock"}}
CALL: Final = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
PARTS = st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=5))
MESSAGES = st.sampled_from(["system", "developer", "user", "assistant"]).flatmap(
    lambda role: st.fixed_dictionaries(
        {
            "role": st.just(role),
            "content": st.text(max_size=12) | st.lists(PARTS, min_size=1, max_size=2),
        }
    )
) | st.sampled_from(
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "12:00", "tool_call_id": "c"},
        {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"},
    ]
)
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}},
    {"structured_outputs": {"choice": ["left", "右"]}},
    {"guided_json": SCHEMA},
    {"guided_regex": "[0-9]{2,5}"},
    {"guided_choice": ["yes", "no", "だめ"]},
    {"guided_grammar": 'start: "a" start "b" | "c"'},
]
BOTH: Strategies = {
    "temperature": st.floats(0, 2) | st.sampled_from([0, 5e-324, 1e-45, 1e-6, 2]),
    "top_p": st.floats(0, 1, exclude_min=True) | st.sampled_from([5e-324, 1e-45, 1]),
    "top_k": st.integers(-1, 300) | st.just(2**70),
    "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.01, 10),
    "seed": st.integers(),
    "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "stop_token_ids": st.lists(TOKENS, max_size=3),
    "logit_bias": st.dictionaries(TOKENS.map(str), st.floats(-100, 100), max_size=3),
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "priority": st.integers(-5, 5),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 4),
    "prompt_logprobs": st.integers(0, 20),
    "truncate_prompt_tokens": st.sampled_from([-1, 1, 3, 40]),
    "speculate": st.booleans(),
    "return_token_ids": st.booleans(),
    "user": st.text(max_size=5),
    "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    "store": st.just(False),
    "service_tier": st.sampled_from(["auto", "default"]),
    "safety_identifier": st.text(max_size=5),
    "prompt_cache_key": st.text(max_size=5),
}
CHAT: Strategies = BOTH | {
    "max_completion_tokens": st.integers(4, 8),
    "logprobs": st.booleans(),
    "tools": st.sampled_from([[], [TOOL], [TOOL, CLOCK]]),
    "parallel_tool_calls": st.booleans(),
    "chat_template_kwargs": st.dictionaries(st.text(max_size=5), st.integers(), max_size=2)
    | st.sampled_from([{"enable_thinking": True}, {"enable_thinking": False}, {"messages": []}]),
}
COMPLETION: Strategies = BOTH | {
    "logprobs": st.integers(0, 5),
    "echo": st.booleans(),
    "best_of": st.integers(3, 5),
}
PROMPTS = (
    st.text(min_size=1, max_size=20)
    | st.lists(TOKENS, min_size=1, max_size=40)
    | st.lists(st.text(min_size=1, max_size=5) | st.lists(TOKENS, min_size=1, max_size=5), min_size=1, max_size=3)
)
EXTRA: Final = {*NEUTRAL, "max_tokns", "bireme"}
CHAT_FIELDS: Final = sorted({*ChatBody.model_fields, *EXTRA})
COMPLETION_FIELDS: Final = sorted({*CompletionBody.model_fields, *EXTRA})
FIELDS: Final = {
    "chat": CHAT_FIELDS,
    "completions": COMPLETION_FIELDS,
    "tokenize": sorted({*TokenizeBody.model_fields, *EXTRA}),
    "detokenize": sorted({*DetokenizeBody.model_fields, *EXTRA}),
    "embeddings": sorted({*EmbeddingsBody.model_fields, *EXTRA}),
}
DRAWN_ELSEWHERE: Final = {
    *("model", "messages", "prompt", "max_tokens", "stream_options", "tool_choice", "top_logprobs"),
    *(field for form in FORMS for field in form),
}
"""Needed fields, and those that depend on others."""


@st.composite
def chats(draw: st.DrawFn) -> dict[str, Any]:
    """A body for chat."""
    body = _begun(draw, CHAT)
    body["messages"] = draw(st.lists(MESSAGES, min_size=1, max_size=3))
    if body.get("tools"):
        named = {"type": "function", "function": {"name": "weather"}}
        body["tool_choice"] = draw(st.sampled_from(["none", "auto", "required", named]))
    if body.get("logprobs"):
        body["top_logprobs"] = draw(st.integers(0, 20))
    return _spoiled(draw, body, CHAT_FIELDS)


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    """A body for completions."""
    body = _begun(draw, COMPLETION)
    body["prompt"] = draw(PROMPTS)
    return _spoiled(draw, body, COMPLETION_FIELDS)


@st.composite
def tokenizing(draw: st.DrawFn) -> dict[str, Any]:
    """A body for tokenize."""
    body: dict[str, Any] = {"model": "smol"}
    if draw(st.booleans()):
        body["prompt"] = draw(st.text(max_size=20))
    else:
        body |= {"messages": draw(st.lists(MESSAGES, min_size=1, max_size=3)), "tools": draw(CHAT["tools"])}
    return _spoiled(draw, body, FIELDS["tokenize"])


@st.composite
def detokenizing(draw: st.DrawFn) -> dict[str, Any]:
    """A body for detokenize."""
    return _spoiled(draw, {"model": "smol", "tokens": draw(st.lists(TOKENS, max_size=9))}, FIELDS["detokenize"])


@st.composite
def embedding(draw: st.DrawFn, model: str, vocabulary: int, size: int) -> dict[str, Any]:
    """A body for embeddings."""
    texts = st.text(min_size=1, max_size=20) | st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=9)
    body = {"model": model, "input": draw(texts | st.lists(texts, min_size=1, max_size=4))}
    more: Strategies = {
        "dimensions": st.integers(1, size),
        "encoding_format": st.sampled_from(["float", "base64"]),
        "priority": st.integers(-5, 5),
    }
    body |= {name: draw(more[name]) for name in sorted(draw(st.sets(st.sampled_from(sorted(more)))))}
    return _spoiled(draw, body, FIELDS["embeddings"])


def _begun(draw: st.DrawFn, known: Strategies) -> dict[str, Any]:
    chosen = draw(st.sets(st.sampled_from(sorted(known)), max_size=6))
    body: dict[str, Any] = {"model": draw(st.sampled_from(["smol", "smol", "pirate"]))}
    body |= {name: draw(known[name]) for name in sorted(chosen)}
    if "max_completion_tokens" not in body:
        body["max_tokens"] = draw(st.integers(4, 8))
    if body.get("stream"):
        body |= draw(st.sampled_from([{}, {"stream_options": {"include_usage": True}}]))
    if not body.get("tools") and draw(st.integers(0, 3)) == 0:
        body |= draw(st.sampled_from(FORMS))
    return body


def _spoiled(draw: st.DrawFn, body: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    for name in draw(st.lists(st.sampled_from(fields), max_size=2)):
        body[name] = draw(st.sampled_from(EDGES) | JUNK)
    return body
