"""The parts of a step as traces name them, and what the time in each of them is."""

from enum import StrEnum
from typing import Final

from bireme.wire.profile import Use


class Part(StrEnum):
    """Ranges of the thread that launches steps; of nested ones the innermost counts."""

    WAIT = "bireme.wait"
    LAUNCH = "bireme.launch"
    PLAN = "bireme.plan"
    EMBED = "bireme.embed"
    LAYERS = "bireme.layers"
    HEAD = "bireme.head"
    SAMPLING = "bireme.sampling"
    COLLECT = "bireme.collect"
    SUM = "bireme.exchange.sum"
    GATHER = "bireme.exchange.gather"
    SEND = "bireme.exchange.send"
    RECEIVE = "bireme.exchange.receive"
    TOKENS = "bireme.exchange.tokens"


USES: Final = {
    Part.WAIT: Use.WAITS_PLAN,
    Part.LAUNCH: Use.GAP,
    Part.PLAN: Use.GAP,
    Part.COLLECT: Use.GAP,
    Part.EMBED: Use.COMPUTE,
    Part.LAYERS: Use.COMPUTE,
    Part.HEAD: Use.COMPUTE,
    Part.SAMPLING: Use.SAMPLING,
    Part.SUM: Use.EXCHANGE,
    Part.GATHER: Use.EXCHANGE,
    Part.SEND: Use.EXCHANGE,
    Part.RECEIVE: Use.WAITS_STAGE,
    Part.TOKENS: Use.WAITS_STAGE,
}
"""Of a thread that computes itself, or while the device idles."""

KERNELS: Final = {
    "share": Use.EXCHANGE,
    "post": Use.EXCHANGE,
    "take": Use.WAITS_STAGE,
    "_part": Use.SAMPLING,
    "_choose": Use.SAMPLING,
}
"""Our own kernels on a GPU (`kernels/exchange.py`, `kernels/draw.py`); a `take` spins until its sender has posted."""
