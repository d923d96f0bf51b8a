"""Who is let in: API keys, kept as SHA-256 and read again when their file changes.

``{"v": 1, "keys": {"<SHA-256 of the key, hex>": "<name>"}}``; the hash of a key is the name by which `--limits` and
fairness count it. Look-up is by a digest under a secret of this process and ends with a constant-time comparison, so
the time of a refusal tells nothing about the keys. A broken file never replaces a good one.
"""

import hashlib
import hmac
import logging
import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from bireme_router.edge.changed import Changed
from bireme_router.edge.errors import UnusableFile
from bireme_router.errors import Unauthorized

log = logging.getLogger(__name__)

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    keys: dict[str, str]


class BadKeys(UnusableFile):
    """The file can't be right; the message says why and holds nothing secret."""


def read_keys(content: bytes) -> dict[bytes, str]:
    """Names by SHA-256.

    Raises:
        BadKeys: the content is no file of keys.
    """
    try:
        keys = msgspec.json.decode(content, type=_File).keys
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadKeys(f"no file of API keys: {error}") from error
    for digest in keys:
        if not _SHA256.fullmatch(digest):
            raise BadKeys(f"a key is listed by its SHA-256, 64 lower-case hex digits, not by {len(digest)} characters")
    return {bytes.fromhex(digest): name for digest, name in keys.items()}


class ApiKeys:
    """The keys of one file."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            OSError: it can't be read.
            BadKeys: it can't be right.
        """
        self._path = path
        self._secret = secrets.token_bytes(32)
        self._changed = Changed(path)
        self._changed.look()
        self._known = self._index(read_keys(path.read_bytes()))

    def name_of(self, authorization: str) -> str:
        """The name of the key in an Authorization header.

        Raises:
            Unauthorized: it holds none that is known.
        """
        self._read_again()
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("no API key was given: send it as `Authorization: Bearer <key>`")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        known, name = self._known.get(self._masked(digest), (b"", ""))
        if not hmac.compare_digest(known, digest):
            raise Unauthorized("the API key is not known here: ask whoever runs this endpoint for one")
        return name

    def _index(self, names: dict[bytes, str]) -> dict[bytes, tuple[bytes, str]]:
        return {self._masked(digest): (digest, name) for digest, name in names.items()}

    def _masked(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()

    def _read_again(self) -> None:
        if not self._changed.is_due():
            return
        try:
            if self._changed.look():
                self._known = self._index(read_keys(self._path.read_bytes()))
                log.info("API keys were read again: %d keys", len(self._known))
        except (OSError, BadKeys) as error:
            log.warning("API keys stay as they were, %s can't be read: %s", self._path, error)
