"""A loopback address of its own for every making of a pod, so that all pods can have the same fixed ports.

Drawn at random from 127.64.0.0/10, because several deployments may be up at once, and tried before it is given.
"""

import random
import socket
from collections.abc import Callable, Sequence

from bireme.names import Port
from bireme_operator.local.errors import PortTaken

_TRIES = 16


def stage_ports(tensor: int) -> list[int]:
    """Return every port that a stage pod may listen on."""
    return [Port.HTTP, Port.ADMIN, Port.CONTROL, Port.PLAN, *(Port.DATA + rank for rank in range(tensor))]


def draw_address() -> str:
    """Return any address of 127.64.0.0/10."""
    draw = random.randint
    return f"127.{draw(64, 127)}.{draw(0, 255)}.{draw(1, 254)}"


class Addresses:
    """Gives and takes back loopback addresses on which all of ``ports`` are free."""

    def __init__(self, ports: Sequence[int], draw: Callable[[], str] = draw_address) -> None:
        self._ports = tuple(ports)
        self._draw = draw
        self._given: set[str] = set()

    def take(self) -> str:
        """Return an address that nobody uses.

        Raises:
            PortTaken: a port is in use wherever it was tried, so somebody listens on all addresses.
        """
        taken = 0
        for _ in range(_TRIES):
            address = self._draw()
            taken = next((port for port in self._ports if not is_free(address, port)), 0)
            if not taken and address not in self._given:
                self._given.add(address)
                return address
        raise PortTaken(
            f"port {taken} is in use on every loopback address, so another process listens on 0.0.0.0:{taken}: "
            f"stop it (`ss -ltnp 'sport = :{taken}'` names it)"
        )

    def give_back(self, address: str) -> None:
        """Take an address back."""
        self._given.discard(address)


def is_free(host: str, port: int) -> bool:
    """Whether a listener could be opened there now."""
    return trouble_at(host, port) is None


def trouble_at(host: str, port: int) -> OSError | None:
    """Return why no listener could be opened there now, None when one could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None
