"""The oracle of the design, section 6.6: how every test judges text.

One fp32 pass of a reference model over prompt + delivered ids; at each position the delivered id's score (its logit,
or logit/T + noise after penalties, bias and filters) must be within 1e-3 of the best score. Where it is not the best
itself, that is a tie: two correct fp32 computations differ by up to 1e-4, so ties are counted, printed and bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bireme.wire.plan import Sampling

TOLERANCE: Final = 1e-3
TIE_SHARE: Final = 0.001


class Reference(Protocol):
    """Anything with transformers' calling convention."""

    def __call__(self, input_ids: torch.Tensor) -> object: ...


@dataclass(frozen=True)
class Miss:
    """An id that the reference would not have drawn. ``gap``: how far its score is below the best."""

    request: str
    position: int
    got: int
    best: int
    gap: float


@dataclass
class Verdict:
    """The sum over all judged requests."""

    tokens: int = 0
    ties: list[Miss] = field(default_factory=list)
    wrong: list[Miss] = field(default_factory=list)

    def check(self) -> None:
        """Fail the test if any id is wrong or ties are too many; prints the ties."""
        for tie in self.ties:
            print(f"tie: {tie}")
        assert not self.wrong, f"{len(self.wrong)} of {self.tokens} ids are wrong, first: {self.wrong[0]}"
        allowed = max(1, round(self.tokens * TIE_SHARE))
        assert len(self.ties) <= allowed, f"{len(self.ties)} ties in {self.tokens} ids, {allowed} allowed: {self.ties}"


class Oracle:
    """Judges against ``reference``, a causal model in fp32 whose output has ``.logits`` [1, length, vocabulary]."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self.verdict = Verdict()

    def judge(
        self,
        prompt: Sequence[int],
        delivered: Sequence[int],
        sampling: Sampling | None = None,
        request: str = "",
        *,
        first: int = 0,
    ) -> None:
        """Judge ``delivered`` as the continuation of ``prompt`` under ``sampling`` (default greedy).

        What comes before position ``first`` was drawn by other weights and is taken as given.
        """
        sampling = sampling or Sampling()
        with torch.inference_mode():
            output = self._reference(torch.tensor([[*prompt, *delivered]]))
        logits = output.logits[0, len(prompt) - 1 : -1].float()  # type: ignore[attr-defined]
        for position, got in list(enumerate(delivered))[first:]:
            scores = score(logits[position], sampling, list(prompt), list(delivered[:position]))
            best = int(scores.argmax())
            self.verdict.tokens += 1
            if got != best:
                miss = Miss(request, position, got, best, float(scores[best] - scores[got]))
                (self.verdict.ties if miss.gap <= TOLERANCE else self.verdict.wrong).append(miss)


def score(logits: torch.Tensor, sampling: Sampling, prompt: list[int], outputs: list[int]) -> torch.Tensor:
    """The score of every vocabulary entry ``[vocabulary]`` as design section 5, "Sampling", defines it.

    Order: repetition penalty (prompt and outputs), frequency and presence penalties (outputs), bias, forbidden stop
    ids, temperature, top-k, top-p, min-p, noise.
    """
    logits = _penalised(logits.clone(), sampling, prompt, outputs)
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
    if len(outputs) < sampling.min_tokens:
        logits[list(sampling.stop_ids)] = -torch.inf
    if sampling.temperature == 0:
        return logits
    logits = _filtered(logits / sampling.temperature, sampling)
    return logits + torch.from_numpy(noise(sampling.seed, len(outputs), len(logits), sampling.choice))


def noise(seed: int, position: int, vocabulary: int, choice: int = 0) -> NDArray[np.float32]:
    """``bireme.philox.gumbel`` for every token id, ``[vocabulary]``, written a second time and independently."""
    blocks = (vocabulary + 3) // 4
    c0, c1 = np.full(blocks, position, np.uint64), np.arange(blocks, dtype=np.uint64)
    c2, c3 = np.full(blocks, choice, np.uint64), np.zeros(blocks, np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for turn in range(10):
        k0 = np.uint64((seed + turn * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64(((seed >> 32) + turn * 0xBB67AE85) & 0xFFFFFFFF)
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & low, (p0 >> shift) ^ c3 ^ k1, p0 & low
    words = np.stack([c0, c1, c2, c3], axis=1).reshape(-1)[:vocabulary]
    uniform = np.minimum(words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33), 1 - 2.0**-24)
    drawn: NDArray[np.float32] = (-np.log(-np.log1p(-uniform.astype(np.float64)))).astype(np.float32)
    return drawn


def _penalised(logits: torch.Tensor, sampling: Sampling, prompt: list[int], outputs: list[int]) -> torch.Tensor:
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*prompt, *outputs}), dtype=torch.long)
        values = logits[seen]
        logits[seen] = torch.where(
            values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
        )
    if outputs and (sampling.frequency_penalty or sampling.presence_penalty):
        counts = torch.bincount(torch.tensor(outputs), minlength=len(logits)).float()
        logits -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    return logits


def _filtered(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    if 0 < sampling.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1:
        values, order = logits.sort(descending=True, stable=True)
        mass = values.softmax(-1)
        drop = mass.cumsum(-1) - mass >= sampling.top_p
        logits = logits.index_fill(0, order[drop], -torch.inf)
    if sampling.min_p > 0:
        probability = logits.softmax(-1)
        logits = logits.masked_fill(probability < sampling.min_p * probability.max(), -torch.inf)
    return logits
