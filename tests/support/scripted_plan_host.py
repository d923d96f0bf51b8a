"""A coordinator without a scheduler: lets ranks attach, begins epochs, and has as many requests running as the file
`running` in the state directory says. A drain with deadline 0 hands them over."""

import argparse
import asyncio
import contextlib
import socket
from pathlib import Path

import msgspec

from bireme.process import die_with_parent
from bireme.wire.errors import WireError
from bireme.wire.frames import Channel
from bireme.wire.plan import plan_codec
from bireme_worker.coordinator.messages import (
    Begin,
    Begun,
    Drain,
    Finish,
    PlanLost,
    Status,
    Undrain,
    coordinator_codec,
)
from bireme_worker.identity import Identity, read_identity

STATUS_S = 0.05


class ScriptedCoordinator:
    def __init__(self, identity: Identity, channel: Channel) -> None:
        self.identity, self.channel = identity, channel
        self.epoch, self.draining, self.handed_over = 0, False, False
        self.attached: set[tuple[int, int]] = set()

    async def serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plan: Channel = Channel(reader, writer, plan_codec)
        with contextlib.suppress(WireError):
            await plan.accept(self.identity.token)
            attach = await plan.receive()
            self.attached.add((attach.stage, attach.rank))
            if len(self.attached) == self.identity.stages * self.identity.tensor:
                self.channel.send(Begun(attach.epoch))
            try:
                await plan.receive()
            except WireError:
                self.channel.send(PlanLost(attach.epoch, attach.stage, attach.rank))
        writer.close()

    async def report(self) -> None:
        while True:
            running = 0 if self.handed_over else self.running()
            status = Status(self.epoch, running, 0, 0, 0, 100, 1, 0.0, self.draining, 3, 0, 4, {"stop": 1})
            self.channel.send(msgspec.structs.replace(status, clients=self.identity.http_processes))
            await asyncio.sleep(STATUS_S)

    def running(self) -> int:
        path = Path(self.identity.state_dir) / "running"
        return int(path.read_text() or 0) if path.exists() else 0

    async def obey(self) -> None:
        while True:
            match await self.channel.receive():
                case Begin(epoch):
                    self.epoch, self.attached = epoch, set()
                case Finish():
                    self.epoch = 0
                case Drain(deadline_s):
                    self.draining, self.handed_over = True, deadline_s == 0
                case Undrain():
                    self.draining = self.handed_over = False


async def run(identity: Identity, fd: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=fd))
    coordinator = ScriptedCoordinator(identity, Channel(reader, writer, coordinator_codec))
    address = identity.plan_address
    server = await asyncio.start_server(coordinator.serve_rank, address.host, address.port)
    reporting = asyncio.ensure_future(coordinator.report())
    with contextlib.suppress(WireError):
        await coordinator.obey()
    reporting.cancel()
    server.close()


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int)
    asyncio.run(run(read_identity(), parser.parse_args().control_fd))


if __name__ == "__main__":
    main()
