"""Empty a node: cordon it, then wait until every group has left it, without a failed request.

The operator reads the cordon as the wish to leave: each group is built elsewhere first, then drained and deleted, one
at a time. Where there is no room for a successor its group stays, and the wait goes on. Ctrl-C or --timeout only stop
the waiting: the node stays cordoned and goes on emptying; `bireme undrain-node` takes the wish back.

Only Bireme's stages are waited for; `kubectl drain` then moves the rest. On this machine there is one node only, which
nothing can leave.

Examples:
  bireme drain-node gpu-7
  kubectl bireme drain-node gpu-7 --timeout 600

exit codes: 0 no group is left on it, 1 some are, 64 a group would never leave it
"""

import argparse
import time
from collections.abc import Mapping
from typing import Final

from bireme.cli import target
from bireme.cli.errors import NOT_RUNNING, Refused, Unreachable
from bireme.cli.follow import line_of, show
from bireme.cli.nodes import Nodes, Residents, nodes_of
from bireme.cli.target import Content, conditions, groups
from bireme.names import ConditionType, GroupState

_POLL_S: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme drain-node`."""
    parser.add_argument("node", help="name of the node, as `kubectl get nodes` shows it")
    target.add_arguments(parser, name=False)
    parser.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS", help="how long to wait for the end (%(default)g)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Cordon the node and wait until it is empty."""
    with nodes_of(arguments) as nodes:
        name: str = arguments.node
        check_leaving(name, nodes.residents(name), nodes.deployments())
        nodes.cordon(name, unschedulable=True)
        print(f"{name} is cordoned", flush=True)
        return _wait(nodes, name, arguments.timeout)


def check_leaving(node: str, residents: Residents, deployments: Mapping[tuple[str, str], Content]) -> None:
    """Return when every group on the node will leave it.

    Raises:
        Refused: one will not; the message says what to change.
    """
    for key in residents:
        spec = deployments[key]["spec"] if key in deployments else {}
        where = "/".join(key)
        if spec.get("paused"):
            raise Refused(f"{where} has groups on {node} and spec.paused is true: set it to false first")
        if (spec.get("disruption") or {}).get("onCordon") == "Ignore":
            raise Refused(
                f"{where} keeps its groups on cordoned nodes (spec.disruption.onCordon: Ignore): set it to Move first"
            )


def _wait(nodes: Nodes, name: str, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    shown: dict[str, str] = {}
    while True:
        try:
            residents = nodes.residents(name)
            if not residents:
                print(f"no group is left on {name}; it stays cordoned until `bireme undrain-node {name}`")
                return 0
            deployments = nodes.deployments()
        except Unreachable as error:
            show(shown, "", str(error))
        else:
            for key, text in lines(residents, deployments):
                show(shown, key, text)
        if time.monotonic() >= deadline:
            raise Refused(
                f"{name} is not empty after --timeout; it goes on. An operator of single namespaces watches no nodes "
                "(--all-namespaces does), and without room elsewhere nothing leaves",
                NOT_RUNNING,
            )
        time.sleep(_POLL_S)


def lines(residents: Residents, deployments: Mapping[tuple[str, str], Content]) -> list[tuple[str, str]]:
    """Return what is waited for, a line for each group on the node and for each one that is on its way elsewhere."""
    found = []
    for key, here in residents.items():
        where, content = "/".join(key), deployments.get(key, {})
        for group in groups(content):
            index = group["index"]
            if index in here or group["state"] != GroupState.SERVING:
                place = "on the node" if index in here else "elsewhere"
                found.append((f"{where} {index}", f"{where}  {line_of(group)}  [{place}]"))
        scheduled = conditions(content).get(ConditionType.SCHEDULED, {})
        if scheduled.get("status") == "False":
            found.append((f"{where} scheduled", f"{where}  {scheduled['reason']}: {scheduled['message']}"))
    return found
