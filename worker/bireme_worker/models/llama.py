"""The Llama family: Llama 1, 2 and 3.x, SmolLM2, and the frame of all other decoders with rotary positions.

Mistral, Qwen2 and SmolLM3 differ by settings alone (`Decoder`); other families' files replace parts of the layer.

Pre-norm decoder layers of grouped-query attention with rotary positions and a gated MLP. With tied embeddings the last
stage reads the embedding matrix once more as its head. A single stage holds it twice, because rows are looked up in
one layout and multiplied in another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import KVCache, LayerCache
from bireme_worker.models.layers.attention import (
    Attention,
    AttentionBackend,
    AttentionSize,
    ForwardPass,
    GatherBackend,
    Rule,
)
from bireme_worker.models.layers.mlp import MLP, GatedMLP
from bireme_worker.models.layers.norm import RMSNorm
from bireme_worker.models.layers.rotary import amplitude, frequencies
from bireme_worker.models.layers.vocabulary import VocabularyEmbedding, VocabularyHead, vocabulary_weight
from bireme_worker.models.progress import Progress
from bireme_worker.models.shard import HeadShard, Shard, VocabularyShard
from bireme_worker.models.stages import StageLayers
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator

EMBEDDING = "model.embed_tokens.weight"


def attention_size(config: ModelConfig) -> AttentionSize:
    """The attention of each layer."""
    return AttentionSize(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.attention_bias,
        config.decoder.output_bias,
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """What layers have in common that attend in the same way."""

    rule: Rule
    rotation: Literal["global", "local", "none"]

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "Kind":
        """The kind of layer ``number``."""
        decoder = config.decoder
        windowed = bool(decoder.windowed) and decoder.windowed[number]
        window = decoder.window if windowed else 0
        scale = decoder.query_scale**-0.5 if decoder.query_scale else 0.0
        if decoder.unrotated and decoder.unrotated[number]:
            return cls(Rule(window, decoder.attention_cap, scale), "none")
        if windowed and decoder.local_theta:
            return cls(Rule(window, decoder.attention_cap, scale), "local")
        return cls(Rule(window, decoder.attention_cap, scale, amplitude(config.rope_scaling)), "global")

    def frequency(self, config: ModelConfig) -> torch.Tensor:
        """Radians per position."""
        match self.rotation:
            case "none":
                return torch.zeros(config.head_dim // 2)
            case "local":
                return frequencies(config.head_dim, config.decoder.local_theta, None)
        return frequencies(config.head_dim, config.rope_theta, config.rope_scaling)


class LlamaLayer:
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        name, hidden, eps = f"model.layers.{number}", config.hidden_size, config.rms_norm_eps
        self.attention_norm = RMSNorm(f"{name}.input_layernorm", hidden, eps, dtype)
        self.attention = Attention(f"{name}.self_attn", attention_size(config), heads, dtype)
        self.mlp_norm = RMSNorm(f"{name}.post_attention_layernorm", hidden, eps, dtype)
        self.mlp: MLP = GatedMLP(
            f"{name}.mlp",
            hidden,
            config.intermediate_size,
            shard,
            dtype,
            bias=config.mlp_bias,
            activation=config.decoder.activation,
        )

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [
            self.attention_norm.weight,
            *self.attention.weights,
            self.mlp_norm.weight,
            *self.mlp.weights,
        ]

    def __call__(
        self, x: torch.Tensor, delta: torch.Tensor | None, cache: LayerCache, forward: ForwardPass
    ) -> torch.Tensor:
        """Add to ``x`` in place all but the last term of the sum, which is returned; ``delta`` is the last layer's.

        So each addition meets the norm that follows it, and both are one pass over memory where the device can.
        """
        attended = self.attention(self.attention_norm.add(x, delta), cache, forward)
        return self.mlp(self.mlp_norm.add(x, attended), forward.communicator)


class Llama:
    """One stage of the model on one rank; on the meta device until loaded.

    Raises:
        CannotShard: heads or intermediate size do not divide by ``shard.size``.
    """

    layer: Callable[[ModelConfig, int, Shard, HeadShard, torch.dtype], LlamaLayer] = LlamaLayer
    norm_from_one = False

    def __init__(self, config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype) -> None:
        self.config = config
        self.stage = stage
        self.dtype = dtype
        self.heads = HeadShard.of(shard, config.num_attention_heads, config.num_key_value_heads)
        self.vocabulary = VocabularyShard.of(shard, config.vocab_size)
        numbers = range(stage.first, stage.last)
        self.layers = [self.layer(config, number, shard, self.heads, dtype) for number in numbers]
        self._kinds = [Kind.of(config, number) for number in numbers]
        self._frequencies = {kind: kind.frequency(config) for kind in self._kinds}
        self._backends: dict[Kind, AttentionBackend] = {
            kind: GatherBackend(self.heads, dtype, torch.device("cpu"), kind.rule) for kind in self._frequencies
        }
        head = EMBEDDING if config.tie_word_embeddings else "lm_head.weight"
        self.embedding = (
            VocabularyEmbedding(self._table(EMBEDDING, multiplies=False), self.vocabulary) if stage.embeds else None
        )
        self.norm = self._last_norm() if stage.samples else None
        self.head = (
            VocabularyHead(self._table(head, multiplies=True), self.vocabulary, config.decoder.logit_cap)
            if stage.samples
            else None
        )

    def place(self, device: torch.device) -> None:
        """Compute on ``device`` from now on; the weights are the loader's."""
        self._frequencies = {kind: frequency.to(device) for kind, frequency in self._frequencies.items()}
        if device.type == "cuda":
            from bireme_worker.models.layers.paged import PagedBackend  # noqa: PLC0415  Triton, only beside a GPU

            self._backends = {
                kind: PagedBackend(self.heads, self.dtype, kind.rule, self.config.head_dim)
                for kind in self._frequencies
            }

    def weights(self) -> Iterator[Weight]:
        """Every parameter once, in load order."""
        if self.embedding is not None:
            yield self.embedding.weight
        for layer in self.layers:
            yield from layer.weights
        if self.norm is not None and self.head is not None:
            yield self.norm.weight
            yield self.head.weight

    def embed(self, ids: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        """``[tokens] → [tokens, hidden]``, on the first stage."""
        assert self.embedding is not None
        return self.embedding(ids, communicator)

    def run_layers(
        self, x: torch.Tensor, batch: Batch, cache: KVCache, communicator: Communicator, progress: Progress
    ) -> torch.Tensor:
        """``[tokens, hidden] → [tokens, hidden]`` through this stage's layers; counts each in ``progress``."""
        passes = {
            kind: ForwardPass(backend.prepare(batch, self._frequencies[kind]), communicator)
            for kind, backend in self._backends.items()
        }
        delta = None
        for layer, kind, layer_cache in zip(self.layers, self._kinds, cache.layers, strict=True):
            delta = layer(x, delta, layer_cache, passes[kind])
            progress.layers += 1
        return x if delta is None else x.add_(delta)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden] → [rows, vocabulary shard]`` in float32, on the last stage."""
        assert self.norm is not None
        assert self.head is not None
        return self.head(self.norm.add(x, None))

    def _last_norm(self) -> RMSNorm:
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        return RMSNorm("model.norm", size, eps, self.dtype, from_one=self.norm_from_one)

    def _table(self, name: str, *, multiplies: bool) -> Weight:
        size = (self.config.vocab_size, self.config.hidden_size)
        return vocabulary_weight(name, size, self.vocabulary, self.dtype, multiplies=multiplies)
