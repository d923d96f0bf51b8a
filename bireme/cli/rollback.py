"""Want the pods and the checkpoint of an earlier revision again: spec.model, parallelism, engine and template as then.

Without --to it is the one that was wanted before the present one. The change is written into the spec, as you would by
hand, and reaches the groups as any change does: reloaded in place when only the checkpoint differs, rolled otherwise.
Policies (replicas, rollout, recovery, placement, router) stay as they are. To apply the old file again undoes it.

Examples:
  bireme rollback demo --list          what there is to return to
  bireme rollback demo
  kubectl bireme rollback demo --to 3

exit codes: 0 every group serves it, 1 it can't, or not in time, 64 there is nothing to return to,
65 its checkpoint can't be served: the present one goes on
"""

import argparse
from collections.abc import Sequence

from bireme.cli import follow, target
from bireme.cli.errors import NOT_RUNNING, Refused
from bireme.cli.target import Content, PastRevision, opened, refuse_paused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme rollback`."""
    target.add_arguments(parser)
    parser.add_argument("--to", type=int, metavar="N", help="number of the revision, as --list shows it")
    parser.add_argument("--list", action="store_true", help="show the revisions and change nothing")
    follow.add_arguments(parser, 3600.0)


def run(arguments: argparse.Namespace) -> int:
    """Choose the revision, ask for it, wait for its end."""
    with opened(arguments) as deployment:
        known = deployment.revisions()
        if arguments.list:
            print("\n".join(map(_line, known)) or "no revision is known yet")
            return 0
        content = deployment.read()
        refuse_paused(content, "nothing would be rolled back")
        chosen = choose(known, arguments.to)
        deployment.roll_back(chosen.number)
        print(f"{deployment.where}: back to {_line(chosen)}", flush=True)
        if arguments.no_wait:
            return 0
        before = int(content["metadata"]["generation"])

        def done(content: Content) -> int | None:
            return follow.settled(content) if follow.is_current(content, before + 1) else None

        return follow.follow(deployment, done, arguments.timeout)


def choose(known: Sequence[PastRevision], number: int | None) -> PastRevision:
    """Return the revision of that number, or the newest one that is not wanted now.

    Raises:
        Refused: there is none.
    """
    others = [one for one in known if not one.wanted]
    if len(others) == len(known):
        raise Refused("what is wanted now is not recorded yet: try again in a moment", NOT_RUNNING)
    if number is not None:
        others = [one for one in others if one.number == number]
    if others:
        return max(others, key=lambda one: one.number)
    if number is not None and any(one.number == number for one in known):
        raise Refused(f"revision {number} is what is wanted now")
    listed = ", ".join(str(one.number) for one in known if not one.wanted) or "none"
    raise Refused(f"there is no such revision to return to; beside the present one there are: {listed}")


def _line(one: PastRevision) -> str:
    source = ", ".join(f"{kind} {where}" for kind, where in one.source.items())
    present = "  (wanted now)" if one.wanted else ""
    return f"revision {one.number}: model revision {one.model_revision} from {source}, pods {one.revision}{present}"
