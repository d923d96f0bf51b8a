"""The KV blocks of a group: who holds which, which are free, and which free ones still hold a known prefix.

Every stage's KV cache follows the same block ids, so this is the only place where ids are given out. A block that
nobody holds but whose content has a label stays findable until its place is needed: least recently used goes first.
Block 0 is padding and never leaves.
"""

from collections import OrderedDict


class BlockPool:
    """``blocks`` counts block 0, as the ranks do."""

    def __init__(self, blocks: int) -> None:
        self._references = [0] * blocks
        self._labels: list[bytes | None] = [None] * blocks
        self._labelled: dict[bytes, int] = {}
        self._blank = list(range(blocks - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def total(self) -> int:
        """Blocks that requests can hold."""
        return len(self._references) - 1

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can give now, labelled or not."""
        return len(self._blank) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that at least one request holds."""
        return self.total - self.available

    def references(self, block: int) -> int:
        """How many requests hold ``block``."""
        return self._references[block]

    def allocate(self) -> int:
        """Give out a block of unknown content, held once. The caller has looked at ``available``."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self.unlabel(block)
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more request holds a block that ``find`` returned."""
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One request fewer holds ``block``."""
        self._references[block] -= 1
        assert self._references[block] >= 0, f"block {block} was released more often than held"
        if self._references[block]:
            return
        if self._labels[block] is None:
            self._blank.append(block)
        else:
            self._idle[block] = None

    def find(self, label: bytes) -> int | None:
        """The block whose content has this label."""
        return self._labelled.get(label)

    def label(self, block: int, label: bytes) -> None:
        """Make a held block findable. The first block of equal content keeps the label."""
        if label not in self._labelled:
            self._labelled[label] = block
            self._labels[block] = label

    def unlabel(self, block: int) -> None:
        """The content is no longer to be found: it will be overwritten, or it is not to be trusted."""
        label, self._labels[block] = self._labels[block], None
        if label is not None:
            del self._labelled[label]
