"""What every route of one HTTP process shares, and whom a request comes from."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from bireme.names import Header
from bireme.wire.journal import Extension
from bireme_worker.http.body import EXTENSION_KEY
from bireme_worker.http.coordinator_link import CoordinatorLink
from bireme_worker.http.errors import InvalidRequest, Unauthorized, UnknownModel
from bireme_worker.identity import Identity
from bireme_worker.text.tokenizer import TextModel

LONGEST_REQUEST_ID: Final = 128


@dataclass(frozen=True)
class Service:
    """One HTTP process: who it is, its tokenizer, and its line to the coordinator."""

    identity: Identity
    text: TextModel
    link: CoordinatorLink
    text_name: str = ""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name that a request may use, the served one first, adapters last."""
        names = (self.identity.model_name, *self.identity.model_aliases, *dict(self.identity.adapters))
        return tuple(dict.fromkeys(names))

    def adapter_of(self, name: str) -> str:
        """The adapter that this model name means, or nothing."""
        return name if name in dict(self.identity.adapters) else ""

    @property
    def vocabulary(self) -> int:
        """Ids below this have a row in the embedding."""
        return self.text.config.vocab_size

    def require_model(self, name: str) -> None:
        """Refuse a model that is not served here.

        Raises:
            UnknownModel: names the ones that are.
        """
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise UnknownModel(f"the model {name[:100]!r} does not exist here, use one of: {served}", param="model")

    def require_text(self, name: str) -> None:
        """Refuse to write with a model that only makes vectors.

        Raises:
            InvalidRequest: it does.
        """
        if self.text.config.is_encoder:
            message = f"{name} makes embeddings and no text: use /v1/embeddings, or name a model that generates text"
            raise InvalidRequest(message, param="model")

    def require_vectors(self, name: str) -> None:
        """Refuse to make vectors with a model that writes.

        Raises:
            InvalidRequest: it does.
        """
        if not self.text.config.is_encoder:
            message = f"{name} generates text and makes no embeddings: name a model of the BERT family"
            raise InvalidRequest(message, param="model")

    def require_ids(self, field: str, ids: list[int] | dict[int, float]) -> None:
        """Refuse ids that the model does not have: the engine would read outside its tables.

        Raises:
            InvalidRequest: names the field and the vocabulary's size.
        """
        wrong = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise InvalidRequest(f"{field} has the id {wrong}, the last one is {self.vocabulary - 1}", param=field)


@dataclass(frozen=True)
class Caller:
    """Whom a request comes from. ``extension`` and ``journal`` are the router's, proved by the group token."""

    request_id: str
    journal: bool
    extension: Extension | None


def take_caller(request: web.Request, token: bytes, body: dict[str, Any]) -> Caller:
    """Read the headers, and take the router's part out of ``body``.

    Raises:
        Unauthorized: the router's privileges were asked for without the group token.
        InvalidRequest: a request id or extension that can't be right.
    """
    journal = request.headers.get(Header.JOURNAL) == "1"
    written = body.pop(EXTENSION_KEY, None)
    if (journal or written is not None) and not _has_token(request, token):
        asked = f"the header {Header.JOURNAL}" if journal else f"the body key {EXTENSION_KEY!r}"
        raise Unauthorized(f"{asked} needs {Header.TOKEN}: Bearer with this group's token; leave it out", param=None)
    extension = None if written is None else _extension(written)
    given = request.headers.get(Header.REQUEST_ID) if extension is None else extension.request_id
    return Caller(secrets.token_hex(12) if given is None else _checked_id(given), journal, extension)


def _has_token(request: web.Request, token: bytes) -> bool:
    given = request.headers.get(Header.TOKEN, "")
    return hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token.hex()}".encode())


def _extension(value: object) -> Extension:
    try:
        return msgspec.convert(value, Extension)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{EXTENSION_KEY}: {error}", param=EXTENSION_KEY) from error


def _checked_id(given: str) -> str:
    """It goes into headers, logs and the response id, so it must be one printable word."""
    if not (0 < len(given) <= LONGEST_REQUEST_ID and all("!" <= character <= "~" for character in given)):
        raise InvalidRequest(
            f"{Header.REQUEST_ID} must be 1 to {LONGEST_REQUEST_ID} printable ASCII characters without spaces",
            param=Header.REQUEST_ID,
        )
    return given
