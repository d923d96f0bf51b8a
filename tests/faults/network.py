"""Networks that the tests made for themselves, and what a bad network does to what runs in them.

A ``Line`` joins two network namespaces, one per node; cut, it swallows every packet without a word, as a dead switch
does. ``bad`` delays and drops packets on a device: by netem where the kernel has it, else by a bucket that is too small
(tbf). Nothing outside of these namespaces notices anything.
"""

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

_CLONE_NEWNET: Final = 0x40000000
NETEM: Final = ("netem", "delay", "30ms", "15ms", "loss", "3%")
BUCKET: Final = ("burst", "1600", "latency", "60ms")
MTU: Final = "1500"
"""Of a loopback device of our own; packets of its usual 64 KiB would never fit into the bucket."""


def _run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@functools.cache
def missing() -> str:
    """Why this machine can't do it, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if gone := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(gone)} (iproute2) is not installed"
    try:
        with Line("probe") as line, line.bad():
            return ""
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses {' '.join(error.cmd)}"


@contextlib.contextmanager
def bad(device: str, namespace: str = "", rate: str = "64kbit") -> Iterator[None]:
    """Packets that leave by ``device`` are late or lost; ``rate`` is that of the bucket."""
    inside = ("ip", "netns", "exec", namespace) if namespace else ()
    place = ("tc", "qdisc", "replace", "dev", device, "root")
    if not _run(*inside, *place, *NETEM):
        subprocess.run([*inside, *place, "tbf", "rate", rate, *BUCKET], capture_output=True, check=True)
    try:
        yield
    finally:
        _run(*inside, "tc", "qdisc", "del", "dev", device, "root")


def leave_for_own_network() -> None:
    """This process, and whatever it starts from now on, gets a loopback device of its own. Call it before any thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET) failed")
    subprocess.run(["ip", "link", "set", "lo", "mtu", MTU, "up"], check=True)


@dataclass
class Line:
    """Two nodes, 192.0.2.1 and 192.0.2.2, and the line between them; gone at the end of the ``with`` block."""

    name: str

    def __post_init__(self) -> None:
        self.nodes = tuple(f"bireme-{os.getpid()}-{self.name}-{number}" for number in (1, 2))
        self.addresses = ("192.0.2.1", "192.0.2.2")

    def __enter__(self) -> Self:
        first, second = self.nodes
        try:
            for node in self.nodes:
                self._ip("netns", "add", node)
            self._ip("link", "add", "eth", "netns", first, "type", "veth", "peer", "name", "eth", "netns", second)
            for node, address in zip(self.nodes, self.addresses, strict=True):
                self._ip("-n", node, "addr", "add", f"{address}/24", "dev", "eth")
                for device in ("lo", "eth"):
                    self._ip("-n", node, "link", "set", device, "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            _run("ip", "netns", "del", node)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing arrives, and nobody is told."""
        self._ip("-n", self.nodes[1], "link", "set", "eth", "down")
        try:
            yield
        finally:
            self._ip("-n", self.nodes[1], "link", "set", "eth", "up")

    @contextlib.contextmanager
    def bad(self) -> Iterator[None]:
        """Late or lost in both directions."""
        with bad("eth", self.nodes[0]), bad("eth", self.nodes[1]):
            yield

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], capture_output=True, check=True)
