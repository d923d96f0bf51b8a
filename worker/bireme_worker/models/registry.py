"""Which file runs which architecture."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.batch import Batch
from bireme_worker.models.bert import Encoder
from bireme_worker.models.bloom import Bloom
from bireme_worker.models.gemma import Gemma2, Gemma3
from bireme_worker.models.gpt2 import gpt2
from bireme_worker.models.kv_cache import KVCache
from bireme_worker.models.llama import Llama
from bireme_worker.models.mixtral import Mixtral
from bireme_worker.models.opt import opt
from bireme_worker.models.phi3 import Phi3
from bireme_worker.models.progress import Progress
from bireme_worker.models.qwen3 import Qwen3
from bireme_worker.models.qwen3_moe import Qwen3Moe
from bireme_worker.models.shard import HeadShard, Shard, VocabularyShard
from bireme_worker.models.stages import StageLayers
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator


class StageModel(Protocol):
    """One stage of a model on one rank, as the runner and the loader see it."""

    config: ModelConfig
    stage: StageLayers
    dtype: torch.dtype
    heads: HeadShard
    vocabulary: VocabularyShard

    def place(self, device: torch.device) -> None:
        """Compute on ``device`` from now on; the weights are the loader's."""
        ...

    def weights(self) -> Iterator[Weight]:
        """Every parameter once."""
        ...

    def embed(self, ids: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        """Token ids to hidden states (first stage)."""
        ...

    def run_layers(
        self, x: torch.Tensor, batch: Batch, cache: KVCache, communicator: Communicator, progress: Progress
    ) -> torch.Tensor:
        """Hidden states through the stage's layers."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states to the logits of this rank's vocabulary shard (last stage)."""
        ...


Builder = Callable[[ModelConfig, StageLayers, Shard, torch.dtype], StageModel]

MODELS: Final[Mapping[str, Builder]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
    "Qwen3ForCausalLM": Qwen3,
    "SmolLM3ForCausalLM": Llama,
    "Gemma2ForCausalLM": Gemma2,
    "Gemma3ForCausalLM": Gemma3,
    "Phi3ForCausalLM": Phi3,
    "MixtralForCausalLM": Mixtral,
    "Qwen3MoeForCausalLM": Qwen3Moe,
    "GPT2LMHeadModel": gpt2,
    "OPTForCausalLM": opt,
    "BloomForCausalLM": Bloom,
    "BertModel": Encoder,
    "RobertaModel": Encoder,
    "XLMRobertaModel": Encoder,
}


def build(config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype) -> StageModel:
    """Describe one rank's part of the model, on the meta device.

    Raises:
        CannotShard: a size does not divide by ``shard.size``.
    """
    return MODELS[config.architecture](config, stage, shard, dtype)
