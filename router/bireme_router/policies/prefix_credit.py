"""How much of a prompt a group has computed before, by the router's own history: chained hashes of blocks of its bytes.

A block's hash covers everything before it, so equal hashes mean equal prefixes. The history is a bet, not knowledge:
it is bounded by the group's KV size, forgets the least recently used first (a chain's tail before its head), and
``trust`` shrinks the credit where the groups report fewer cached tokens than were predicted.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

BLOCK_BYTES: Final = 1024
"""About 256 tokens."""
LONGEST_BYTES: Final = 512 * 1024
"""Prefix that is looked at: about 131,000 tokens."""
MOST: Final = 0.95
"""Share of a prompt that may be credited at most: the rest always has to be computed."""
SESSION_SHARE: Final = 0.5
"""Share credited to the group that had the conversation's last request, where the text itself tells less."""
_LEARN: Final = 0.2
_BLOCKS: Final = [slice(start, start + BLOCK_BYTES) for start in range(0, LONGEST_BYTES, BLOCK_BYTES)]


def chain(text: bytes | memoryview) -> tuple[int, ...]:
    """One hash per whole block of ``text``, each covering all blocks before it."""
    blocks = _BLOCKS[: len(text) // BLOCK_BYTES]
    return tuple(_chained(map(hash, map(bytes, map(memoryview(text).__getitem__, blocks)))))


def _chained(hashes: Iterable[int]) -> Iterator[int]:
    before = 0
    for own in hashes:
        before = hash((before, own))
        yield before


class PrefixHistory:
    """Prefixes that one target was given; at most ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(capacity, 1)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, prefix: Sequence[int]) -> int:
        """Leading blocks of ``prefix`` that are known: by bisection, since a known block's ancestors are known too."""
        if not prefix or prefix[0] not in self._blocks:
            return 0  # a stranger, as most are
        known, unknown = (len(prefix) if prefix[-1] in self._blocks else 1), len(prefix) + 1
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if prefix[middle - 1] in self._blocks:
                known = middle
            else:
                unknown = middle
        return known

    def remember(self, prefix: Sequence[int]) -> None:
        """The target got this prompt now; what does not fit is forgotten, tails first."""
        blocks, known = self._blocks, min(self.matched(prefix), self._capacity)
        for block in reversed(prefix[known : self._capacity]):
            blocks[block] = None
            blocks.move_to_end(block)  # one may be there without its beginning, forgotten before it
        deque(map(blocks.move_to_end, reversed(prefix[:known])), maxlen=0)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)


def share(matched: int, prompt_bytes: int) -> float:
    """Share of the prompt that ``matched`` blocks cover, 0 to ``MOST``."""
    return min(matched * BLOCK_BYTES / prompt_bytes, MOST) if prompt_bytes > 0 else 0.0


def trust_after(trust: float, predicted: float, actual: float) -> float:
    """How far predictions for a target are believed, 0 to 1, after it reported ``actual`` cached tokens."""
    if predicted <= 0.0:
        return trust
    return trust + _LEARN * (min(actual / predicted, 1.0) - trust)
