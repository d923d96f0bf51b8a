"""`python -m bireme_worker.supervisor.main` (or `bireme-worker`): PID 1 of a stage pod.

The environment says which pod this is (design, section 6.5). Exit codes are those of ``names.Exit``; the reason is one
line on stderr and the file `termination` in the state directory. SIGTERM and SIGINT drain; a second one hands over now.
"""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import uvloop

from bireme.names import Env, Exit, Reason
from bireme.process import die_with_parent
from bireme_worker.identity import BadIdentity, Identity, read_identity
from bireme_worker.supervisor.leadership import Commands
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.standby import stand_by
from bireme_worker.supervisor.state_file import Termination, leave_word
from bireme_worker.supervisor.supervisor import Supervisor


def main() -> NoReturn:
    """Run the supervisor of this pod and exit with its code."""
    die_with_parent()
    options = _parse(sys.argv[1:])
    try:
        if os.environ.get(Env.STANDBY) == "1":
            _stand_by()
        identity = read_identity(os.environ)
        _log_to_stderr(identity)
        termination = uvloop.run(_supervise(identity, options))
    except BadIdentity as error:
        termination = Termination(Exit.BAD_CONFIGURATION, Reason.BAD_CONFIGURATION, str(error))
    except Exception as error:
        logging.getLogger(__name__).exception("internal error")
        termination = Termination(Exit.INTERNAL, Reason.NONE, f"internal error: {error!r}")
    _leave(termination)


def _stand_by() -> None:
    """Return when this pod is a stage like any other, or leave when it is told to end before."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s standby: %(message)s")
    role = uvloop.run(stand_by(os.environ))
    if role is None:
        _leave(Termination(Exit.DRAINED, Reason.SHUTTING_DOWN, "stopped as asked; it was nobody's stage"))
    os.environ.update(role)


async def _supervise(identity: Identity, options: argparse.Namespace) -> Termination:
    modules = (options.rank_module, options.coordinator_module, options.http_module)
    commands = Commands(*((sys.executable, "-m", module) for module in modules))
    return await Supervisor(identity, _limits(options.limit), commands).run()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bireme-worker", description=__doc__)
    # For tests: other programs in the children's place, other limits.
    parser.add_argument("--rank-module", default="bireme_worker.rank.main", help=argparse.SUPPRESS)
    parser.add_argument("--coordinator-module", default="bireme_worker.coordinator.main", help=argparse.SUPPRESS)
    parser.add_argument("--http-module", default="bireme_worker.http.main", help=argparse.SUPPRESS)
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=SECONDS", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _limits(settings: Sequence[str]) -> Limits:
    return msgspec.convert(dict(setting.split("=", 1) for setting in settings), Limits, strict=False)


def _log_to_stderr(identity: Identity) -> None:
    place = f"group={identity.group} stage={identity.stage} incarnation={identity.incarnation}"
    form = f"%(asctime)s %(levelname)s {place} supervisor: %(message)s"
    logging.basicConfig(force=True, stream=sys.stderr, level=logging.INFO, format=form)


def _leave(termination: Termination) -> NoReturn:
    leave_word(Path(os.environ.get(Env.STATE_DIR, "")), termination)
    if termination.exit_code:
        with contextlib.suppress(OSError):  # a full disk; the code must be right all the same
            print(f"bireme-worker: {termination.reason}: {termination.message}", file=sys.stderr, flush=True)
    sys.exit(termination.exit_code)


if __name__ == "__main__":
    main()
