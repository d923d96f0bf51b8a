"""Which prompts a GPU attends to over gathered keys (kernels/flat.py), and which by pages: chosen here alone.

One sequence with a long context is 1.5 to 4 times as fast over gathered keys; many short ones are faster by pages, in
one launch (measured on an H200 by benchmarks/gpu/prefill_attention.py). What was not measured goes by pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from bireme_worker.models.kv_cache import BLOCK_SIZE, FORMATS
from bireme_worker.models.layers.attention import Rule
from bireme_worker.models.shard import HeadShard

LEAST_TOKENS: Final = 128
"""Prompt tokens of a sequence in this step."""
LEAST_CONTEXT: Final = 2048
MOST_ROWS: Final = 4
"""Sequences of a step: each is a gather and a launch in every layer."""
SCRATCH: Final = 256 << 20
"""Bytes of a rank's gathered keys and values, of one sequence in one layer."""
SIZES: Final = (64, 128)
GROUPS: Final = (2, 4, 8, 16)
"""Query heads of a key-value head: alone it would be gathered for too little work."""
CAPABILITY: Final = 9
"""Major compute capability of the GPUs that it was measured on."""

Span = tuple[int, int, int]


def is_able(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel is for this device and dtype."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return torch.cuda.get_device_capability(device)[0] == CAPABILITY


def reserved_bytes(device: torch.device, dtype: torch.dtype, packed: str) -> int:
    """What a cache of the rest must leave free; one that is ``packed`` is never gathered."""
    return SCRATCH if packed not in FORMATS and is_able(device, dtype) else 0


@dataclass(frozen=True, slots=True)
class Flattening:
    """The choice for one model on one rank; ``size`` of a head, 0 if unknown."""

    heads: HeadShard
    dtype: torch.dtype
    rule: Rule
    size: int

    def chosen(self, spans: Sequence[Span], device: torch.device) -> list[int]:
        """Numbers of the ``spans`` (first token, end, context length) that are gathered, rising."""
        fitting = [number for number, span in enumerate(spans) if self._fits(span)]
        if not fitting or not self._is_measured or not is_able(device, self.dtype):
            return []
        longest = sorted(fitting, key=lambda number: -spans[number][2])[:MOST_ROWS]
        return sorted(longest)

    @property
    def _is_measured(self) -> bool:
        rule, group = self.rule, self.heads.query_count // self.heads.kv_count
        return self.size in SIZES and group in GROUPS and not (rule.window or rule.cap or rule.scale)

    def _fits(self, span: Span) -> bool:
        begin, end, length = span
        if end - begin < LEAST_TOKENS or length < LEAST_CONTEXT:
            return False
        places = -(-length // BLOCK_SIZE) * BLOCK_SIZE
        return 2 * places * self.heads.kv_count * self.size * self.dtype.itemsize <= SCRATCH
