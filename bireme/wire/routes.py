"""The routes file: how the router learns its groups where there is no cluster (design, section 6.4).

Written whole and renamed into place by `bireme up`; the router reads it again when it changes. It lists leaders only.
"""

import msgspec

from bireme.wire.errors import Garbled


class Route(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group's leader. ``pod`` is unique for each making of the pod; a new one is a new target for the router.

    ``http`` and ``admin`` are base URLs of its two ports, ``token_file`` holds the group token as hex, ``zone`` names
    where it runs, if that is known.
    """

    group: str
    index: int
    pod: str
    incarnation: int
    http: str
    admin: str
    token_file: str
    zone: str = ""


class Routes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything the router needs: the model's names (first the served one) and the leaders.

    ``weights`` shares new requests between versions while a canary runs (see ``version``); empty: they do not matter.
    """

    v: int
    models: tuple[str, ...]
    groups: tuple[Route, ...]
    weights: dict[str, int] = {}


def version(revision: str, model_revision: str) -> str:
    """What a group is, as its router counts it: the rendering of its pods and the checkpoint that it serves."""
    return f"{revision}/{model_revision}"


_routes: msgspec.json.Decoder[Routes] = msgspec.json.Decoder(Routes)


def write_routes(routes: Routes) -> bytes:
    """The file's content."""
    return msgspec.json.format(msgspec.json.encode(routes), indent=1)


def read_routes(content: bytes) -> Routes:
    """The inverse of ``write_routes``.

    Raises:
        Garbled: the content is no routes file.
    """
    try:
        return _routes.decode(content)
    except msgspec.MsgspecError as error:
        raise Garbled(f"no routes file: {error}") from error
