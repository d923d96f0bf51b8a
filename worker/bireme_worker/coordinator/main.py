"""`python -m bireme_worker.coordinator.main --control-fd N`: the one scheduler of a group, on stage 0.

The supervisor starts it with one end of a socket pair. It listens for ranks on the plan port and for HTTP processes on
a Unix socket, and ends with the supervisor. Exit codes are those of ``names.Exit``.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import uvloop

from bireme.names import Exit
from bireme.process import die_with_parent
from bireme.wire.errors import ConnectionLost
from bireme.wire.frames import Channel
from bireme.wire.plan import MAX_SLOTS
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.checkpoints.layout import load_model_config
from bireme_worker.coordinator.core import Core
from bireme_worker.coordinator.messages import (
    Begin,
    CoordinatorKinds,
    Finish,
    Reload,
    Serve,
    Unfit,
    coordinator_codec,
)
from bireme_worker.coordinator.plan_port import PlanPort
from bireme_worker.coordinator.request_port import RequestPort, UnusablePath
from bireme_worker.coordinator.standing import Weights
from bireme_worker.engine.admission import Capacity
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.identity import BadIdentity, Identity, read_identity
from bireme_worker.text.identity import text_identity
from bireme_worker.text.tokenizer import TextModel

TICK_S = 0.25


def main() -> NoReturn:
    """Serve until the supervisor closes its end."""
    die_with_parent()
    options = _parse(sys.argv[1:])
    try:
        identity = read_identity(os.environ)
        _log_to_stderr(identity)
        model = load_model_config(Path(identity.checkpoint.source))
        uvloop.run(_coordinate(identity, model, socket.socket(fileno=options.control_fd)))
    except (BadIdentity, UnusablePath) as error:
        _leave(Exit.BAD_CONFIGURATION, str(error))
    except CheckpointError as error:
        _leave(Exit.BAD_CHECKPOINT, str(error))
    sys.exit(0)


async def _coordinate(identity: Identity, model: ModelConfig, control: socket.socket) -> None:
    supervisor: Channel[CoordinatorKinds] = Channel(*await asyncio.open_connection(sock=control), coordinator_codec)
    ranks = PlanPort(identity.token, identity.stages, identity.tensor)
    core = _core(identity, model, ranks, supervisor)
    servers = [
        await _bind_plan_port(identity, ranks, core),
        await RequestPort(identity.token, core).listen(identity.requests_socket),
    ]
    ticking, checking = asyncio.create_task(_tick(core)), set[asyncio.Task[None]]()
    with contextlib.suppress(ConnectionLost):
        while True:
            await _obey(core, await supervisor.receive(), supervisor, checking)
    ticking.cancel()
    for server in servers:
        server.close()


def _core(identity: Identity, model: ModelConfig, ranks: PlanPort, supervisor: Channel[CoordinatorKinds]) -> Core:
    context = model.max_position_embeddings
    if model.is_encoder:  # a text is computed in one step
        context = min(context, identity.max_batched_tokens)
    slots = min(identity.max_running_requests, identity.max_batched_tokens, MAX_SLOTS - 1)
    config = SchedulerConfig(
        slots=slots,
        budget=identity.max_batched_tokens,
        stages=identity.stages,
        depth=plans_in_flight(identity),
        prefix_caching=identity.prefix_caching and not model.is_encoder,
        speculation=identity.speculation,
        adapters=tuple(name for name, _ in identity.adapters),
        encodes=model.is_encoder,
    )
    return Core(
        scheduler=Scheduler(config),
        capacity=Capacity(
            context=min(context, identity.max_model_length or context),
            vocabulary=model.vocab_size,
            running=slots,
            queue=identity.max_queued_requests,
            adapters=config.adapters,
            encodes=model.is_encoder,
        ),
        weights=Weights(identity.checkpoint.model_revision),
        ranks=ranks,
        tell=supervisor.send,
        clock=time.monotonic,
        soon=asyncio.get_running_loop().call_soon,
    )


def plans_in_flight(identity: Identity) -> int:
    """A GPU's step is shorter than a result's way here and the next plan's way back: two plans a stage, and one more.

    A CPU's takes many times longer: there a plan ahead would only keep newcomers waiting.
    """
    has_gpu = identity.device == "cuda" or identity.device.startswith("cuda:") or any(Path("/dev").glob("nvidia[0-9]*"))
    return 2 * identity.stages + 1 if has_gpu and identity.device != "cpu" else max(identity.stages, 2)


async def _obey(
    core: Core, message: CoordinatorKinds, supervisor: Channel[CoordinatorKinds], checking: set[asyncio.Task[None]]
) -> None:
    if isinstance(message, Begin | Serve | Finish):  # the reload that is still being looked at is over
        for task in checking:
            task.cancel()
    match message:
        case Begin():
            core.obey(message, await asyncio.to_thread(_text_of, message.source, core.text))
        case Reload() if message.source in {"", core.text[0]}:
            core.obey(message, core.text[1])
        case Reload():  # other orders must not wait for the look at the new text side
            task = asyncio.create_task(_check(core, message, supervisor))
            checking.add(task)
            task.add_done_callback(checking.discard)
        case _:
            core.obey(message)


async def _check(core: Core, reload: Reload, supervisor: Channel[CoordinatorKinds]) -> None:
    """Start the reload once it is known that text can be had under the new checkpoint too."""
    try:
        text = await asyncio.to_thread(_text_of, reload.source, core.text)
    except CheckpointError as error:
        supervisor.send(Unfit(reload.generation, str(error)))
    else:
        core.obey(reload, text)


def _text_of(source: str, known: tuple[str, str]) -> str:
    """The name of a checkpoint's text side; one that is not ``known`` is read whole, as HTTP processes will."""
    if source in ("", known[0]):
        return known[1]
    name = text_identity(Path(source))
    if known[1] not in ("", name):
        TextModel.load(Path(source))
    return name


async def _bind_plan_port(identity: Identity, ranks: PlanPort, core: Core) -> asyncio.Server:
    address = identity.plan_address
    try:
        return await ranks.listen(address, core)
    except OSError as error:
        raise BadIdentity(f"the plan port {address.host}:{address.port} can't be had: {error}") from error


async def _tick(core: Core) -> None:
    while True:
        core.tick()
        await asyncio.sleep(TICK_S)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True, help="one end of the supervisor's socket pair")
    return parser.parse_args(arguments)


def _log_to_stderr(identity: Identity) -> None:
    place = f"group={identity.group} incarnation={identity.incarnation}"
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s %(levelname)s {place} coordinator: %(message)s"
    )


def _leave(code: Exit, message: str) -> NoReturn:
    print(f"coordinator: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
