"""What the operator was told on its command line."""

from dataclasses import dataclass, field
from pathlib import Path

from bireme_operator.shell.signals import Watched
from bireme_operator.shell.silence import AFTER_S


@dataclass(frozen=True)
class Settings:
    """See ``--help`` for each. ``namespaces`` empty means all of them."""

    namespaces: tuple[str, ...]
    master_key_file: Path
    worker_image: str
    router_image: str
    identity: str
    lease_namespace: str
    lease_name: str = "bireme-operator"
    lease_seconds: int = 15
    probe_port: int = 8080
    workers: int = 8
    watched: Watched = field(default_factory=Watched)
    silent_node_seconds: int = int(AFTER_S)
