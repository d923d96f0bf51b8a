"""What a verb is about: a deployment that `bireme up` runs on this machine, or one on a Kubernetes cluster.

Both are read and asked through the same few methods, so that a verb is written once. -n, --context and --kubeconfig
mean a cluster, as `kubectl bireme` always does; without them a deployment of this machine is meant if there is one of
that name, else the cluster's.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bireme.cli.errors import Refused
from bireme.cli.story import Told
from bireme_operator.kube.files import is_configured

Content = dict[str, Any]

CLUSTER_NOTE: Final = """\
Any of these means a deployment on a Kubernetes cluster, as `kubectl bireme` always does. Without them a deployment of
this machine is meant if there is one of that name, else the cluster's."""


@dataclass(frozen=True)
class Process:
    """One process or pod for the table of `status`."""

    group: int
    stage: int
    name: str
    phase: str
    place: str
    pid: int = 0
    restarts: int = 0
    more: str = ""


@dataclass(frozen=True)
class PastRevision:
    """What was wanted at some time. ``wanted`` says that it is what is wanted now."""

    number: int
    revision: str
    model_revision: str
    source: Any
    wanted: bool = False


class Target(Protocol):
    """One deployment. All methods raise `Refused`."""

    poll_s: float
    """How long to wait before it is read again."""

    @property
    def where(self) -> str:
        """The deployment's name as it is told to people."""

    def read(self) -> Content:
        """The object with its status, as `kubectl get -o json` shows it."""

    def check_alive(self) -> None:
        """Return while somebody looks after the deployment."""

    def processes(self, content: Content) -> Sequence[Process]:
        """Who is who."""

    def endpoint(self, content: Content) -> str:
        """Where clients ask."""

    def told(self) -> Sequence[Told]:
        """What happened, oldest first."""

    def details(self) -> Sequence[str]:
        """What else this place knows about the newest recovery of each group, in sentences."""

    def restart(self, value: str) -> None:
        """Have every group made anew; ``value`` will stand in `status.restart`."""

    def pause(self) -> None:
        """Have everything left as it is."""

    def resume(self, value: str) -> None:
        """Have it go on, and what failed tried again; ``value`` will stand in `status.resume`."""

    def reload(self, path: str, revision: str, mode: str) -> None:
        """Want another checkpoint."""

    def revisions(self) -> Sequence[PastRevision]:
        """What was wanted so far, oldest first."""

    def roll_back(self, number: int) -> None:
        """Want one of `revisions` again."""


def add_arguments(parser: argparse.ArgumentParser, *, name: bool = True) -> None:
    """Declare what says which deployment is meant."""
    if name:
        parser.add_argument("name", nargs="?", help="name of the deployment; may be left out when there is only one")
    group = parser.add_argument_group("cluster", CLUSTER_NOTE)
    group.add_argument("-n", "--namespace", default="", metavar="NAME", help="default: the context's own")
    group.add_argument("--context", default="", metavar="NAME", help="context of the kubeconfig (default: the current)")
    group.add_argument("--kubeconfig", default="", metavar="FILE", help="default: KUBECONFIG, else ~/.kube/config")


def means_cluster(arguments: argparse.Namespace) -> bool:
    """Whether a cluster was asked for by name."""
    asked = arguments.namespace or arguments.context or arguments.kubeconfig
    return bool(asked) or getattr(arguments, "cluster", False)


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Target]:
    """Find the deployment that is meant.

    Raises:
        Refused: there is none, or more than one.
    """
    from bireme.cli.local import LocalTarget, find, is_known

    here = is_known(arguments.name)
    if not means_cluster(arguments) and (here or not is_configured()):
        yield LocalTarget(find(arguments.name, "" if here else ", and no cluster is configured"))
        return
    from bireme.cli.cluster import ClusterTarget, reached

    with reached(arguments) as cluster:
        yield ClusterTarget.find(cluster, arguments.name)


def conditions(content: Content) -> dict[str, Content]:
    """The conditions by type."""
    return {one["type"]: one for one in (content.get("status") or {}).get("conditions") or ()}


def groups(content: Content) -> list[Content]:
    """The groups of the status, if it has any."""
    return list((content.get("status") or {}).get("groups") or ())


def refuse_paused(content: Content, what: str) -> None:
    """Return unless the deployment is paused.

    Raises:
        Refused: it is, so nothing would happen.
    """
    if content["spec"].get("paused"):
        raise Refused(f"spec.paused is true, so {what}: set it to false first")
