"""Serve another checkpoint of the same model without a restart and without a failed request.

The groups change one after the other. Each reads and verifies the new weights beside the served ones first; if anything
is wrong with them the old ones go on serving, and the reason is told. Running requests end under the old weights (mode
finish, for at most a minute), or are computed anew under the new ones at once (mode restart). Ctrl-C only stops the
waiting: the reload goes on.

Examples:
  bireme reload smollm2 --path /models/smollm2-tuned --revision 2026-12-01
  bireme reload smollm2 --path /models/smollm2-tuned --revision 2026-12-01 --mode restart
  kubectl bireme reload demo --path tuned --revision 2        inside the claim that the spec names

exit codes: 0 every group serves it, 1 nobody does it or it took too long, 64 it can't be asked for,
65 the checkpoint can't be served: the old one goes on
"""

import argparse

from bireme.cli import follow, target
from bireme.cli.errors import Refused
from bireme.cli.target import Content, conditions, groups, opened, refuse_paused
from bireme.names import ConditionType, Exit, GroupState, Reason


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme reload`."""
    target.add_arguments(parser)
    add = parser.add_argument
    add("--path", required=True, help="the new checkpoint, as spec.model.source would name it")
    add("--revision", required=True, help="its name; responses carry it")
    add("--mode", choices=("finish", "restart"), default="finish", help="running requests (%(default)s)")
    follow.add_arguments(parser, 600.0)


def run(arguments: argparse.Namespace) -> int:
    """Ask for the reload and wait for its end."""
    with opened(arguments) as deployment:
        content = deployment.read()
        refuse_paused(content, "nothing would be reloaded")
        deployment.check_alive()
        deployment.reload(arguments.path, arguments.revision, arguments.mode)
        if arguments.no_wait:
            return 0
        before = int(content["metadata"]["generation"])

        def done(content: Content) -> int | None:
            if not follow.is_current(content, before + 1):
                return None
            stalled = conditions(content).get(ConditionType.STALLED, {})
            if stalled.get("reason") == Reason.NAME_TAKEN:
                raise Refused(stalled["message"])
            if any(group["reason"] == Reason.RELOAD_FAILED for group in groups(content)):
                return Exit.BAD_CHECKPOINT
            return 0 if groups(content) and all(_done(one, arguments.revision) for one in groups(content)) else None

        return follow.follow(deployment, done, arguments.timeout)


def _done(group: Content, revision: str) -> bool:
    return (group.get("modelRevision"), group["state"]) == (revision, GroupState.SERVING)
