"""All that knows Kopf: it watches and keeps the watches alive; an event is stored and its key enqueued, nothing else.

No create, update or field handler, no timer, no daemon: so Kopf writes no annotation and no finalizer, and an event
that is lost is found at the next one or at the next resync.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import Any, Final

import kopf

from bireme.names import GROUP, VERSION, Label
from bireme_operator.kube.resources import DEPLOYMENTS, PODS, Resource
from bireme_operator.queue import WorkQueue
from bireme_operator.shell.belongings import WATCHED, Belongings
from bireme_operator.shell.store import Key, Store

_SERVER_TIMEOUT_S: Final = 30  # whole, or the server refuses it
_CLIENT_TIMEOUT_S: Final = 35
_CHUNK: Final = 500
_LONGEST_WAIT_S: Final = 4.0


class _Backoffs:
    """Waits between tries to reach the server, without an end: who can't for long loses the Lease, and ends by that."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(_LONGEST_WAIT_S))


def registry_of(store: Store, belongings: Belongings, queue: WorkQueue[Key], *, nodes: bool) -> kopf.OperatorRegistry:
    """Return Kopf's registry with our handlers; ``nodes`` says whether there is the right to watch nodes."""
    registry = kopf.OperatorRegistry()

    # Handlers that are no coroutines would run in threads, and the store belongs to the loop.
    async def login(**known: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**known) or kopf.login_with_kubeconfig(**known)

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings)

    async def deployment_seen(event: Any, **_: Any) -> None:
        body = event["object"]
        if store.see_deployment(body, gone=event["type"] == "DELETED"):
            queue.add((body["metadata"]["namespace"], body["metadata"]["name"]), urgent=event["type"] is not None)

    async def pod_seen(event: Any, **_: Any) -> None:
        key = store.see_pod(event["object"], gone=event["type"] == "DELETED")
        if key is not None:
            queue.add(key, urgent=event["type"] is not None)

    async def belonging_seen(event: Any, param: Any = None, **_: Any) -> None:
        key = belongings.see(param, event["object"], gone=event["type"] == "DELETED")
        if key is not None:
            queue.add(key)

    async def node_seen(event: Any, **_: Any) -> None:
        for key in store.see_node(event["object"], gone=event["type"] == "DELETED"):
            queue.add(key)

    kopf.on.login(registry=registry)(login)
    kopf.on.startup(registry=registry)(configure)
    kopf.on.event(GROUP, VERSION, DEPLOYMENTS.plural, registry=registry)(deployment_seen)
    kopf.on.event("v1", PODS.plural, labels={str(Label.STAGE): kopf.PRESENT}, registry=registry)(pod_seen)
    for kind in WATCHED:
        labels = {str(Label.DEPLOYMENT): kopf.PRESENT}
        kopf.on.event(*_named(kind), labels=labels, param=kind.kind, registry=registry)(belonging_seen)
    if nodes:
        kopf.on.event("v1", "nodes", registry=registry)(node_seen)
    return registry


class _NothingToCompare(kopf.DiffBaseStorage):
    """Kopf copies every object of every event to see what has changed in it; we have our own eyes for that."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def _named(resource: Resource) -> tuple[str, str, str]:
    """Return group, version and plural."""
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural


def _configure(settings: kopf.OperatorSettings) -> None:
    # A watch that has fallen silent is closed and opened again before half a minute is over.
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _CLIENT_TIMEOUT_S
    settings.watching.inactivity_timeout = _CLIENT_TIMEOUT_S
    settings.watching.chunk_size = _CHUNK
    settings.watching.label_selectors["v1", PODS.plural] = str(Label.STAGE)
    for kind in WATCHED:
        settings.watching.label_selectors[_named(kind)] = str(Label.DEPLOYMENT)
    settings.posting.enabled = False
    settings.networking.error_backoffs = _Backoffs()
    # Without state-tracking handlers none of these is ever written; if one slips in, it is at least ours.
    settings.persistence.finalizer = f"{GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = _NothingToCompare()
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
