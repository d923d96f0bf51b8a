"""Whether an answer is right, as far as the request alone tells: counts, forms, ends, and a stream like the whole.

What the model should have said is the oracle's matter; this judges any request that was taken.
"""

import json
from typing import Any

import jsonschema

from tests.support.any_request import SCHEMA

NOISE = 1e-3
"""A log probability may be above 0 by rounding."""


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream that ended as it should."""
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    assert parts.pop() == "data: [DONE]"
    found = [json.loads(part.removeprefix("data: ")) for part in parts]
    assert all("error" not in event for event in found), found
    return found


def choices_of(body: dict[str, Any]) -> int:
    """How many choices a taken request must have."""
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    return prompts * (body.get("n") or 1)


def judge_whole(body: dict[str, Any], answer: dict[str, Any]) -> None:
    """An answer without stream."""
    choices, usage = answer["choices"], answer["usage"]
    assert [choice["index"] for choice in choices] == list(range(choices_of(body)))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] >= 1
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None:
        drawn = len(choices) // (body.get("n") or 1) * (body.get("best_of") or body.get("n") or 1)
        assert usage["completion_tokens"] <= limit * drawn
    for choice in choices:
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        _judge_text(body, choice)
        _judge_logprobs(body, choice)
        told = choice.get("prompt_logprobs") or [None]
        assert told[0] is None
        assert all(1 <= len(one) <= body["prompt_logprobs"] + 1 for one in told[1:])
    if body.get("return_token_ids") and body.get("best_of") is None:
        assert sum(len(choice["token_ids"]) for choice in choices) == usage["completion_tokens"]


def _judge_text(body: dict[str, Any], choice: dict[str, Any]) -> None:
    text = choice.get("text") if "text" in choice else choice["message"]["content"]
    stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
    if body.get("echo") or text is None:
        return
    parted = choice.get("message", {}).keys() & {"reasoning_content", "tool_calls"}  # what is left may join to one
    assert parted or not any(stop in text for stop in stops)
    if choice["finish_reason"] == "stop" and not stops and not body.get("stop_token_ids"):
        _judge_form(body, text)


def _judge_form(body: dict[str, Any], text: str) -> None:
    named = (body.get("response_format") or {}).get("type")
    guided = body.get("guided_choice") or (body.get("structured_outputs") or {}).get("choice")
    if guided:
        assert text in guided
    if named == "json_object":
        assert isinstance(json.loads(text), dict)
    schema = body.get("guided_json")
    if named == "json_schema":
        schema = body["response_format"]["json_schema"].get("schema")
    if schema == SCHEMA:
        jsonschema.validate(json.loads(text), SCHEMA)
    if body.get("guided_regex") == "[0-9]{2,5}":
        assert text.isdigit()
        assert 2 <= len(text) <= 5


def _judge_logprobs(body: dict[str, Any], choice: dict[str, Any]) -> None:
    scored = choice["logprobs"]
    wanted: Any = body.get("logprobs")
    assert (scored is not None) == (wanted is not None and wanted is not False)
    if scored is None:
        return
    if "content" in scored:
        assert all(len(one["top_logprobs"]) == (body.get("top_logprobs") or 0) for one in scored["content"])
        assert all(one["logprob"] <= NOISE for one in scored["content"])
        return
    assert len({len(column) for column in scored.values()}) == 1
    assert scored["text_offset"] == sorted(scored["text_offset"])
    for token, value, top in zip(scored["tokens"], scored["token_logprobs"], scored["top_logprobs"], strict=True):
        assert (value is None) == (top is None)
        if top is not None:
            assert 1 <= len(top) <= wanted + 1
            assert top[token] >= value - NOISE
            assert value <= NOISE


def summed(stream: list[dict[str, Any]], count: int) -> list[tuple[str, str, list[str], str | None]]:
    """Text, thought, arguments and end of each choice of a stream."""
    return [_sum([c for event in stream for c in event["choices"] if c["index"] == index]) for index in range(count)]


def _sum(parts: list[dict[str, Any]]) -> tuple[str, str, list[str], str | None]:
    deltas = [part.get("delta", part) for part in parts]
    text = "".join(delta.get("text") or delta.get("content") or "" for delta in deltas)
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    calls: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls") or []):
        calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
    ends = [part["finish_reason"] for part in parts if part["finish_reason"]]
    assert len(ends) == 1
    return text, thought, [calls[index] for index in sorted(calls)], ends[0]


def of_whole(answer: dict[str, Any]) -> list[tuple[str, str, list[str], str | None]]:
    """The same of an answer without stream."""
    found = []
    for choice in answer["choices"]:
        message = choice.get("message", choice)
        text = message.get("text") or message.get("content") or ""
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
        found.append((text, message.get("reasoning_content") or "", calls, choice["finish_reason"]))
    return found
