"""``LLM``: a model on tensor × pipeline rank processes, for as long as this object lives.

The processes are those of a deployment, so what holds there holds here: the same draws for the same seed, prefix
caching, and a rank that dies is replaced while the batch goes on.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from bireme.names import Env
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.llm.bar import Bar
from bireme_worker.llm.batch import Batch, Choice
from bireme_worker.llm.errors import EngineFailed, InvalidInput
from bireme_worker.llm.line import Line
from bireme_worker.llm.outputs import RequestOutput
from bireme_worker.llm.params import SamplingParams
from bireme_worker.llm.pods import Pods
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.text.errors import InvalidGrammar
from bireme_worker.text.grammar import Grammar
from bireme_worker.text.tokenizer import TextModel

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

START_LIMIT_S: Final = 600.0
_QUEUE: Final = 1_000_000


class LLM:
    """A served model. Use it as a context manager, or call ``close``; its processes end with this one in any case."""

    def __init__(
        self,
        model: str | Path,
        *,
        tensor: int = 1,
        pipeline: int = 1,
        dtype: str = "auto",
        device: str = "auto",
        max_model_length: int = 0,
        max_running_requests: int = 64,
        max_batched_tokens: int = 512,
        kv_cache_bytes: int = 0,
        prefix_caching: bool = True,
        threads: int = 1,
        speculation: int = 0,
        adapters: Mapping[str, str | Path] | None = None,
        settings: Mapping[str, str] | None = None,
        logs: Path | None = None,
    ) -> None:
        """Start and wait until the model is loaded.

        Args:
            model: directory or GGUF file of the checkpoint.
            tensor: ranks that split every layer.
            pipeline: stages that split the layers.
            dtype: float32, bfloat16, float16, or auto.
            device: cpu, cuda, or auto.
            max_model_length: longest prompt and output together; 0 takes the model's own.
            max_running_requests: choices computed at a time; more wait.
            max_batched_tokens: tokens of a step.
            kv_cache_bytes: per rank; 0 takes the device's default, which on a CPU is small.
            prefix_caching: keep what prompts have in common.
            threads: of a rank on a CPU.
            speculation: most tokens that are drafted per choice and step; the draws are the same.
            adapters: LoRA adapters in PEFT's format, name to directory.
            settings: further variables of ``docs/reference.md``, such as ``BIREME_SPARE_RANK``.
            logs: a folder for the pods' logs, which are thrown away else.

        Raises:
            EngineFailed: it can't be served; says why.
        """
        path = Path(model).expanduser().resolve()
        try:
            self._text = TextModel.load(path)
            # What can't be cut is refused here, before so many processes are started only to say so.
            stage_layers(self._text.config, 0, pipeline)
            Shard(0, tensor).part(self._text.config.num_attention_heads, "attention heads")
        except (CheckpointError, ConfigurationError) as error:
            raise EngineFailed(str(error)) from error
        environment = {
            Env.MODEL_NAME: path.name,
            Env.MODEL_PATH: str(path),
            Env.MODEL_REVISION: "offline",
            Env.TENSOR: str(tensor),
            Env.MODEL_DTYPE: dtype,
            Env.DEVICE: device,
            Env.MAX_MODEL_LENGTH: str(max_model_length),
            Env.MAX_RUNNING_REQUESTS: str(max_running_requests),
            Env.MAX_BATCHED_TOKENS: str(max_batched_tokens),
            Env.MAX_QUEUED_REQUESTS: str(_QUEUE),
            Env.KV_BYTES: str(kv_cache_bytes),
            Env.PREFIX_CACHING: str(int(prefix_caching)),
            Env.THREADS: str(threads),
            Env.SPECULATION: str(speculation),
            Env.ADAPTERS: ",".join(f"{name}={Path(folder).resolve()}" for name, folder in (adapters or {}).items()),
            Env.SPARE_RANK: "0",
            Env.HTTP_PROCESSES: "0",
            **(settings or {}),
        }
        self._pods = Pods(environment, pipeline, logs=logs)
        self._line = Line(self._pods)
        with ExitStack() as on_failure:
            on_failure.callback(self._pods.close)
            self.context = self._line.open(START_LIMIT_S).context
            on_failure.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def host(self) -> str:
        """Address of the leader's ports: 8001 has its metrics, 8000 OpenAI's routes if there are HTTP processes."""
        return self._pods.leader

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str = "",
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Continue ``prompts`` (a text, token ids, or several of them); one result each, in their order.

        ``adapter``: which of the adapters computes them; "" is the model itself.

        Raises:
            InvalidInput: a prompt or parameter can't be served.
            EngineFailed: the engine ended.
        """
        several = _several(prompts)
        each = _one_each(params, len(several))
        jobs = [self._choices(prompt, one, adapter) for prompt, one in zip(several, each, strict=True)]
        bar = Bar(sum(len(job) for job in jobs), shown=progress)
        try:
            Batch(self._line, [choice for job in jobs for choice in job], bar).run()
        finally:
            bar.close()
        return [_result(prompt, job) for prompt, job in zip(several, jobs, strict=True)]

    def chat(
        self,
        conversations: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str = "",
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations (lists of ``{"role", "content"}``) by the model's own template.

        Raises:
            InvalidInput: the model has no template, or it refuses the messages.
            EngineFailed: the engine ended.
        """
        several = [conversations] if conversations and isinstance(conversations[0], Mapping) else conversations
        now = datetime.now(UTC)
        prompts = [self._text.encode_chat(messages, now=now) for messages in several]  # type: ignore[arg-type]
        return self.generate(prompts, params, adapter=adapter, progress=progress)

    def close(self) -> None:
        """End all processes."""
        self._line.close()
        self._pods.close()

    def _choices(self, prompt: Prompt, params: SamplingParams, adapter: str) -> list[Choice]:
        ids = self._text.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else list(prompt)
        room = max(self.context - len(ids), 1)
        sampling, grammar = params.sampling(self._text.eos_ids), self._grammar(params)
        return [
            Choice(
                ids,
                msgspec.structs.replace(sampling, choice=number),
                room if params.max_tokens is None else params.max_tokens,
                self._text.output(params.stops, at_start=False),
                params.speculate,
                adapter,
                None if grammar is None else grammar.begin(sampling.stop_ids, None),
            )
            for number in range(params.n)
        ]

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        try:
            return self._text.grammars.compile(params.grammar) if params.grammar else None
        except InvalidGrammar as error:
            raise InvalidInput(f"structured_outputs can't be used: {error}") from error


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidInput(f"{len(params)} sampling parameters came for {count} prompts: give one, or one each")
    return params


def _result(prompt: Prompt, choices: Sequence[Choice]) -> RequestOutput:
    text = prompt if isinstance(prompt, str) else None
    outputs = tuple(choice.output() for choice in choices)
    first = choices[0]
    scores = None if first.sampling.prompt_logprobs < 0 else (None, *first.scored)
    return RequestOutput(text, tuple(first.prompt), outputs, max(choice.cached for choice in choices), scores)
