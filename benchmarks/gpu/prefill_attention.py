"""Which prefill attention is the fastest for which chunk and context: by pages, or over gathered ones, ours or torch's.

    python -m benchmarks.gpu.prefill_attention [--seconds 60]

Each way's result is compared first with ours by pages. `engine` is what the engine chooses (flattening.py). `share`
counts causal operations against the matrix rate of this card; `gather` is in the time of the ways that need it. `first`
is the time of a call with lengths that were never seen, on the host: cuDNN makes a plan then. The last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import triton

from benchmarks.gpu.job import Bench
from benchmarks.gpu.jobs_kernels import Ground, ground
from benchmarks.gpu.kernel_tables import graph_us
from benchmarks.gpu.tiles import cut
from bireme_worker.kernels import flat
from bireme_worker.kernels.attention import Tile
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE, LayerCache, pages_of
from bireme_worker.models.layers.paged import PagedBackend
from bireme_worker.models.shard import HeadShard, Shard

SIZE = 128
HEADS = {"8B": (32, 8), "8B/2": (16, 4)}
LIMIT = 1e-2
REPEATS = 6
Call = Callable[[int], torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """``rows`` sequences a step, each with ``new`` tokens at the end of ``context``."""

    heads: str
    rows: int
    new: int
    context: int


SHAPES = (
    Shape("8B", 1, 8192, 8192),
    Shape("8B", 1, 512, 20_000),
    Shape("8B", 1, 2048, 20_000),
    Shape("8B", 1, 256, 20_000),
    Shape("8B", 1, 512, 4096),
    Shape("8B", 16, 512, 512),
    Shape("8B", 4, 2048, 2048),
    Shape("8B", 1, 8192, 20_000),
    Shape("8B", 64, 128, 128),
    Shape("8B/2", 1, 8192, 8192),
    Shape("8B/2", 1, 512, 20_000),
    Shape("8B/2", 1, 2048, 20_000),
)
TILES = (Tile(64, 32, 4, 3), Tile(128, 64, 8, 3))
CUTS = (Tile(128, 64, 4, 2), Tile(128, 64, 8, 3), Tile(128, 128, 8, 2), flat.TILE)


def gathered(cache: torch.Tensor, pages: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[length, kv heads, size]`` of ``pages [2, n]`` of ``cache [blocks, 2, page, heads, size]``."""
    blocks, _, page, heads, size = cache.shape
    rows = cache.view(blocks * 2, page * heads * size).index_select(0, pages.reshape(-1))
    keys, values = rows.view(2, -1, heads, size)[:, :length].unbind()
    return keys, values


def tiled(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile) -> torch.Tensor:
    """The engine's kernel, cut in some way."""
    out = torch.empty_like(queries)
    keys_at, values_at = (flat.described(part.flatten(1), queries.shape[2], tile.span) for part in (keys, values))
    flat.attend(queries, (keys_at, values_at), len(keys), keys.shape[1], out, tile)
    return out


def flash(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """FlashAttention 2, whose causal mask ends with the last key."""
    parts = (queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0))
    most = len(queries), len(keys)
    attend = torch.ops.aten._flash_attention_forward  # noqa: SLF001  no public one is bottom-right
    found: torch.Tensor = attend(*parts, None, None, *most, 0.0, True, False, scale=SIZE**-0.5)[0]
    return found[0]


