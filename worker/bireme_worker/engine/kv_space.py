"""Blocks for sequences: the known prefix from the cache, the rest fresh, one more as a sequence grows."""

from bireme_worker.engine.block_pool import BlockPool
from bireme_worker.engine.prefix_cache import PrefixCache
from bireme_worker.engine.sequence import BLOCK_SIZE, Sequence


class KVSpace:
    """Pool and prefix index of one epoch. ``blocks`` counts block 0; ``salt`` names the weights."""

    def __init__(self, blocks: int, salt: bytes, prefix_caching: bool) -> None:
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool, salt, prefix_caching)

    def take(self, sequence: Sequence, spare: int) -> bool:
        """Give a waiting sequence blocks for all its known tokens and leave ``spare`` free, or give none."""
        known = [] if sequence.scores else self.cache.take(sequence)
        missing = -(-sequence.length // BLOCK_SIZE) - len(known)
        if self.pool.available < missing + spare:
            self._release(known)
            return False
        sequence.blocks = known + [self.pool.allocate() for _ in range(missing)]
        sequence.positions = len(known) * BLOCK_SIZE
        sequence.labelled = len(known)
        sequence.target = sequence.length
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Make room for one more position; False when no block is available."""
        if sequence.positions < len(sequence.blocks) * BLOCK_SIZE:
            return True
        if not self.pool.available:
            return False
        sequence.blocks.append(self.pool.allocate())
        return True

    def stretch(self, sequence: Sequence, wanted: int, spare: int) -> int:
        """Make room for up to ``wanted`` positions beyond the next one without touching ``spare`` blocks; how many."""
        end = sequence.positions + 1 + wanted
        while end > len(sequence.blocks) * BLOCK_SIZE and self.pool.available > spare:
            sequence.blocks.append(self.pool.allocate())
        return max(min(end, len(sequence.blocks) * BLOCK_SIZE) - sequence.positions - 1, 0)

    def free(self, sequence: Sequence) -> None:
        """Take all blocks back."""
        self._release(sequence.blocks)
        sequence.blocks = []

    def holds_alone(self, sequence: Sequence) -> bool:
        """Whether ``free`` would make a block available."""
        return any(self.pool.references(block) == 1 for block in sequence.blocks)

    def _release(self, blocks: list[int]) -> None:
        # Last block first: the tail of a prefix is of use to fewer requests than its head, so it is overwritten sooner.
        for block in reversed(blocks):
            self.pool.release(block)
