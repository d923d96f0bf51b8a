"""Ports for listeners that start later than they are chosen.

They lie outside of what the kernel gives to whoever asks for any port (32768 and up): one of those may become the port
of somebody's connection between the choice and the listening.
"""

import random
import socket
from typing import Final

_RANGE: Final = range(10_000, 20_000)
_given: Final[set[int]] = set()


def free_port(among: range = _RANGE) -> int:
    """A port of 127.0.0.1 that nobody listens on now, another one each time."""
    for port in random.SystemRandom().sample([one for one in among if one not in _given], 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise OSError(f"a hundred ports between {among.start} and {among.stop} are taken")
