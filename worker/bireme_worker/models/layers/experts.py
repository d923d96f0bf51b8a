"""A mixture of experts: a router chooses a few of many gated MLPs for each token and weighs their sum.

Two ways to cut it over the ranks of a stage, with the same sum over ranks at the end. *Inner*: every rank holds a part
of every expert's channels, so the work is even whatever the router says. *Spread*: every rank holds some experts whole:
fewer, larger products, and any inner size fits. All ranks route alike, because they hold the same bits of every token.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from bireme_worker.checkpoints.words import Experts
from bireme_worker.models.layers.linear import ColumnLinear, Projection, RowLinear
from bireme_worker.models.matrix import multiply
from bireme_worker.models.shard import Shard
from bireme_worker.models.weight import Piece, Weight
from bireme_worker.parallel.communicator import Communicator


class Expert:
    """One gated MLP, or this rank's channels of it; ``names`` are those of gate, up and down."""

    def __init__(self, names: Sequence[str], hidden: int, inner: int, part: slice, dtype: torch.dtype) -> None:
        gate, up, down = names
        self.gate_up = ColumnLinear([Projection(one, inner, part) for one in (gate, up)], hidden, dtype, bias=False)
        self.down = RowLinear(Projection(down, inner, part), hidden, dtype, bias=False)
        self._width = part.stop - part.start

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [*self.gate_up.weights, *self.down.weights]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up(x)
        return self.down.partial(functional.silu(gate_up[:, : self._width]).mul_(gate_up[:, self._width :]))


class MixtureOfExperts:
    """``sum over the chosen of weight · expert(x)``. ``names``: of gate, up and down inside an expert.

    Raises:
        CannotShard: the inner size, or with ``shard.spread_experts`` the experts, do not divide by the ranks.
    """

    def __init__(
        self, name: str, names: tuple[str, str, str], experts: Experts, hidden: int, shard: Shard, *, dtype: torch.dtype
    ) -> None:
        self._count, self._chosen, self._renormalise = experts.count, experts.chosen, experts.renormalise
        size = (experts.count, hidden)
        self._router = Weight(size, dtype, (Piece(f"{name}.gate.weight", size),), multiplies=True)
        if shard.spread_experts:
            mine, part = shard.part(experts.count, "experts"), slice(0, experts.inner)
        else:
            mine, part = slice(0, experts.count), shard.part(experts.inner, "channels of an expert")
        self._experts = {
            number: Expert([f"{name}.experts.{number}.{one}" for one in names], hidden, experts.inner, part, dtype)
            for number in range(mine.start, mine.stop)
        }

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [self._router, *(weight for expert in self._experts.values() for weight in expert.weights)]

    def __call__(self, x: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        shares, chosen = self.route(x)
        y = self.everywhere(x, shares, chosen) if x.is_cuda else self.grouped(x, shares, chosen)
        communicator.all_reduce(y)
        return y

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and number of each token's experts, ``[tokens, chosen]``; the softmax is over all experts."""
        scores = multiply(x, self._router.tensor, self._count).float().softmax(-1)
        shares, chosen = scores.topk(self._chosen, dim=-1)
        if self._renormalise:
            shares = shares / shares.sum(-1, keepdim=True)
        return shares.to(x.dtype), chosen

    def grouped(self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Each expert takes its own tokens in one product. Reads from the device how many these are."""
        order = chosen.flatten().argsort(stable=True)
        tokens, shares = order // self._chosen, shares.flatten().index_select(0, order).unsqueeze(1)
        ends = chosen.flatten().bincount(minlength=self._count).cumsum(0).tolist()
        y = torch.zeros_like(x)
        for number, expert in self._experts.items():
            begin, end = ends[number - 1] if number else 0, ends[number]
            if begin < end:
                rows = tokens[begin:end]
                y.index_add_(0, rows, expert(x.index_select(0, rows)).mul_(shares[begin:end]))
        return y

    def everywhere(self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Each expert computes all tokens, weighed by zero where it was not chosen: no shape depends on the routing."""
        weights = x.new_zeros((len(x), self._count)).scatter_(1, chosen, shares)
        y = torch.zeros_like(x)
        for number, expert in self._experts.items():
            y.addcmul_(expert(x), weights[:, number : number + 1])
        return y
