"""Plan and result frames: the coordinator decides, every rank of every stage does exactly that, in order.

One totally ordered stream goes from the coordinator to each rank over that rank's own connection; the last stage's
rank 0 returns one Result per Plan. Ranks keep the state of each slot (block table, sampling state, last sample), so a
plan is small: admissions carry a request's constants once, rows only say which slot computes how many tokens.
Plan n + 1 may be issued before Result n: a row then takes its token from *the slot's last sample*.
Slot 0 and block 0 are padding and never used by a request. Token ids travel as little-endian int32 bytes.
"""

from array import array
from typing import Final

import msgspec

from bireme.wire.frames import Codec


class PlanMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of the messages on the plan connection."""


class Attach(PlanMessage, frozen=True):
    """Rank → coordinator, first message: which rank this connection serves, for which epoch."""

    epoch: int
    stage: int
    rank: int


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to draw: constants of a request, set once at admission.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off. ``seed`` is 64 bits and, with
    ``choice`` and the output position, keys the noise (design, section 5). ``logprobs`` −1 is off, 0 the chosen only.
    ``prompt_logprobs`` the same for each token of the prompt, given what stands before it.
    ``stop_ids`` end the request; until ``min_tokens`` outputs exist they can't be drawn.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    choice: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()


class Admit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request takes a slot. Resets the slot's block table; ``prompt`` and ``outputs`` seed penalty counts.

    ``adapter``: which of the group's LoRA adapters computes it, in their order from 1; 0 is none.
    """

    slot: int
    sampling: Sampling
    prompt: bytes = b""
    outputs: bytes = b""
    adapter: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One slot's part of a step.

    ``start``: position of the first token. ``count``: tokens computed. ``ids``: their ids, or empty: the slot's last
    sample (then ``count`` is 1). ``blocks``: appended to the slot's block table before computing. ``output``: index of
    the output token that this row samples, or −1 for a prompt chunk that samples nothing. ``drafts``: how many of the
    last ids are guesses; the row then samples after its last known id and after each guess, ``drafts`` + 1 tokens, and
    the slot's last sample is void.
    """

    slot: int
    start: int
    count: int
    ids: bytes
    blocks: tuple[int, ...]
    output: int
    drafts: int = 0


class Plan(PlanMessage, frozen=True):
    """One step. Order of effect: releases, admissions, rows.

    ``masks``: by slot, the ids that the slot's row may draw, one bit per id of the vocabulary, lowest bit first.
    ``targets``: by slot, ids whose log probability is wanted after each of the first tokens of the slot's row.
    """

    epoch: int
    step: int
    rows: tuple[Row, ...]
    admits: tuple[Admit, ...] = ()
    releases: tuple[int, ...] = ()
    masks: dict[int, bytes] = {}
    targets: dict[int, bytes] = {}


class Commit(PlanMessage, frozen=True):
    """Serve generation ``generation`` from the next plan on; every earlier plan has ended."""

    epoch: int
    generation: int


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Raw log-softmax values: of the drawn id, and of the ``top`` ids in falling order."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class Result(PlanMessage, frozen=True):
    """What step ``step`` drew: ids of the sampling rows in row order, ``drafts`` + 1 of each.

    ``bad`` lists places among them whose logits were not finite: the request fails, others are untouched.
    ``logprobs`` has one entry per id when any row asked. An encoder's rows have a vector each instead (float32, little
    endian), and ids that mean nothing. ``prompt`` has what the plan's ``targets`` asked for, in the order of its rows.
    """

    epoch: int
    step: int
    ids: bytes
    bad: tuple[int, ...] = ()
    logprobs: tuple[Logprobs | None, ...] = ()
    vectors: tuple[bytes, ...] = ()
    prompt: tuple[Logprobs, ...] = ()


def pack_ids(ids: "list[int] | tuple[int, ...] | array[int]") -> bytes:
    """Token ids as little-endian int32 bytes."""
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> "array[int]":
    """The inverse of ``pack_ids``; an ``array('i')``, which behaves like a list of int."""
    ids = array("i")
    ids.frombytes(data)
    return ids


PlanKinds = Attach | Plan | Commit | Result
plan_codec: Codec[PlanKinds] = Codec(PlanKinds)

MAX_SLOTS: Final = 4096
