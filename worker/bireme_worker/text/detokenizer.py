"""Token ids to text, as they come. What has been released is a function of the ids alone, not of how they were
grouped.

A character is released when its last byte is there; broken bytes become U+FFFD as soon as it is certain that they are
broken. Constant work per token.
"""

import codecs
from collections.abc import Iterable
from typing import Final

from bireme_worker.text.token_bytes import TokenBytes

NONE: Final[frozenset[int]] = frozenset()


class Detokenizer:
    """The text of one output. ``at_start=False`` when it continues a prompt, so that its first space is kept."""

    def __init__(
        self, tokens: TokenBytes, *, skip_special: bool = True, at_start: bool = True, keep: frozenset[int] = NONE
    ) -> None:
        """``keep``: special tokens that are written out all the same."""
        self._tokens = tokens
        self._keep = keep
        self._skip_special = skip_special
        self._strip = at_start and tokens.strips_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that these ids complete."""
        data = b"".join(
            self._tokens.of(token, skip_special=self._skip_special and token not in self._keep) for token in ids
        )
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left when no more ids come: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)
