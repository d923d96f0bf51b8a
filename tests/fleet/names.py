"""Cluster DNS by substitution: host names of headless Services in a container's environment become pod addresses.

There is no DNS server on the loopback, and no resolver of a process can be redirected without rights over the machine. So
a name is resolved once, when its container starts; a name that leads nowhere yet keeps the container waiting. A peer
that moves later is announced by `POST /leader`, as the design has it for stale names.
"""

import re
from collections.abc import Sequence

from tests.fleet.api import Object

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"


class Unresolved(Exception):
    """A name leads to no pod with an address yet."""


def hosts_in(text: str, namespace: str, subdomain: str) -> list[str]:
    """Return the cluster's host names in ``text``: `[pod.]service.namespace.svc[.cluster.local]` and `pod.subdomain`."""
    full = rf"(?:{_LABEL}\.)?{_LABEL}\.{_LABEL}\.svc(?:\.cluster\.local)?"
    short = rf"|{_LABEL}\.{re.escape(subdomain)}(?:\.{re.escape(namespace)})?" if subdomain else ""
    return re.findall(rf"(?<![-\w./])(?:{full}{short})(?![-\w.])", text)


def split(host: str, namespace: str) -> tuple[str, str, str]:
    """Return (pod's host name or "", service, namespace) of a name that `hosts_in` found."""
    parts = host.removesuffix(".cluster.local").removesuffix(".svc").split(".")
    if host.count(".svc"):
        return ("", *parts) if len(parts) == 2 else tuple(parts)  # type: ignore[return-value]
    return parts[0], parts[1], namespace


def address(hostname: str, service: Object, pods: Sequence[Object]) -> str:
    """Return the address that DNS would give for a headless service, of several the newest pod's.

    Raises:
        Unresolved: no pod behind the name has an address, or none is ready where the service asks for that.
    """
    selector = service["spec"].get("selector") or {}
    unready = service["spec"].get("publishNotReadyAddresses", False)
    found = [
        pod
        for pod in pods
        if selector.items() <= pod["metadata"].get("labels", {}).items()
        and hostname in {"", pod["spec"].get("hostname", "")}
        and pod["status"].get("podIP")
        and (unready or is_ready(pod))
    ]
    if not found:
        raise Unresolved(f"{hostname or 'no pod'} of service {service['metadata']['name']} has no address yet")
    newest = max(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
    return str(newest["status"]["podIP"])


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is true."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
