"""How the nodes of a fleet behave: the kubelet's own defaults are minutes, and tests can't wait for them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What all nodes of a fleet have in common."""

    root: Path
    """Where the nodes keep volumes; a short path, because a socket in one can't have a long one."""
    logs: Path
    """Where the output of containers goes."""
    images: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Entry point of each image; a pod that names another one waits in ImagePullBackOff."""
    lease_seconds: int = 8
    """`nodeLeaseDurationSeconds`; renewed four times as often, as kubelets do."""
    crash_base_seconds: float = 0.5
    """First wait of CrashLoopBackOff, doubled each time; 10 in a kubelet. The first restart follows at once."""
    crash_limit_seconds: float = 20.0
    """Longest wait of CrashLoopBackOff; 300 in a kubelet."""
    sync_seconds: float = 60.0
    """How often volumes are written again from their secrets and config maps; at once when a pod's metadata changes."""


@dataclass
class Addresses:
    """A loopback address for each pod, out of 127.192.0.0/10: other tests use the lower ones."""

    given: set[str] = field(default_factory=set)

    def take(self) -> str:
        """Return an address that no pod of this fleet has or had."""
        while (address := _draw()) in self.given:
            continue
        self.given.add(address)
        return address


def _draw() -> str:
    return f"127.{random.randint(192, 254)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
