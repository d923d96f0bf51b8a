"""What a GPU multiplies by is what the checkpoint holds; a model that waits in the host's memory is laid out alike."""

from contextlib import closing
from pathlib import Path

import pytest
import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.models.load import load
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from tests.checkpoints.tiny import save_tiny
from tests.quantization.packers import SIZES


def loaded(source: Path, rank: int, quantization: str, *, packed: bool) -> StageModel:
    with closing(open_checkpoint(source)) as reader:
        config = ModelConfig.parse(reader.config)
        model = build(config, stage_layers(config, 0, 1), Shard(rank, 2), torch.float32)
        load(model, reader, torch.device("cpu"), packed=packed, quantization=quantization)
    return model


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_layout_changes_no_weight(tmp_path: Path, quantization: str, rank: int) -> None:
    save_tiny(tmp_path, **SIZES)
    host, gpu = (loaded(tmp_path, rank, quantization, packed=packed) for packed in (True, False))
    kinds = set()
    for first, second in zip(host.weights(), gpu.weights(), strict=True):
        if first.quantized is not None and second.quantized is not None:
            kinds.add(type(second.quantized).__name__)
            assert torch.equal(first.quantized.dequantized(), second.quantized.dequantized())
            again = second.quantized.to(torch.device("cpu"))
            assert torch.equal(again.dequantized(), second.quantized.dequantized())
    assert kinds == {"GpuFp8Matrix" if quantization == "fp8" else "TiledMatrix"}
