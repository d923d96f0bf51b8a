"""Refuse at once, with the numbers, what can never fit, what no rank may see, and what the queue has no room for.

A bad id would end a step for everybody, so everything that reaches a rank is checked here, once.
"""

from dataclasses import dataclass

from bireme.names import Admission
from bireme.wire.plan import Sampling, unpack_ids
from bireme.wire.requests import Limits, Submit
from bireme_worker.engine.sequence import BLOCK_SIZE, ID_BYTES

QUEUE_RETRY_S = 1.0
INT32_MAX = 2**31 - 1
MAKES_VECTORS = "this model makes embeddings and no text: use /v1/embeddings"
MAKES_TEXT = "this model generates text and makes no embeddings: use /v1/chat/completions or /v1/completions"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken; ``code`` is the HTTP status."""

    code: Admission
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What can be served: ``context`` by model and configuration, ``kv_blocks`` (block 0 included) by the ranks."""

    context: int
    vocabulary: int
    running: int
    queue: int
    kv_blocks: int = 0
    adapters: tuple[str, ...] = ()
    encodes: bool = False

    @property
    def pool_tokens(self) -> int:
        """Tokens that the KV pool holds for a request that has it alone."""
        return max(self.kv_blocks - 1, 0) * BLOCK_SIZE

    @property
    def limits(self) -> Limits:
        """What HTTP processes are told. A pool smaller than the context is the context."""
        if self.encodes or not self.kv_blocks or self.pool_tokens >= self.context:
            return Limits(self.context, self.running, self.queue)
        return Limits(self.pool_tokens, self.running, self.queue, wanted=self.context)


def refuse(request: Submit, capacity: Capacity) -> Refusal | None:
    """Why this request can't be taken, whatever else runs; None when it can."""
    if request.adapter and request.adapter not in capacity.adapters:
        served = ", ".join(capacity.adapters) or "none"
        message = f"the adapter {request.adapter!r} is not loaded here, these are: {served}"
        return Refusal(Admission.UNKNOWN_MODEL, message)
    if request.encode != capacity.encodes:
        return Refusal(Admission.NEVER_FITS, MAKES_VECTORS if capacity.encodes else MAKES_TEXT)
    wrong = (
        _wrong_ids("the prompt", request.prompt, capacity.vocabulary)
        or _wrong_ids("the output to continue", request.outputs, capacity.vocabulary)
        or _wrong_sampling(request.sampling, capacity.vocabulary)
        or (wrong_mask(request.mask, capacity.vocabulary) if request.mask else "")
        or too_long(request, capacity)
    )
    return Refusal(Admission.NEVER_FITS, wrong) if wrong else None


def refuse_full(requests: int, capacity: Capacity) -> Refusal | None:
    """Why one more request can't wait beside ``requests`` unfinished ones."""
    if requests < capacity.running + capacity.queue:
        return None
    message = f"{capacity.running} requests may run and {capacity.queue} may wait, and all places are taken: try again"
    return Refusal(Admission.QUEUE_FULL, message, QUEUE_RETRY_S)


def too_long(request: Submit, capacity: Capacity) -> str:
    """Why the request can't fit, or "". Asked again when an epoch brings another pool."""
    prompt, outputs = len(request.prompt) // ID_BYTES, len(request.outputs) // ID_BYTES
    if prompt == 0:
        return "the prompt is empty: send at least one token"
    if request.encode:
        most = capacity.context
        return "" if prompt <= most else f"an input has {prompt} tokens and the model takes {most}: shorten it"
    if not 1 <= request.max_tokens <= INT32_MAX or outputs > request.max_tokens:
        return f"max_tokens is {request.max_tokens}: it must be at least 1 and at least the {outputs} tokens given"
    for size, what in ((capacity.context, "the context"), (capacity.pool_tokens, "the KV cache")):
        if prompt + 1 > size:
            remedy = capacity.limits.remedy(prompt + 1)
            return f"the prompt has {prompt} tokens and {what} holds {size}: shorten it to at most {size - 1}{remedy}"
        if (both := prompt + request.max_tokens) > size:
            return (
                f"the prompt has {prompt} tokens and max_tokens is {request.max_tokens}, together {both}, "
                f"and {what} holds {size}: ask for at most {size - prompt}{capacity.limits.remedy(both)}"
            )
    return ""


def wrong_mask(mask: bytes, vocabulary: int) -> str:
    """Why these are not the ids that may be drawn, one bit each, or ""."""
    expected = -(-vocabulary // 8)
    return "" if len(mask) == expected else f"a mask has {len(mask)} bytes, of {vocabulary} ids it has {expected}"


def _wrong_ids(what: str, data: bytes, vocabulary: int) -> str:
    if len(data) % ID_BYTES:
        return f"{what} has {len(data)} bytes: token ids are int32"
    if not data:
        return ""
    ids = unpack_ids(data)
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocabulary:
        return f"{what} has token id {low if low < 0 else high}: ids are 0 to {vocabulary - 1}"
    return ""


def _wrong_sampling(sampling: Sampling, vocabulary: int) -> str:
    strangers = [token for token in (*sampling.logit_bias, *sampling.stop_ids) if not 0 <= token < vocabulary]
    if strangers:
        return f"logit_bias or stop_ids name token id {strangers[0]}: ids are 0 to {vocabulary - 1}"
    for name, low, high in _RANGES:
        value = getattr(sampling, name)
        if not low <= value <= high:
            return f"{name} is {value}: it must be {low} to {high}"
    if sampling.top_p == 0:
        return "top_p is 0: it must be more than 0 and at most 1"
    biases = [bias for bias in sampling.logit_bias.values() if not -_BIAS_MAX <= bias <= _BIAS_MAX]
    if biases:
        return f"logit_bias has the value {biases[0]}: it must be finite, -{_BIAS_MAX:g} to {_BIAS_MAX:g}"
    wanted = max(sampling.logprobs, sampling.prompt_logprobs)
    if wanted > vocabulary:
        return f"{wanted} log probabilities are asked for: the vocabulary has {vocabulary} ids"
    return ""


_FLOAT_MAX = 1e6
_BIAS_MAX = 1e30
"""Over the coldest temperature this is still a float32."""
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, _FLOAT_MAX),
    ("top_k", 0, INT32_MAX),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 0.01, _FLOAT_MAX),
    ("frequency_penalty", -_FLOAT_MAX, _FLOAT_MAX),
    ("presence_penalty", -_FLOAT_MAX, _FLOAT_MAX),
    ("seed", 0, 2**64 - 1),
    ("choice", 0, INT32_MAX),
    ("logprobs", -1, INT32_MAX),
    ("prompt_logprobs", -1, INT32_MAX),
    ("min_tokens", 0, INT32_MAX),
)
"""Both ends included; NaN is in no range."""
