"""One rank's part of a tensor-parallel stage: what divides, what is replicated, what is padded.

Query heads and the MLP's inner size must divide. Key-value heads are kept where a rank's query heads need them: with
more ranks than key-value heads, neighbours hold copies. Vocabulary shards are padded to a multiple of 64 rows.
"""

from dataclasses import dataclass
from typing import Final

from bireme_worker.models.errors import CannotShard

VOCABULARY_MULTIPLE: Final = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank ``rank`` of ``size``. ``spread_experts``: each rank holds some experts whole, not a part of every one."""

    rank: int
    size: int
    spread_experts: bool = False

    def part(self, total: int, what: str) -> slice:
        """This rank's equal part of ``total``.

        Raises:
            CannotShard: ``total`` does not divide; the message has the numbers.
        """
        if total % self.size:
            fitting = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0 and n <= max(64, self.size))
            raise CannotShard(
                f"{total} {what} do not divide by tensor parallelism {self.size}: set parallelism.tensor to one of "
                f"{fitting}"
            )
        width = total // self.size
        return slice(self.rank * width, (self.rank + 1) * width)


@dataclass(frozen=True, slots=True)
class HeadShard:
    """Which heads a rank computes. ``kv_of_query``: for each of its query heads, the place of its key-value head."""

    query: slice
    kv: slice
    kv_of_query: tuple[int, ...]

    @classmethod
    def of(cls, shard: Shard, heads: int, kv_heads: int) -> "HeadShard":
        """Split ``heads`` query heads that share ``kv_heads`` key-value heads.

        Raises:
            CannotShard: the query heads do not divide.
        """
        query = shard.part(heads, "attention heads")
        group = heads // kv_heads
        needed = [head // group for head in range(query.start, query.stop)]
        return cls(query, slice(needed[0], needed[-1] + 1), tuple(kv - needed[0] for kv in needed))

    @property
    def query_count(self) -> int:
        """Query heads of this rank."""
        return len(self.kv_of_query)

    @property
    def kv_count(self) -> int:
        """Key-value heads that this rank keeps."""
        return self.kv_of_query[-1] + 1

    @property
    def is_even(self) -> bool:
        """Every key-value head serves the same number of neighbouring query heads."""
        group, rest = divmod(self.query_count, self.kv_count)
        return rest == 0 and self.kv_of_query == tuple(place // group for place in range(self.query_count))


@dataclass(frozen=True, slots=True)
class VocabularyShard:
    """``width`` rows of the vocabulary from id ``start`` on, of which the first ``count`` are real."""

    start: int
    count: int
    width: int

    @classmethod
    def of(cls, shard: Shard, vocabulary: int) -> "VocabularyShard":
        """Split by ceiling and pad; the last ranks of a tiny vocabulary may hold padding only."""
        width = -(-vocabulary // shard.size)
        width = -(-width // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        start = shard.rank * width
        return cls(start, max(0, min(width, vocabulary - start)), width)