def cudnn(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Its mask begins with the first key: behind a prefix it is two calls, joined by their log-sum-exp."""
    prefix = len(keys) - len(queries)
    own, own_sum = _cudnn(queries, keys[prefix:], values[prefix:], causal=True)
    if not prefix:
        return own
    before, before_sum = _cudnn(queries, keys[:prefix], values[:prefix], causal=False)
    share = torch.sigmoid(before_sum - own_sum).unsqueeze(2)  # of the prefix in the sum of both
    return torch.lerp(own.to(share.dtype), before.to(share.dtype), share).to(own.dtype)


def _cudnn(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    parts = (part.transpose(0, 1).unsqueeze(0) for part in (queries, keys, values))
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention  # noqa: SLF001  the public one has no log-sum-exp
    found = attend(*parts, None, True, 0.0, causal, False, scale=SIZE**-0.5)
    return found[0][0].transpose(0, 1), found[1].reshape(queries.shape[1], -1).transpose(0, 1)


@dataclass(frozen=True)
class Case:
    """A step's queries and caches; a call takes the number of a cache."""

    shape: Shape
    heads: tuple[int, int]
    queries: torch.Tensor
    caches: list[LayerCache]
    batch: Batch
    pages: list[torch.Tensor]

    @classmethod
    def random(cls, shape: Shape, device: str = "cuda", heads: tuple[int, int] | None = None) -> "Case":
        heads = heads or HEADS[shape.heads]
        blocks = -(-shape.context // BLOCK_SIZE)
        places = torch.arange(shape.context - shape.new, shape.context, device=device).repeat(shape.rows)
        table = torch.randperm(shape.rows * blocks, device=device).view(shape.rows, blocks) + 1
        batch = Batch(
            positions=places,
            slot_mapping=places,
            cu_seqlens=torch.arange(shape.rows + 1, device=device) * shape.new,
            seq_lens=torch.full((shape.rows,), shape.context, device=device),
            slots=torch.arange(shape.rows, device=device),
            block_table=table,
            single=0,
            spans=tuple((row * shape.new, (row + 1) * shape.new, shape.context) for row in range(shape.rows)),
            lengths=(),
        )
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        size = (shape.rows * blocks + 1, 2, BLOCK_SIZE, heads[1], SIZE)
        caches = [LayerCache(torch.randn(size, device=device, dtype=dtype)) for _ in range(2)]
        queries = torch.randn((shape.rows * shape.new, heads[0], SIZE), device=device, dtype=dtype)
        pages = [pages_of(row.unsqueeze(0))[:, 0] for row in table]
        return cls(shape, heads, queries, caches, batch, pages)

    @property
    def operations(self) -> float:
        seen = self.shape.new * (self.shape.context - self.shape.new) + self.shape.new * (self.shape.new + 1) / 2
        return self.shape.rows * 4 * self.heads[0] * SIZE * seen

    def ours(self, size: int = 0) -> Call:
        """The engine's step, by pages if ``size`` is 0; its tiles are listed outside of what is timed, as once."""
        backend = PagedBackend(HeadShard.of(Shard(0, 1), *self.heads), self.queries.dtype, size=size)
        step = backend.prepare(self.batch, torch.ones(SIZE // 2, device=self.queries.device))
        return lambda number: step.attend(self.queries, self.caches[number % 2]).view_as(self.queries)

    def each(self, way: Way, number: int) -> torch.Tensor:
        """A call for each sequence, over its gathered pages."""
        parts = []
        for (begin, end, length), pages in zip(self.batch.spans, self.pages, strict=True):
            keys, values = gathered(self.caches[number % 2].data, pages, length)
            parts.append(way(self.queries[begin:end], keys, values))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def gather(self, number: int) -> None:
        for pages in self.pages:
            gathered(self.caches[number % 2].data, pages, self.shape.context)


def _ways() -> Iterator[tuple[str, Way]]:
    yield "flash", flash
    yield "cudnn", cudnn
    for tile in CUTS:
        yield f"tma {_name(tile)}", partial(tiled, tile=tile)


def _name(tile: Tile) -> str:
    return f"{tile.rows}/{tile.span}/{tile.warps}/{tile.stages}"


def _figures(on: Ground, shape: Shape) -> dict[str, float]:
    """Microseconds of every way that this card can run and that is right."""
    case = Case.random(shape)
    ours = case.ours()
    expected = ours(0).float()
    found = {"ours": graph_us(ours, REPEATS), "gather": graph_us(case.gather, REPEATS)}
    for tile in TILES:
        with cut(tile):
            _timed(found, f"ours {_name(tile)}", case.ours(), expected)
    _timed(found, "engine", case.ours(SIZE), expected)
    for name, way in _ways():
        _timed(found, name, partial(case.each, way), expected)
    _show(on, case, found)
    return found


def _timed(found: dict[str, float], name: str, call: Call, expected: torch.Tensor) -> None:
    try:
        begin = time.monotonic()
        got = call(0)
        first = time.monotonic() - begin
        off = float((got.float() - expected).norm() / expected.norm())
        if not off < LIMIT:
            print(f"WRONG {name}: {off:.2e}", flush=True)
            return
        found[name] = graph_us(call, REPEATS)
        if name == "cudnn":
            found["first ms"] = first * 1e3
    except (triton.OutOfResources, RuntimeError) as error:
        print(f"{name}: {error}"[:300], flush=True)


def _show(on: Ground, case: Case, found: dict[str, float]) -> None:
    shape, timed = case.shape, {name: us for name, us in found.items() if name not in ("gather", "first ms")}
    ranked = sorted(timed, key=lambda name: timed[name])
    shown = "; ".join(
        f"{name} {timed[name]:.0f} us {100 * case.operations / (timed[name] * 1e-6) / on.rate:.0f} %" for name in ranked
    )
    extra = f"gather {found['gather']:.0f} us, first cudnn {found.get('first ms', 0):.0f} ms"
    print(f"{shape.heads} {shape.rows} x {shape.new} of {shape.context}: {shown} ({extra})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    end = time.monotonic() + parser.parse_args().seconds
    rows = {}
    with ground(Bench("kernels", "llama8b", "cuda", Path(), (), 0.0, Path())) as on:
        for shape in SHAPES:
            if time.monotonic() > end:
                print("stopped: out of time", flush=True)
                break
            rows[f"{shape.heads} {shape.rows}x{shape.new}/{shape.context}"] = _figures(on, shape)
    print(json.dumps({name: {way: round(us, 1) for way, us in found.items()} for name, found in rows.items()}))


if __name__ == "__main__":
    main()
