"""Which bytes a token stands for: the ground on which streaming text is exact.

Text must not be decoded token by token (a character may be spread over several tokens), and decoding a window again
and again costs more and cannot tell a broken byte from an unfinished one. Bytes per token make both simple. Two kinds
of decoders are known, which between them cover the Llama and GPT families, and the two of the encoder families; any
other is refused when the tokenizer is loaded.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTE_FALLBACK = ("Replace", "ByteFallback", "Fuse")
_STRIPPED = (*_BYTE_FALLBACK, "Strip")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others as the characters from 256 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + place): byte for place, byte in enumerate(others)}}


BYTE_LEVEL: Mapping[str, int] = _byte_level_alphabet()


class TokenBytes:
    """Bytes of each token of one tokenizer; ``strips_space``: one space at the start of a text is not part of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._cache: dict[int, bytes] = {}
        decoder = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else {"type": "none"}
        kinds = tuple(part["type"] for part in decoder.get("decoders", [decoder]))
        if kinds not in {("ByteLevel",), _BYTE_FALLBACK, _STRIPPED, ("WordPiece",), ("Metaspace",)}:
            raise UnsupportedCheckpoint(
                f"tokenizer.json: decoder {'+'.join(kinds)} is not supported, only ByteLevel and {'+'.join(_STRIPPED)}"
            )
        self._byte_level = kinds == ("ByteLevel",)
        self._continues = str(decoder["prefix"]) if kinds == ("WordPiece",) else ""
        self._space = "" if self._byte_level or self._continues else _replaced(decoder)
        self.strips_space = kinds in {_STRIPPED, ("WordPiece",), ("Metaspace",)}

    def of(self, token: int, *, skip_special: bool) -> bytes:
        """Return the bytes; none for a skipped special token or an id outside the vocabulary (padding)."""
        if skip_special and token in self._special:
            return b""
        known = self._cache.get(token)
        if known is None:
            known = self._cache[token] = self._encode(self._tokenizer.id_to_token(token) or "")
        return known

    def _encode(self, text: str) -> bytes:
        if self._byte_level:
            # An added token is written in plain text, not in the alphabet: then its text is meant.
            spelled = [BYTE_LEVEL.get(character) for character in text]
            return text.encode() if None in spelled else bytes(byte for byte in spelled if byte is not None)
        if self._continues:
            return text[len(self._continues) :].encode() if text.startswith(self._continues) else b" " + text.encode()
        single = _BYTE_TOKEN.fullmatch(text)
        return bytes([int(single[1], 16)]) if single else text.replace(self._space, " ").encode()


def _replaced(decoder: Mapping[str, Any]) -> str:
    if decoder["type"] == "Metaspace":
        return str(decoder["replacement"])
    replace = decoder["decoders"][0]
    match replace:
        case {"pattern": {"String": str(pattern)}, "content": " "}:
            return pattern
    raise UnsupportedCheckpoint(f"tokenizer.json: decoder {replace} is not supported, only one that writes a space")
