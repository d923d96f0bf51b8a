"""Record where the time of every rank goes while the group serves: shares, a picture, and traces to look into.

The requests are not touched, but steps take a little longer while they are recorded, so send the load that you want to
know about from elsewhere meanwhile. Every rank first records one step for nothing, then all record the same moments:
--steps steps, or what happens in --seconds, at most what a trace may hold (the text says when that was it).

What you get in DIR:
  summary.txt                 the text that is printed
  summary.json                the same and more, for programs
  shares.svg                  each rank's shares, and the first steps of all ranks side by side
  stage-S-rank-R.json.gz      the traces, for https://ui.perfetto.dev or chrome://tracing

Each moment of a rank is one of: compute; sampling; exchange (sums over ranks, sending); waits stage and waits plan (the
pipeline's bubble); gaps (the device idles while its host prepares). On a CPU the computing thread is the device.

Examples:
  bireme profile                              2 seconds of the only deployment that is up here
  bireme profile smollm2 --steps 20 --output trace/
  bireme profile smollm2 --group 1            group 1 of it, not the first that serves
  bireme profile --worker http://127.0.0.1:8001 --token-file token
                                              any worker, by the admin port of its leader (stage 0)

A cluster's worker is reached by a port forward; docs/profiling.md has the three commands. For Nsight Systems set
BIREME_NVTX=1 in the pod template: the parts of a step are NVTX ranges then.

exit codes: 0 done, 1 the group refused (its reason is printed) or nobody answered, 64 it can't be asked for
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bireme.cli.errors import NOT_RUNNING, Refused
from bireme.cli.numbers import positive
from bireme.cli.profile_picture import picture
from bireme.cli.profile_text import told
from bireme.names import Header
from bireme.wire.errors import Garbled
from bireme.wire.profile import MOST_SECONDS, MOST_STEPS, ProfileReport, ProfileRequest, read_report
from bireme.wire.routes import read_routes

_SECONDS: Final = ProfileRequest().seconds
_ANSWER_S: Final = 240.0


@dataclass(frozen=True)
class Worker:
    """The admin port of a leader."""

    admin: str
    token: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme profile`."""
    add = parser.add_argument
    add("name", nargs="?", help="a deployment of this machine; may be left out when there is only one")
    add("--group", type=int, metavar="N", help="index of the group (default: the first that serves)")
    add("--seconds", type=float, metavar="S", help=f"record so long, at most {MOST_SECONDS:g} (default: {_SECONDS:g})")
    add("--steps", type=positive, metavar="N", help=f"record so many steps, at most {MOST_STEPS}")
    add("--output", type=Path, metavar="DIR", help="where the files go (default: bireme-profile-ID)")
    add("--worker", metavar="URL", help="admin port of a leader, instead of a deployment")
    add("--token-file", type=Path, metavar="FILE", help="the group token, hex, for --worker")


def run(arguments: argparse.Namespace) -> int:
    """Profile one group, print the text, leave the files."""
    seconds = arguments.seconds or (MOST_SECONDS if arguments.steps else _SECONDS)
    asked = ProfileRequest(arguments.steps or 0, seconds)
    return asyncio.run(_profile(_worker(arguments), asked, arguments.output))


def _worker(arguments: argparse.Namespace) -> Worker:
    if arguments.worker:
        if arguments.token_file is None or arguments.name:
            raise Refused("--worker needs --token-file, and no name")
        return Worker(arguments.worker.rstrip("/"), _token(arguments.token_file))
    from bireme.cli.local import find

    rundir = find(arguments.name, "; a cluster's worker is asked by --worker and a port forward, see --help")
    try:
        routes = read_routes(rundir.routes.read_bytes()).groups
    except (OSError, Garbled):
        routes = ()
    wanted = [route for route in routes if arguments.group in (None, route.index)]
    if not wanted:
        what = "no group" if arguments.group is None else f"no group {arguments.group}"
        raise Refused(f"{what} of {rundir.path.name} serves now: `bireme status` says why", NOT_RUNNING)
    first = min(wanted, key=lambda route: route.index)
    return Worker(first.admin, _token(Path(first.token_file)))


def _token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise Refused(f"the token can't be read: {error}") from None


async def _profile(worker: Worker, asked: ProfileRequest, folder: Path | None) -> int:
    headers = {Header.TOKEN.value: f"Bearer {worker.token}"}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with aiohttp.ClientSession(worker.admin, headers=headers, timeout=timeout) as session:
            async with session.post("/profile", data=msgspec.json.encode(asked)) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise Refused(_said(content), NOT_RUNNING)
            report = read_report(content)
            target = folder or Path(f"bireme-profile-{report.id}")
            target.mkdir(parents=True, exist_ok=True)
            missing = await _fetch(session, report, target)
    except (aiohttp.ClientError, TimeoutError, Garbled, ValueError) as error:
        raise Refused(f"{worker.admin} does not answer as a worker does: {error!r}", NOT_RUNNING) from None
    except OSError as error:
        raise Refused(f"the files can't be written: {error}") from None
    _write(report, content, target)
    print(f"\nWritten to {target}/: summary.txt, summary.json, shares.svg, {len(report.ranks) - missing} traces")
    return NOT_RUNNING if missing else 0


async def _fetch(session: aiohttp.ClientSession, report: ProfileReport, target: Path) -> int:
    """Fetch all traces; returns how many can't be had."""
    missing = 0
    for one in report.ranks:
        place = {"id": report.id, "stage": str(one.stage), "rank": str(one.rank)}
        async with session.get("/profile/trace", params=place) as answer:
            content = await answer.read()
            if answer.status == 200:
                (target / f"stage-{one.stage}-rank-{one.rank}.json.gz").write_bytes(content)
            else:
                missing += 1
                print(f"no trace of stage {one.stage} rank {one.rank}: {_said(content)}", file=sys.stderr)
    return missing


def _write(report: ProfileReport, content: bytes, target: Path) -> None:
    text = told(report)
    (target / "summary.txt").write_text(text + "\n")
    (target / "summary.json").write_bytes(msgspec.json.format(content, indent=1))
    (target / "shares.svg").write_text(picture(report))
    print(text)


def _said(content: bytes) -> str:
    """The reason in a refusal."""
    try:
        return str(msgspec.json.decode(content)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return content.decode(errors="replace") or "no answer"
