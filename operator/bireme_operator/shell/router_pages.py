"""The metrics pages of a deployment's routers: which pods have one, and what it says."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import aiohttp

from bireme.api.router import Router
from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.resources import PODS
from bireme_operator.render.owned import Owner
from bireme_operator.render.router import ROUTER

Page = TypeVar("Page")


class Unread(Exception):
    """A router's page could not be had; the message says why."""


async def router_pods(kube: Kube, owner: Owner) -> list[Mapping[str, Any]]:
    """Return the routers' pods that have an address.

    Raises:
        KubeError: they can't be listed.
    """
    found = await kube.list(PODS, owner.namespace, f"{Label.DEPLOYMENT}={owner.name},{Label.ROLE}={ROUTER}")
    return [pod for pod in found["items"] if (pod.get("status") or {}).get("podIP")]


async def read_router(
    session: aiohttp.ClientSession, pod: Mapping[str, Any], router: Router, read: Callable[[str], Page], within_s: float
) -> tuple[str, Page]:
    """Return a name for this run of the router, another after every restart, and what ``read`` makes of its page.

    Raises:
        Unread: it did not answer within ``within_s`` seconds, or with something else.
    """
    meta, status = pod["metadata"], pod["status"]
    address = f"[{status['podIP']}]" if ":" in status["podIP"] else status["podIP"]
    url = f"{'https' if router.tls else 'http'}://{address}:{router.port}/metrics"
    starts = sum(one.get("restartCount") or 0 for one in status.get("containerStatuses") or ())
    try:
        # Its certificate names the endpoint that clients know, never the address of a pod.
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=within_s), ssl=False) as answer:
            answer.raise_for_status()
            return f"{meta['uid']}/{starts}", read(await answer.text())
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise Unread(f"{meta['name']}: {str(error) or type(error).__name__}") from None
