"""Run a deployment on this machine, without a cluster.

Every stage pod becomes a process on a loopback address of its own, in front of them runs the router. A process that
dies is started again, a stage that is lost is replaced, and streams go on elsewhere meanwhile. Ctrl-C drains: running
answers are finished first; a second Ctrl-C ends everything at once. A terminal that is closed drains as well.

Examples:
  bireme up -f examples/smollm2.yaml --mount /models=~/.cache/bireme
  bireme up -f examples/smollm2.yaml --mount /models=~/.cache/bireme --port 9000
  bireme up -f examples/smollm2.yaml --mount /models=~/.cache/bireme --ask "What is the capital of France?"

exit codes: 0 stopped as asked, 64 the deployment can't work here, 65 its checkpoint can't be loaded, 70 a fault or no
answer to --ask, 130 ended by a second Ctrl-C
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from bireme.api import InferenceDeployment, InvalidDeployment, load
from bireme.cli.ask import accepting, answer
from bireme.cli.checks import check
from bireme.cli.errors import Refused
from bireme.cli.numbers import memory
from bireme.cli.progress import Progress
from bireme.names import Env, Exit
from bireme_operator.local.errors import LocalError
from bireme_operator.local.mounts import read_mounts
from bireme_operator.local.rundir import RunDir
from bireme_operator.local.runner import Runner
from bireme_operator.local.session import Place, session
from bireme_operator.local.wish import SIGNAL, AnyWish, Pause, Restart, Resume, RollBack, take_wishes

FORCED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme up`."""
    add = parser.add_argument
    add("-f", "--file", type=Path, required=True, metavar="FILE", help="the InferenceDeployment, YAML or JSON")
    add(
        "--mount",
        action="append",
        default=[],
        metavar="POD_PATH=HOST_PATH",
        help="where a path of the deployment lies on this machine; may be given several times",
    )
    add("--host", default="127.0.0.1", help="address on which the router listens (%(default)s)")
    add("--port", type=_port, default=None, metavar="N", help="the router's port (default: spec.router.port)")
    add("--shard-cache", type=Path, metavar="DIR", help="keep each rank's part of the weights here for the next start")
    add(
        "--shard-cache-size",
        type=memory,
        metavar="BYTES",
        help="most bytes of --shard-cache, for example 40GiB; what was used longest ago goes first (default: no bound)",
    )
    add("--ask", metavar="QUESTION", help="ask this, print the answer, stop everything")


