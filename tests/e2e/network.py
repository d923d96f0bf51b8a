"""The network of nodes that we build ourselves: nothing that a node or a pod sends may leave this machine.

Service addresses without rules and names of the world would otherwise go out by the default route.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.e2e.commands import run, works

NETWORK: Final = "bireme-e2e"
"""Name of the Docker network, which kind is told by its environment."""
_BRIDGE: Final = "bireme-e2e"
_RULE: Final = ("-i", _BRIDGE, "!", "-o", _BRIDGE, "-j", "REJECT")


@contextmanager
def closed_network(*, keep: bool) -> Iterator[None]:
    """Make the network with its rule, and take both away again unless they are to be kept."""
    if not works("docker", "network", "inspect", NETWORK):
        bridge = f"com.docker.network.bridge.name={_BRIDGE}"
        run("docker", "network", "create", "--driver", "bridge", "--opt", bridge, NETWORK)
    if not works("iptables", "-C", "DOCKER-USER", *_RULE):
        run("iptables", "-I", "DOCKER-USER", *_RULE)
    try:
        yield
    finally:
        if not keep:
            run("docker", "network", "rm", NETWORK)  # first the network: never one without the rule
            run("iptables", "-D", "DOCKER-USER", *_RULE)
