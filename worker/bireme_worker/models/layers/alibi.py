"""ALiBi: no positions in the hidden states; instead a key counts less the further it lies behind the query.

Each head has its own slope. The bias is added where other models only mask, so the gathering backend is reused.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import LayerCache
from bireme_worker.models.layers.attention import GatherBackend, GatherStep, _Group, _Span
from bireme_worker.models.shard import HeadShard


def slopes(heads: int) -> torch.Tensor:
    """A geometric row over the next lower power of two; heads beyond it lie between its members."""
    power = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-8.0 / power)
    between = 2.0 ** (-4.0 / power)
    listed = [base ** (place + 1) for place in range(power)]
    listed += [between ** (2 * place + 1) for place in range(heads - power)]
    return torch.tensor(listed, dtype=torch.float32)


class AlibiBackend(GatherBackend):
    """Needs as many key-value heads as query heads. ``heads_in_all`` of the whole model, which decide the slopes."""

    def __init__(self, heads: HeadShard, heads_in_all: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(heads, dtype, device)
        self._slopes = slopes(heads_in_all)[heads.query].to(device)

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> "AlibiStep":
        """As the gathering backend, with biases instead of masks."""
        step = super().prepare(batch, frequency)
        return AlibiStep(
            heads=step.heads,
            expand=step.expand,
            rotation=step.rotation,
            places=step.places,
            groups=tuple(self._biased_group(group) for group in step.groups),
            spans=tuple(self._biased_span(span) for span in step.spans),
        )

    def _biased_group(self, group: _Group) -> _Group:
        return _Group(group.begin, group.end, group.pages, self._bias(group.mask))

    def _biased_span(self, span: _Span) -> _Span:
        return _Span(span.begin, span.end, span.length, span.pages, self._bias(span.mask))

    def _bias(self, mask: torch.Tensor) -> torch.Tensor:
        """``mask [..., queries, keys]``, which is added to scores, to ``[..., heads, queries, keys]``.

        Where a key lies is all that counts: the query's own place would add the same to all its scores.
        """
        places = torch.arange(mask.shape[-1], device=mask.device, dtype=torch.float32)
        bias = (self._slopes[:, None, None] * (places - places[-1])).to(self._dtype)
        return mask + bias


@dataclass(frozen=True, slots=True)
class AlibiStep(GatherStep):
    """One step whose masks are biases."""

    def _attend_group(self, queries: torch.Tensor, cache: LayerCache, group: _Group) -> torch.Tensor:
        keys, values = self._read(cache, group.pages)
        out = functional.scaled_dot_product_attention(queries.unsqueeze(2), keys, values, attn_mask=group.mask)
        return out.reshape(len(queries), -1)
