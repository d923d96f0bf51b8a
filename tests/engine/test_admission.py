"""What is refused at the door, and in which words."""

import math

import msgspec
import pytest

from bireme.names import Admission
from bireme.wire.plan import Sampling
from bireme.wire.requests import Submit
from bireme_worker.engine.admission import Capacity, refuse, refuse_full
from tests.support.engine_driver import submit

CAPACITY = Capacity(context=100, vocabulary=50, running=2, queue=3, kv_blocks=65)
PROMPT = [1, 2, 3]


def message(request: Submit, capacity: Capacity = CAPACITY) -> str:
    refusal = refuse(request, capacity)
    assert refusal is not None
    assert refusal.code == Admission.NEVER_FITS
    return refusal.message


def test_what_fits_exactly_is_taken() -> None:
    assert refuse(submit([1] * 60, max_tokens=40), CAPACITY) is None


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_with_the_numbers() -> None:
    assert message(submit([1] * 100, 1)) == (
        "the prompt has 100 tokens and the context holds 100: shorten it to at most 99"
    )


def test_prompt_and_max_tokens_over_the_context_are_refused_with_the_numbers() -> None:
    assert message(submit([1] * 60, 41)) == (
        "the prompt has 60 tokens and max_tokens is 41, together 101, and the context holds 100: ask for at most 40"
    )


def test_a_kv_cache_smaller_than_the_context_is_named() -> None:
    small = Capacity(context=100, vocabulary=50, running=2, queue=3, kv_blocks=4)
    assert "the KV cache holds 48: ask for at most 8" in message(submit([1] * 40, 20), small)
    assert (small.limits.context, small.limits.wanted) == (48, 100)
    assert (CAPACITY.limits.context, CAPACITY.limits.wanted) == (100, 0)


def test_the_remedy_for_a_small_kv_cache_is_named_where_it_would_help() -> None:
    small = Capacity(context=100, vocabulary=50, running=2, queue=3, kv_blocks=4)
    for request in (submit([1] * 40, 20), submit([1] * 60, 1)):
        told = message(request, small)
        assert "of 100 tokens that are allowed the KV cache holds 48: for all of them make engine.kvCache.bytes" in told
        assert "2.1 times as large" in told
    assert "kvCache" not in message(submit([1] * 100, 1), small)
    assert "kvCache" not in message(submit([1] * 60, 41))


@pytest.mark.parametrize("max_tokens", [0, -1, -(2**40), 2**40])
def test_a_senseless_max_tokens_is_refused(max_tokens: int) -> None:
    assert f"max_tokens is {max_tokens}" in message(submit(PROMPT, max_tokens))


def test_more_outputs_than_max_tokens_are_refused() -> None:
    assert "at least the 3 tokens given" in message(submit(PROMPT, 2, outputs=[1, 2, 3]))


def test_an_empty_prompt_is_refused() -> None:
    assert "empty" in message(submit([], 1))


@pytest.mark.parametrize("token", [-1, 50, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    assert f"token id {token}" in message(submit([1, token], 1))
    assert f"token id {token}" in message(submit([1], 9, outputs=[token]))
    assert f"token id {token}" in message(submit([1], 1, sampling=Sampling(stop_ids=(token,))))
    assert f"token id {token}" in message(submit([1], 1, sampling=Sampling(logit_bias={token: 1.0})))


def test_half_an_id_is_refused() -> None:
    assert "int32" in message(Submit(1, "r", b"\0\0\0", Sampling(), 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 5e-324),
        ("repetition_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("presence_penalty", -math.inf),
        ("seed", -1),
        ("seed", 2**64),
        ("choice", -1),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("min_tokens", -1),
    ],
)
def test_a_sampling_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    assert message(submit(PROMPT, 1, sampling=msgspec.structs.replace(Sampling(), **{name: value}))).startswith(name)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_likeliest_ids_than_there_are_are_refused(name: str) -> None:
    assert message(submit(PROMPT, 1, sampling=msgspec.structs.replace(Sampling(), **{name: 51}))).startswith("51 log")
    assert refuse(submit(PROMPT, 1, sampling=msgspec.structs.replace(Sampling(), **{name: 50})), CAPACITY) is None


def test_a_mask_that_is_not_of_this_vocabulary_is_refused() -> None:
    request = msgspec.structs.replace(submit(PROMPT, 1), mask=b"\xff" * 8)
    assert message(request) == "a mask has 8 bytes, of 50 ids it has 7"
    assert refuse(msgspec.structs.replace(request, mask=b"\xff" * 7), CAPACITY) is None


@pytest.mark.parametrize("bias", [math.nan, math.inf, 1e31, -1e31])
def test_an_infinite_bias_is_refused(bias: float) -> None:
    assert "logit_bias" in message(submit(PROMPT, 1, sampling=Sampling(logit_bias={1: bias})))


def test_a_full_queue_is_refused_for_now() -> None:
    assert refuse_full(4, CAPACITY) is None
    refusal = refuse_full(5, CAPACITY)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (Admission.QUEUE_FULL, 1.0)
    assert "2 requests may run and 3 may wait" in refusal.message


def test_without_a_queue_as_many_are_taken_as_can_run() -> None:
    none_waits = Capacity(context=100, vocabulary=50, running=2, queue=0, kv_blocks=65)
    assert refuse_full(1, none_waits) is None
    assert refuse_full(2, none_waits) is not None
