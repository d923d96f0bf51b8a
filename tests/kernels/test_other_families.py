"""Families beside Llama on a GPU give the CPU's tokens: zero rotation, experts that compute everything."""

from pathlib import Path

import pytest
import torch

from bireme.wire.plan import Sampling
from tests.kernels.test_gpu_runner import Direct
from tests.models.random_models import MODELS, written

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("family", ["gpt2", "opt", "mixtral", "qwen3 experts"])
def test_the_tokens_are_those_of_the_cpu(tmp_path: Path, family: str) -> None:
    written(tmp_path, MODELS[family])
    assert Direct(tmp_path, "cuda").outputs(Sampling()) == Direct(tmp_path, "cpu").outputs(Sampling())
