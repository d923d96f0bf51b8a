"""A key-value cache of 8 bits: what attention reads is what an independent rounding of each head of each token gives."""

from pathlib import Path

import pytest
import torch

from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.kv_cache import BLOCK_SIZE, KVCache, LayerCache, block_bytes, pages_of, places_of
from tests.checkpoints.tiny import save_tiny
from tests.quantization.packers import SIZES
from tests.quantization.reference import answers
from tests.support.rank_threads import threaded_ranks

CPU = torch.device("cpu")


def fake(values: torch.Tensor, name: str) -> torch.Tensor:
    scale = values.float().abs().amax(-1, keepdim=True) / (127 if name == "int8" else 448)
    scaled = values.float() / scale
    return (scaled.round() if name == "int8" else scaled.to(torch.float8_e4m3fn).float()) * scale


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_what_is_read_is_the_rounding_of_what_was_written(name: str) -> None:
    torch.manual_seed(3)
    cache = KVCache(layers=2, blocks=5, heads=3, head_dim=8, dtype=torch.float32, device=CPU, packed=name)
    cache.clear(torch.tensor([1, 2, 3, 4]))
    keys, values = torch.randn(20, 3, 8), torch.randn(20, 3, 8) * 100
    layer = cache.layers[1]
    layer.write(places_of(torch.arange(20) + 2 * BLOCK_SIZE), torch.stack((keys, values), 1))
    read_keys, read_values = layer.read(pages_of(torch.tensor([[2, 3]])))
    assert torch.allclose(read_keys[0, :20], fake(keys, name), rtol=1e-6)
    assert torch.allclose(read_values[0, :20], fake(values, name), rtol=1e-6)
    assert read_keys[0, 20:].count_nonzero() == 0


class FakeCache(LayerCache):
    """A plain cache that rounds what it is given."""

    name = ""

    def write(self, places: torch.Tensor, values: torch.Tensor) -> None:
        super().write(places, fake(values, self.name))


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_outputs_equal_those_of_a_fake_quantized_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save_tiny(tmp_path, **SIZES)
    packed = answers(tmp_path, 2, 2, kv_dtype=name)
    plain = answers(tmp_path, 2, 2)
    monkeypatch.setattr(FakeCache, "name", name)
    monkeypatch.setattr("bireme_worker.models.kv_cache.LayerCache", FakeCache)
    faked = answers(tmp_path, 2, 2)
    for (ids, ours), (others, theirs), (_, exact) in zip(packed, faked, plain, strict=True):
        assert ids == others
        assert (ours - theirs).abs().max() < 1e-4
        assert (ours - exact).abs().max() > 1e-4  # it is not the plain cache that was tested


def test_an_8_bit_cache_holds_more_blocks_in_the_same_bytes(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    blocks = {}
    for name in ("auto", "int8"):
        with threaded_ranks(tmp_path, kv_dtype=name, kv_bytes=1 << 20) as ranks:
            blocks[name] = ranks.runners[0].cache.blocks
    assert blocks["int8"] > 3.5 * blocks["auto"]
    assert block_bytes(2, 2, 32, torch.float32, "int8") == 2 * 2 * BLOCK_SIZE * 2 * (32 + 4)


def test_a_share_of_free_memory_is_taken(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    with threaded_ranks(tmp_path, kv_fraction=1) as ranks:
        free = int(next(x for x in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x).split()[1]) * 1024
        one = block_bytes(2, 2, 32, torch.float32)
        assert 64 < ranks.runners[0].cache.blocks <= free // 100 // one


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    with pytest.raises(ConfigurationError, match=r"engine.kvCache.dtype is 'int2': set it to auto, int8, fp8"):
        threaded_ranks(tmp_path, kv_dtype="int2").__enter__()
