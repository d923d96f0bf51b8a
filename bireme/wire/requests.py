"""Between an HTTP process and the coordinator: token ids in, one frame of tokens per step out.

HTTP processes own text: JSON, templates, tokenising, stop strings, logprob text. The coordinator sees ids only. A
request's key is chosen by the HTTP process and unique on its connection.
"""

import msgspec

from bireme.wire.frames import Codec
from bireme.wire.plan import Logprobs, Sampling


class RequestMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of the messages between HTTP processes and coordinator."""


class Submit(RequestMessage, frozen=True):
    """HTTP → coordinator: admit this. ``outputs`` are ids already generated elsewhere (resume).

    ``max_tokens`` counts outputs including those. ``journalled``: somebody else can resume it, so it is handed over
    at the end of an epoch; otherwise the coordinator keeps it and computes it anew in the next epoch. Lower
    ``priority`` values are served first, as in vLLM. ``text`` names the tokenizer that made the ids. ``speculate``:
    tokens may be drafted, where the engine does so; the draws are the same. ``adapter`` names a LoRA adapter.
    ``mask``: the ids that may be drawn first, as in ``plan.Plan``; then every later draw waits for its ``Allow``.
    ``encode``: the vector of the whole prompt is wanted, no tokens; an encoder takes nothing else.
    """

    key: int
    request_id: str
    prompt: bytes
    sampling: Sampling
    max_tokens: int
    outputs: bytes = b""
    priority: int = 0
    journalled: bool = False
    text: str = ""
    speculate: bool = True
    adapter: str = ""
    encode: bool = False
    mask: bytes = b""


class Allow(RequestMessage, frozen=True):
    """HTTP → coordinator: output number ``output`` of a request that came with a mask may be one of these ids."""

    key: int
    output: int
    mask: bytes


class Cancel(RequestMessage, frozen=True):
    """HTTP → coordinator: the client left, or a stop string ended it; free everything."""

    key: int


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """New ids of one request. ``finish``: "" while it runs, else stop | length | error | handover.

    ``cached``: prompt tokens taken from the prefix cache (with the first ids). ``message`` explains error and handover.
    ``vector``: what an encoder made of the prompt. ``prompt``: log probabilities of the next tokens of the prompt, from
    its second on, which come before the first ids.
    """

    key: int
    ids: bytes
    finish: str = ""
    cached: int = 0
    logprobs: tuple[Logprobs, ...] = ()
    message: str = ""
    vector: bytes = b""
    prompt: tuple[Logprobs, ...] = ()


class Frame(RequestMessage, frozen=True):
    """Coordinator → HTTP: everything that one step brought for this process's requests."""

    step: int
    tokens: tuple[Tokens, ...]


class Accepted(RequestMessage, frozen=True):
    """Coordinator → HTTP: the request is in the queue or running; headers may be sent."""

    key: int


class Refused(RequestMessage, frozen=True):
    """Coordinator → HTTP: not admitted, nothing was computed. ``code`` is one of ``names.Admission``."""

    key: int
    code: int
    message: str
    retry_after_s: float = 0.0


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What admission allows: context in tokens, requests running, requests waiting.

    ``wanted`` is the context that model and `engine.maxModelLength` allow where the KV cache holds less, else 0.
    """

    context: int
    running: int
    queue: int
    wanted: int = 0

    @property
    def shortage(self) -> str:
        """Why the context is no longer, and the remedy; nothing where the cache holds all that is allowed."""
        if not self.wanted:
            return ""
        times = -(-10 * self.wanted // max(self.context, 1)) / 10
        return (
            f"of {self.wanted} tokens that are allowed the KV cache holds {self.context}: "
            f"for all of them make engine.kvCache.bytes {times:g} times as large; its default on a CPU is 48Mi a rank"
        )

    def remedy(self, tokens: int) -> str:
        """What follows a refusal of so many tokens, in brackets; nothing where a larger cache would not help."""
        return f" ({self.shortage})" if tokens <= self.wanted else ""


class Serving(RequestMessage, frozen=True):
    """Coordinator → HTTP on connect and on every change: whether new work is taken, and if not, why.

    It comes before the first tokens of other weights. ``source`` is their checkpoint, ``text`` names its tokenizer.
    """

    serving: bool
    reason: str
    message: str
    retry_after_s: float
    epoch: int
    model_revision: str
    generation: int
    limits: Limits
    source: str = ""
    text: str = ""


RequestKinds = Submit | Allow | Cancel | Frame | Accepted | Refused | Serving
request_codec: Codec[RequestKinds] = Codec(RequestKinds)
