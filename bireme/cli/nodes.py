"""The nodes of a cluster and which groups are on them. This machine is one node, which no group can leave."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bireme.cli.errors import Refused
from bireme.cli.target import Content, means_cluster
from bireme.names import Label
from bireme_operator.kube.files import is_configured

if TYPE_CHECKING:
    from bireme.cli.cluster import Cluster

Residents = dict[tuple[str, str], set[int]]
"""Indices of the groups on a node, by namespace and name of their deployment."""

_ONE_NODE = (
    "`bireme up` runs everything on this machine, its only node: there is nowhere to build the groups first. "
    "End it with Ctrl-C, which lets running answers finish; for a cluster name a --kubeconfig"
)


@contextmanager
def nodes_of(arguments: argparse.Namespace) -> Iterator["Nodes"]:
    """Reach the cluster that is meant.

    Raises:
        Refused: there is none.
    """
    if not means_cluster(arguments) and not is_configured():
        raise Refused(_ONE_NODE)
    from bireme.cli.cluster import reached

    with reached(arguments) as cluster:
        yield Nodes(cluster, arguments.namespace or None)


class Nodes:
    """The nodes of one cluster. ``namespace`` narrows down whose groups are looked at."""

    def __init__(self, cluster: "Cluster", namespace: str | None) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def cordon(self, node: str, *, unschedulable: bool) -> None:
        """Cordon a node, or take it back.

        Raises:
            Refused: there is no such node, or it may not be changed.
        """
        from bireme_operator.kube.client import Manager
        from bireme_operator.kube.resources import NODES

        change = {"spec": {"unschedulable": unschedulable or None}}
        self._cluster.ask(self._cluster.kube.patch(NODES, "", node, change, manager=Manager.COMMAND_LINE))

    def residents(self, node: str) -> Residents:
        """Return whose groups have a pod on the node, those on their way out included."""
        from bireme_operator.kube.resources import PODS
        from bireme_operator.shell.records import record_of

        pods = self._cluster.ask(self._cluster.kube.list(PODS, self._namespace, str(Label.STAGE)))["items"]
        found: Residents = {}
        for record in map(record_of, pods):
            if record is not None and record.view.node == node:
                found.setdefault(record.key, set()).add(record.view.group)
        return found

    def deployments(self) -> dict[tuple[str, str], Content]:
        """Return all deployments by namespace and name."""
        from bireme_operator.kube.resources import DEPLOYMENTS

        found = self._cluster.ask(self._cluster.kube.list(DEPLOYMENTS, self._namespace))["items"]
        return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in found}
