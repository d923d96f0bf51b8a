"""Numbers as people write them on a command line."""

import argparse

from bireme.api.types import byte_count


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def memory(text: str) -> int:
    """Bytes, such as 80GiB, 80Gi or 85899345920."""
    try:
        return byte_count(text.removesuffix("B"))
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory, write for example 80GiB") from None
