"""What each kernel must compute, in plain torch and float32 or better, and random inputs for it."""

from dataclasses import dataclass

import torch

from bireme_worker.models.layers.attention import PLAIN, Rule

PAGE = 16


@dataclass
class Paged:
    """Random rows over a paged cache with scattered blocks; unwritten places hold NaN."""

    queries: torch.Tensor
    cache: torch.Tensor
    table: torch.Tensor
    slots: torch.Tensor
    counts: list[int]
    lengths: list[int]

    @classmethod
    def random(
        cls,
        counts: list[int],
        lengths: list[int],
        heads: tuple[int, int],
        size: int,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> "Paged":
        generator = torch.Generator().manual_seed(sum(lengths) + len(counts))
        needed = [-(-length // PAGE) for length in lengths]
        blocks = torch.randperm(sum(needed), generator=generator) + 1
        cache = torch.full((sum(needed) + 1, 2, PAGE, heads[1], size), float("nan"))
        table = torch.zeros((len(counts) + 1, max(needed) + 2), dtype=torch.int64)
        slots = torch.randperm(len(counts), generator=generator) + 1
        at = 0
        for slot, length, count in zip(slots.tolist(), lengths, needed, strict=True):
            mine = blocks[at : at + count]
            table[slot, :count] = mine
            for place in range(length):
                cache[mine[place // PAGE], :, place % PAGE] = torch.randn((2, heads[1], size), generator=generator)
            at += count
        queries = torch.randn((sum(counts), heads[0], size), generator=generator)
        queries, cache = queries.to(device, dtype), cache.to(device, dtype)
        return cls(queries, cache, table.to(device), slots.to(device), counts, lengths)

    def expected(self, rule: Rule = PLAIN) -> torch.Tensor:
        """Attention of every token, row by row, in float64."""
        parts, at = [], 0
        for slot, count, length in zip(self.slots.tolist(), self.counts, self.lengths, strict=True):
            blocks = self.table[slot, : -(-length // PAGE)]
            keys, values = self.cache[blocks].double().transpose(0, 1).flatten(1, 2)[:, :length]
            group = self.queries.shape[1] // keys.shape[1]
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            queries = self.queries[at : at + count].double()
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * (rule.scale or queries.shape[2] ** -0.5)
            scores = rule.cap * (scores / rule.cap).tanh() if rule.cap else scores
            places = torch.arange(length, device=scores.device)
            limit = places[length - count :].unsqueeze(1)
            hidden = places > limit
            if rule.window:
                hidden |= places <= limit - rule.window
            scores = scores.masked_fill(hidden, -torch.inf)
            parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(2), values))
            at += count
        return torch.cat(parts)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖; NaN stays NaN and passes no comparison."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())
