"""What a rank keeps per slot between steps, at fixed addresses: block table, last sample, sampling state.

The coordinator owns all ids. The rank checks that they are in range, because an index beyond a table would be silent on
some devices.
"""

import numpy as np
import torch

from bireme.wire.plan import Admit, Row, Sampling
from bireme_worker.models.kv_cache import BLOCK_SIZE
from bireme_worker.models.shard import VocabularyShard
from bireme_worker.models.transfer import upload
from bireme_worker.rank.errors import BadPlan
from bireme_worker.sampling.state import SamplingState


class Slots:
    """``count`` slots, slot 0 of which is padding; contexts of up to ``longest`` tokens.

    Not ``paged``: the model keeps nothing between steps (an encoder), and rows bring no blocks.
    """

    def __init__(
        self,
        count: int,
        longest: int,
        blocks: int,
        shard: VocabularyShard | None,
        device: torch.device,
        *,
        paged: bool = True,
    ) -> None:
        self.count = count
        self._paged = paged
        self.block_table = torch.zeros((count, -(-longest // BLOCK_SIZE)), dtype=torch.int64, device=device)
        self.last_sample = torch.zeros(count, dtype=torch.int64, device=device)
        self.adapters = torch.zeros(count, dtype=torch.int64, device=device)
        self.sampling_state = None if shard is None else SamplingState(count, shard, device)
        self.sampling = [Sampling()] * count
        self._adapted: set[int] = set()
        self._held = [0] * count
        self._blocks = blocks

    def reset(self) -> None:
        """Forget every request, at the start of an epoch."""
        self._adapted.clear()
        self.adapters.zero_()
        self._held = [0] * self.count
        self.sampling = [Sampling()] * self.count

    def admit(self, admit: Admit) -> None:
        """A request takes a slot."""
        self._check(admit.slot)
        self._held[admit.slot] = 0
        self.sampling[admit.slot] = admit.sampling
        if admit.adapter or admit.slot in self._adapted:
            self.adapters[admit.slot] = admit.adapter
            (self._adapted.add if admit.adapter else self._adapted.discard)(admit.slot)
        if self.sampling_state is not None:
            self.sampling_state.admit(admit)

    def adapt(self, rows: tuple[Row, ...]) -> bool:
        """Whether any of ``rows`` is of a request with an adapter."""
        return any(row.slot in self._adapted for row in rows)

    def append_blocks(self, rows: tuple[Row, ...]) -> list[int]:
        """Extend block tables; returns the ids of fresh blocks, which hold nothing of a cached prefix."""
        slots: list[int] = []
        places: list[int] = []
        blocks: list[int] = []
        fresh: list[int] = []
        for row in rows:
            self._check_row(row)
            held = self._held[row.slot]
            self._held[row.slot] = held + len(row.blocks)
            slots += [row.slot] * len(row.blocks)
            places += range(held, held + len(row.blocks))
            blocks += row.blocks
            fresh += row.blocks[max(row.start // BLOCK_SIZE - held, 0) :]
        if blocks:
            changes = upload(np.array((slots, places, blocks), dtype=np.int64), self.block_table.device)
            self.block_table.index_put_((changes[0], changes[1]), changes[2])
        return fresh

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.count:
            raise BadPlan(f"a plan names slot {slot}, this rank has {self.count}")

    def _check_row(self, row: Row) -> None:
        self._check(row.slot)
        if any(not 0 <= block < self._blocks for block in row.blocks):
            raise BadPlan(f"a plan gives slot {row.slot} the blocks {row.blocks}, this rank has {self._blocks}")
        held = self._held[row.slot] + len(row.blocks)
        if held > self.block_table.shape[1]:
            raise BadPlan(f"slot {row.slot} has {held} blocks, a context has at most {self.block_table.shape[1]}")
        if self._paged and row.start + row.count > held * BLOCK_SIZE and row.slot != 0:
            raise BadPlan(
                f"slot {row.slot} computes up to position {row.start + row.count} with {held} blocks of {BLOCK_SIZE}"
            )