def run(arguments: argparse.Namespace) -> int:
    """Run until stopped; the exit code is one of ``names.Exit`` or 130."""
    try:
        deployment = load(arguments.file)
        _set_shard_cache(arguments.shard_cache, arguments.shard_cache_size, deployment)
        mounts = read_mounts(arguments.mount)
        check(deployment, mounts)
        if arguments.ask is not None:
            _expect_an_answer(deployment)
        place = Place(arguments.host, arguments.port or deployment.spec.router.port, mounts)
        return asyncio.run(up(deployment, place, arguments.ask))
    except InvalidDeployment as error:
        print(error, file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    except (LocalError, Refused) as error:
        print(f"bireme up: {error}", file=sys.stderr)
        return error.exit_code


def _set_shard_cache(directory: Path | None, size: int | None, deployment: InferenceDeployment) -> None:
    """Stages inherit it."""
    if deployment.spec.engine.shard_cache is not None and (directory is not None or size is not None):
        raise Refused("the deployment has a spec.engine.shardCache: leave --shard-cache and --shard-cache-size out")
    if directory is not None:
        os.environ[Env.SHARD_CACHE] = str(directory.expanduser().absolute())
    if size is not None:
        if Env.SHARD_CACHE not in os.environ:
            raise Refused("--shard-cache-size bounds --shard-cache DIR: give both")
        os.environ[Env.SHARD_CACHE_BYTES] = str(size)


async def up(deployment: InferenceDeployment, place: Place, question: str | None = None) -> int:
    """Run ``deployment`` at ``place`` until it is stopped, or until ``question`` is answered.

    Raises:
        LocalError: it can't begin, or no group can ever start.
        Refused: the question got no answer.
    """
    # With a question, standard output belongs to the answer.
    progress = Progress(Console(stderr=question is not None))
    with progress.showing():
        async with session(deployment, place, progress) as (runner, rundir):
            _log_to(rundir.log("up"))
            _stop_on_signals(runner, progress, deployment)
            _obey_on_signal(runner, progress, rundir)
            progress.say(f"{deployment.name}: state and logs are in {rundir.path}")
            companion = asyncio.create_task(_accompany(deployment, place, runner, progress, question))
            try:
                await runner.run()
            except LocalError:
                progress.say(f"logs are in {rundir.logs}")
                raise
            finally:
                companion.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await companion
    progress.say("everything has stopped")
    return FORCED if runner.forced else 0


async def _accompany(
    deployment: InferenceDeployment, place: Place, runner: Runner, progress: Progress, question: str | None
) -> None:
    await progress.available.wait()
    await accepting(place.host, place.port)
    if question is None:
        progress.show(_greeting(place.endpoint, deployment.model_name))
        if runner.shortage:
            progress.say(runner.shortage)
        return
    progress.hush()
    try:
        async for piece in answer(f"{place.endpoint}/v1", deployment.model_name, question):
            print(piece, end="", flush=True)
        print(flush=True)
    finally:
        runner.stop()


def _expect_an_answer(deployment: InferenceDeployment) -> None:
    if deployment.spec.paused or not deployment.spec.replicas:
        why = "spec.paused is true" if deployment.spec.paused else "spec.replicas is 0"
        raise Refused(f"--ask needs a group that answers, and {why}")


def _stop_on_signals(runner: Runner, progress: Progress, deployment: InferenceDeployment) -> None:
    def stop() -> None:
        limit = deployment.spec.rollout.drain_timeout_seconds
        again = runner.desired.stopping
        runner.stop()
        progress.say(
            "ending everything now"
            if again
            else f"stopping: running answers may take up to {limit} s; Ctrl-C again ends everything now"
        )

    def hang_up() -> None:
        progress.leave_a_lost_terminal()
        if not runner.desired.stopping:  # shell and kernel may both tell that the terminal is gone
            stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(signal.SIGHUP, hang_up)


def _obey_on_signal(runner: Runner, progress: Progress, rundir: RunDir) -> None:
    def obey() -> None:
        for wish in take_wishes(rundir.wishes):
            progress.say(_asked(wish))
            runner.obey(wish)

    asyncio.get_running_loop().add_signal_handler(SIGNAL, obey)


def _asked(wish: AnyWish) -> str:
    match wish:
        case Restart():
            return "restarting: every group is made anew"
        case RollBack():
            return f"rolling back to revision {wish.number} of this run"
        case Pause():
            return "paused: everything is left as it is"
        case Resume():
            return "resumed: it goes on, and what failed is tried again"
    return f"reloading: model revision {wish.revision} from {wish.path}, mode {wish.mode}"


def _log_to(path: Path) -> None:
    """What was done to which process and why: more than a terminal should show, and the first thing to read later."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _greeting(endpoint: str, model: str) -> str:
    return f"""
{model} is served at {endpoint}/v1

  curl {endpoint}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "{model}", "stream": true, "temperature": 0,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  {sys.executable} -c '
from openai import OpenAI
client = OpenAI(base_url="{endpoint}/v1", api_key="none")
messages = [{{"role": "user", "content": "What is the capital of France?"}}]
answer = client.chat.completions.create(model="{model}", messages=messages, temperature=0)
print(answer.choices[0].message.content)'

`bireme status` in another terminal shows the groups; Ctrl-C drains and stops.
"""


def _port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is no port, write one from 1 to 65535")
    return port
