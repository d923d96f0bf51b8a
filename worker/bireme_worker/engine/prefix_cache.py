"""Which full blocks of a new prompt are in the KV cache already.

A block is labelled by a hash over all ids up to its end (each label hashes the one before it and the block's own ids),
salted by the weights and the adapter that filled it. It is labelled once the plan that fills it is issued and its ids
are known; ranks run plans in order, so later plans may read it, but no row of the same plan.
"""

from hashlib import blake2b

from bireme_worker.engine.block_pool import BlockPool
from bireme_worker.engine.sequence import BLOCK_SIZE, Sequence

_LABEL_BYTES = 16


class PrefixCache:
    """Labels and finds blocks of ``pool``. ``salt`` names the weights."""

    def __init__(self, pool: BlockPool, salt: bytes, enabled: bool) -> None:
        self._pool = pool
        self._root = _digest(salt)
        self._enabled = enabled

    def take(self, sequence: Sequence) -> list[int]:
        """Hold and return the blocks with the longest known prefix of ``sequence``.

        The block of the last token is never among them: at least that token is computed, to draw the next one.
        """
        found: list[int] = []
        if not self._enabled:
            return found
        for label in self._labels(sequence, (sequence.length - 1) // BLOCK_SIZE):
            block = self._pool.find(label)
            if block is None:
                break
            self._pool.hold(block)
            found.append(block)
        return found

    def learn(self, sequence: Sequence) -> None:
        """Label the blocks that are full, issued and known. Call it when the plan is complete, never while it grows."""
        full = min(sequence.positions, sequence.length) // BLOCK_SIZE
        if not self._enabled or full <= sequence.labelled:
            return
        labels = self._labels(sequence, full)
        for index in range(sequence.labelled, full):
            self._pool.label(sequence.blocks[index], labels[index])
        sequence.labelled = full

    def forget(self, sequence: Sequence) -> None:
        """Nobody shall find what this sequence computed: its numbers were not finite."""
        for block in sequence.blocks:
            self._pool.unlabel(block)

    def _labels(self, sequence: Sequence, count: int) -> list[bytes]:
        labels = sequence.labels
        for index in range(len(labels), count):
            before = labels[index - 1] if index else self._root + sequence.request.adapter.encode()
            labels.append(_digest(before + sequence.ids(index * BLOCK_SIZE, BLOCK_SIZE)))
        return labels[:count]


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_LABEL_BYTES).digest()
