"""The planner's memory as text, to be kept in the object's status: budgets, backoff and drains outlive the operator.

Compressed, because it repeats itself once per group and travels with every status: a thousand groups need some 50 KiB.
"""

import base64
import binascii
import logging
import zlib

import msgspec

from bireme_operator.plan.memory import Memory

log = logging.getLogger(__name__)

_decoder: msgspec.json.Decoder[Memory] = msgspec.json.Decoder(Memory)


def write_memory(memory: Memory) -> str:
    """Return the text of a memory."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(memory))).decode()


def read_memory(text: str) -> Memory:
    """Return the memory of a text. One that can't be read counts as lost: pods tell what matters most of it."""
    if not text:
        return Memory()
    try:
        return _decoder.decode(zlib.decompress(base64.b64decode(text)))
    except (binascii.Error, zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("status.memory can't be read, restart budgets begin anew: %s", error)
        return Memory()
