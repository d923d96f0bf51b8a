"""A rank without a model: speaks the control channel as a real one does, so that supervisors can be killed and watched in
milliseconds. Started by a real supervisor with `--rank-module tests.support.scripted_rank`.

The checkpoint's source says how loading goes: `refused-65` fails for good, `crash` exits with 1. A file `stuck-R` in the
state directory makes rank R busy without progress, a file `slow-R` keeps it loading for as long as it is there, a file
`records-R` keeps it recording when it is profiled, and is removed when that has begun.
"""

import argparse
import os
import socket
import sys
import threading
import time
from pathlib import Path

from bireme.process import die_with_parent
from bireme.wire.control import (
    Beat,
    Become,
    ControlMessage,
    End,
    Ended,
    Failed,
    Form,
    Formed,
    Load,
    Loaded,
    Profile,
    Profiled,
    RankBeat,
    Stop,
    control_codec,
)
from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme.wire.plan import Attach, plan_codec
from bireme.wire.profile import RankProfile
from bireme_worker.identity import Identity, read_identity
from bireme_worker.profiling.files import packed_file

BEAT_S = 0.1


class ScriptedRank:
    def __init__(self, identity: Identity, rank: int, channel: SocketChannel[ControlMessage]) -> None:
        self.identity, self.rank, self.channel = identity, rank, channel
        self.phase, self.epoch = "Loading", 0
        self.plan: SocketChannel | None = None
        self.lock = threading.Lock()

    def say(self, message: ControlMessage) -> None:
        with self.lock:
            self.channel.send(message)

    def beat(self) -> None:
        stuck = self.identity.state_dir / f"stuck-{self.rank}"
        while True:
            busy = stuck.exists() and self.phase == "Serving"
            try:
                self.say(Beat((RankBeat(self.rank, True, self.phase, self.epoch, 1, 1, busy),)))
            except WireError:
                os._exit(0)
            time.sleep(BEAT_S)

    def run(self) -> int:
        while True:
            match self.channel.receive():
                case Load(checkpoint):
                    if code := self.load(checkpoint.source):
                        return code
                    self.phase = "Idle"
                    self.say(Loaded(checkpoint, 100, self.rank))
                case Form(epoch, _, plan):
                    self.epoch, self.phase = epoch, "Serving"
                    self.attach(plan.host, plan.port)
                    self.say(Formed(epoch, self.rank))
                case End(epoch):
                    self.epoch, self.phase = 0, "Idle"
                    if self.plan is not None:
                        self.plan.close()
                    self.say(Ended(epoch, self.rank))
                case Profile(name, _, phase) if phase != "Stop":
                    self.profile(name, record=phase == "Record")
                case Stop():
                    return 0

    def profile(self, name: str, *, record: bool) -> None:
        goes_on = self.identity.state_dir / f"records-{self.rank}"
        if not record:
            self.say(Profiled(name, self.rank))
        elif goes_on.exists():
            goes_on.unlink()
        else:
            packed = packed_file(self.identity.state_dir, name, (self.identity.stage, self.rank))
            packed.parent.mkdir(exist_ok=True)
            packed.write_bytes(b"trace of %d" % self.rank)
            report = RankProfile(
                self.identity.stage, self.rank, "cpu", 2, 4, 2, 1.0, 0.5, {}, {}, (), "cg", 0.1, 10, False, 10
            )
            self.say(Profiled(name, self.rank, report=report))

    def load(self, source: str) -> int:
        slow = self.identity.state_dir / f"slow-{self.rank}"
        while slow.exists():
            time.sleep(0.01)
        name = Path(source).name
        if name.startswith("refused-"):
            code = int(name.removeprefix("refused-"))
            reason = "BadCheckpoint" if code == 65 else "BadConfiguration"
            self.say(Failed(reason, f"{source} is 5 bytes: copy it again", code, self.rank))
            return code
        return 1 if name == "crash" else 0

    def attach(self, host: str, port: int) -> None:
        sock = socket.create_connection((host, port))
        self.plan = SocketChannel(sock, plan_codec)
        self.plan.dial(self.identity.token)
        self.plan.send(Attach(self.epoch, self.identity.stage, self.rank))


def place(channel: SocketChannel[ControlMessage]) -> int:
    """A spare is told its rank first."""
    message = channel.receive()
    assert isinstance(message, Become)
    return message.rank


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--control-fd", type=int)
    options = parser.parse_args()
    identity = read_identity()
    channel = SocketChannel(socket.socket(fileno=options.control_fd), control_codec)
    try:
        rank = ScriptedRank(identity, options.rank if options.rank is not None else place(channel), channel)
        threading.Thread(target=rank.beat, daemon=True).start()
        return rank.run()
    except WireError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
