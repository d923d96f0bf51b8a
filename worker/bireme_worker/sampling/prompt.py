"""Log probabilities of prompt tokens, each given what stands before it.

All tokens of a chunk are scored, not only its last, so their logits are made some at a time: of a long chunk and a
large vocabulary they would take more memory than the layers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from bireme.wire.plan import Logprobs
from bireme_worker.models.shard import VocabularyShard
from bireme_worker.models.transfer import upload
from bireme_worker.parallel.communicator import Communicator
from bireme_worker.sampling.logprobs import Report, report
from bireme_worker.sampling.sampler import Sampled

AT_A_TIME: Final = 128
"""Tokens whose logits are in memory together."""

Scored = Sequence[tuple[int, bytes, int]]
"""(first token, the ids that follow it and its neighbours, how many of the likeliest are wanted) of each row."""


def score(
    hidden: torch.Tensor,
    scored: Scored,
    logits: Callable[[torch.Tensor], torch.Tensor],
    shard: VocabularyShard,
    communicator: Communicator,
) -> Report:
    """The report of all scored tokens of ``hidden [tokens, size]``."""
    ids = [np.frombuffer(targets, "<i4") for _, targets, _ in scored]
    places = [np.arange(first, first + len(row)) for (first, _, _), row in zip(scored, ids, strict=True)]
    index, wanted = (upload(np.concatenate(x).astype(np.int64), hidden.device) for x in (places, ids))
    top = max(top for _, _, top in scored)
    parts = [
        report(logits(hidden.index_select(0, some)), targets, top, shard, communicator)
        for some, targets in zip(torch.split(index, AT_A_TIME), torch.split(wanted, AT_A_TIME), strict=True)
    ]
    return Report(*(torch.cat([getattr(part, name) for part in parts]) for name in ("chosen", "values", "ids")))


def with_prompt(sampled: Sampled | None, prompt: Report) -> Sampled:
    """A step's draws, if it has any, with the report of its prompts."""
    if sampled is not None:
        return dataclasses.replace(sampled, prompt=prompt)
    none = torch.empty(0, dtype=torch.int64, device=prompt.chosen.device)
    return Sampled(none, none.bool(), None, prompt=prompt)


def prompt_logprobs(scored: Scored, prompt: Report | None) -> tuple[Logprobs, ...]:
    """The same for the wire."""
    if prompt is None:
        return ()
    tops = [top for _, targets, top in scored for _ in range(len(targets) // 4)]
    rows = zip(prompt.chosen.tolist(), prompt.ids.tolist(), prompt.values.tolist(), tops, strict=True)
    return tuple(Logprobs(one, tuple(zip(ids[:top], values[:top], strict=True))) for one, ids, values, top in rows)
