"""The fixed ports of a stage pod, looked at before anything is started.

A port in use is a configuration error (64) with a remedy, not a crash loop of whichever child meets it first. The
sockets of the last making of this pod may take a moment to go, so the look is repeated for a short while.
"""

import asyncio
import socket
from collections.abc import Iterable

from bireme.names import Port
from bireme_worker.identity import BadIdentity, Identity

_LOOK_S = 0.1


def needed_ports(identity: Identity) -> dict[int, str]:
    """Port → what for, for every listener of this pod."""
    ports = {int(Port.ADMIN): "admin", **{Port.DATA + rank: f"data of rank {rank}" for rank in range(identity.tensor)}}
    if identity.is_leader:
        ports |= {int(Port.CONTROL): "control", int(Port.PLAN): "plan"}
        ports |= {int(Port.HTTP): "HTTP"} if identity.http_processes else {}
    return ports


async def await_free_ports(host: str, ports: dict[int, str], limit_s: float) -> None:
    """Return when all ``ports`` of ``host`` can be bound, at the latest after ``limit_s``.

    Raises:
        BadIdentity: one can't; the message names it and the remedy.
    """
    deadline = asyncio.get_running_loop().time() + limit_s
    while trouble := _first_taken(host, ports.items()):
        if asyncio.get_running_loop().time() > deadline:
            raise BadIdentity(trouble)
        await asyncio.sleep(_LOOK_S)


def _first_taken(host: str, ports: Iterable[tuple[int, str]]) -> str:
    for port, purpose in ports:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                remedy = (
                    f"end the process that holds it (`ss -ltnp 'sport = :{port}'`) or give this pod another address"
                )
                return f"the {purpose} port {host}:{port} can't be opened ({error.strerror}): {remedy}"
    return ""
