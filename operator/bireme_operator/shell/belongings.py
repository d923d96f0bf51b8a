"""How the server has what was applied beside the pods: so that what somebody deletes or changes comes back at once.

Of an object are kept its identity and a hash of that part of it which we have written; never the body. What others
write beside that, such as the status of a Deployment, asks for nothing.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from bireme.names import KIND, Label
from bireme_operator.kube.resources import (
    APPS,
    CONFIG_MAPS,
    POLICIES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from bireme_operator.render.owned import Object, Owner
from bireme_operator.shell.store import Key

WATCHED: Final = (SERVICES, SERVICE_ACCOUNTS, CONFIG_MAPS, APPS, POLICIES, ROLES, ROLE_BINDINGS)
"""All that is applied. Secrets are not: the operator may not read them. Budgets are looked at each minute."""

_GONE_KEPT: Final = 1000
"""An answer is late by as much as a request takes."""

Place = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True)
class _Known:
    """``manifest`` as it was applied, empty if it must be applied anew; ``look``: hash of what is there of it."""

    uid: str
    owner_uid: str
    version: int
    manifest: bytes = b""
    look: bytes = b""


class Belongings:
    """The objects of all deployments, as events and the answers to our own writes tell of them."""

    def __init__(self) -> None:
        self._known: dict[Place, _Known] = {}
        self._changes: Counter[Key] = Counter()
        self._gone: deque[str] = deque(maxlen=_GONE_KEPT)

    def changes(self, key: Key) -> int:
        """Return a number that grows whenever something of a deployment is not as it was applied any more."""
        return self._changes[key]

    def forget(self, key: Key) -> None:
        """Nobody looks after this deployment any more."""
        self._changes.pop(key, None)

    def uid(self, place: Place, owner_uid: str) -> str:
        """Return the uid of an object as last seen if it belongs to ``owner_uid``, or nothing."""
        known = self._known.get(place)
        return known.uid if known is not None and known.owner_uid == owner_uid else ""

    def is_as_applied(self, place: Place, manifest: bytes) -> bool:
        """Whether the server has what ``manifest`` says, as far as is known."""
        known = self._known.get(place)
        return known is not None and known.manifest == manifest

    def applied(self, place: Place, manifest: bytes, answer: Object) -> None:
        """Note how the server has what was applied just now."""
        now = _Known(answer["metadata"]["uid"], controller_of(answer), _version(answer))
        known = self._known.get(place)
        if now.uid in self._gone or (known is not None and known.version > now.version):
            return  # an event was faster than our answer, and it is applied again
        self._known[place] = replace(now, manifest=manifest, look=_look(manifest, answer))

    def see(self, kind: str, body: Mapping[str, Any], *, gone: bool = False) -> Key | None:
        """Take an event; the key of the deployment if it may have to apply something."""
        meta = body["metadata"]
        key = meta["namespace"], _deployment_of(body)
        place = kind, meta["namespace"], meta["name"]
        known = self._known.get(place)
        if not (self._lose(place, known, meta["uid"]) if gone else self._differs(place, known, body)):
            return None
        self._changes[key] += 1
        return key

    def _lose(self, place: Place, known: _Known | None, uid: str) -> bool:
        if known is not None and known.uid != uid:
            return False  # one before it
        self._known.pop(place, None)
        self._gone.append(uid)
        return True

    def _differs(self, place: Place, known: _Known | None, body: Mapping[str, Any]) -> bool:
        now = _Known(body["metadata"]["uid"], controller_of(body), _version(body))
        if known is None:
            self._known[place] = now
            return False
        if known.version >= now.version:
            return False
        if known.uid == now.uid and known.manifest and known.look == _look(known.manifest, body):
            self._known[place] = replace(known, version=now.version)
            return False
        self._known[place] = now
        return True


def controller_of(body: Mapping[str, Any]) -> str:
    """Return the uid of the object that controls this one, or nothing."""
    holder = holder_of(body)
    return "" if holder is None else str(holder["uid"])


def holder_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the reference to the object that controls this one, if one does."""
    references = body["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def may_take(owner: Owner, found: Object, manifest: Object) -> bool:
    """Whether what has our name is ours, or nobody's with all our labels: left by a deployment deleted without it."""
    if controller_of(found):
        return controller_of(found) == owner.uid
    return bool(manifest["metadata"]["labels"].items() <= (found["metadata"].get("labels") or {}).items())


def _deployment_of(body: Mapping[str, Any]) -> str:
    """By its owner, because anybody can change a label."""
    holder = holder_of(body)
    if holder is not None and holder["kind"] == KIND:
        return str(holder["name"])
    return str((body["metadata"].get("labels") or {}).get(Label.DEPLOYMENT, ""))


def place_of(manifest: Object) -> Place:
    """Return the place of a rendered object."""
    return manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"]["resourceVersion"])


def _look(manifest: bytes, body: Mapping[str, Any]) -> bytes:
    ours = _ours(msgspec.json.decode(manifest), body)
    return hashlib.blake2b(msgspec.json.encode(ours, order="sorted"), digest_size=16).digest()


def _ours(written: Any, found: Any) -> Any:
    """Return that part of an object whose fields we write; lists are taken whole."""
    if isinstance(written, Mapping) and isinstance(found, Mapping):
        return {name: _ours(value, found[name]) for name, value in written.items() if name in found}
    return found
