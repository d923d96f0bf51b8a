"""One epoch on one rank: connect, warm up, compute plans until the gate closes.

Plans are read by a thread of their own, so that the next one is at hand when a step ends. On a GPU another one waits
for the steps' results, so that the next step is launched meanwhile. Whatever ends the epoch (a lost peer, a lost
coordinator, the supervisor's word) closes the gate, which frees all threads.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from bireme.wire.control import Form
from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme.wire.plan import Attach, Commit, Plan, PlanKinds, plan_codec
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.errors import PeerLost
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.mesh import Mesh, Place, dial
from bireme_worker.profiling.marks import mark
from bireme_worker.profiling.parts import Part
from bireme_worker.profiling.recorder import Recorder
from bireme_worker.rank.errors import BadPlan
from bireme_worker.rank.runner import Handle, Runner
from bireme_worker.rank.under_way import AtOnce, UnderWay

Plans = SimpleQueue[PlanKinds | None]

FORM_LIMIT_S: Final = 10.0
"""Seconds for all connections of an epoch. A supervisor with less patience says End."""


class Serving:
    """Serves epochs with ``runner``, one at a time."""

    def __init__(
        self,
        place: Place,
        mesh: Mesh,
        token: bytes,
        runner: Runner,
        progress: Progress,
        *,
        commit: Callable[[int], None],
        recorder: Recorder,
    ) -> None:
        """``commit`` puts the staged weights of a generation in the place of the served ones."""
        self._commit = commit
        self._recorder = recorder
        self._place = place
        self._mesh = mesh
        self._token = token
        self._runner = runner
        self._progress = progress

    def run(self, form: Form, gate: EpochGate, formed: Callable[[], None]) -> None:
        """Form the epoch, call ``formed``, serve it; always ends by raising.

        Raises:
            EpochEnded: the epoch is over (PeerLost, FrameMismatch: for a reason found here).
        """
        try:
            communicator = self._mesh.connect(gate, form.data, FORM_LIMIT_S)
            channel = self._attach(form, gate)
            self._runner.begin(communicator)
            self._runner.warm_up(form.epoch)
            formed()
            self._progress.phase = "Serving"
            self._serve(gate, channel)
        finally:
            self._runner.end()
            gate.close()

    def _attach(self, form: Form, gate: EpochGate) -> SocketChannel[PlanKinds]:
        sock = dial(form.plan, gate, time.monotonic() + FORM_LIMIT_S, "the coordinator")
        channel = SocketChannel(sock, plan_codec)
        try:
            channel.dial(self._token)
            channel.send(Attach(form.epoch, self._place.stage, self._place.rank))
        except WireError as error:
            gate.check()
            raise PeerLost(f"the coordinator refused the connection: {error}") from error
        sock.settimeout(None)
        return channel

    def _serve(self, gate: EpochGate, channel: SocketChannel[PlanKinds]) -> None:
        plans: Plans = SimpleQueue()
        gate.on_abort(lambda: plans.put(None))
        reader = threading.Thread(target=_read_plans, args=(channel, gate, plans), name="plans", daemon=True)
        reader.start()
        runner = self._runner
        self._recorder.enter(gate.epoch, runner.device, runner.remark, wake=lambda: plans.put(None))
        try:
            self._compute(gate, channel, plans)
        finally:
            self._recorder.leave()
            gate.abort("this rank left it")
            reader.join()  # the socket may be closed only when nobody reads it

    def _compute(self, gate: EpochGate, channel: SocketChannel[PlanKinds], plans: Plans) -> None:
        def finish(handle: Handle) -> None:
            self._finish(handle, channel, gate)

        # On the CPU a launched step is a finished one, so a second thread would only delay its result.
        is_ahead = self._runner.device.type != "cpu"
        with UnderWay(finish, gate, self._progress) if is_ahead else AtOnce(finish, self._progress) as steps:
            while True:
                with mark(Part.WAIT):
                    plan = plans.get()
                gate.check()
                if plan is None or isinstance(plan, Plan):
                    self._recorder.turn(plan)
                if plan is None:
                    continue
                if isinstance(plan, Commit):
                    self._commit(plan.generation)
                    continue
                if not isinstance(plan, Plan):
                    raise BadPlan(f"the coordinator sent {type(plan).__name__}, which this rank does not know")
                steps.begin()
                steps.finish(self._runner.launch(plan), more=not plans.empty())

    def _finish(self, handle: Handle, channel: SocketChannel[PlanKinds], gate: EpochGate) -> None:
        result = self._runner.collect(handle)
        self._progress.step = handle.plan.step
        if self._place.is_last and self._place.rank == 0:
            try:
                channel.send(result)
            except WireError as error:
                gate.check()
                raise PeerLost(f"lost the coordinator: {error}") from error


def _read_plans(channel: SocketChannel[PlanKinds], gate: EpochGate, plans: Plans) -> None:
    reason = "plans can't be read any more"
    try:
        while True:
            message = channel.receive()
            if message.epoch == gate.epoch:
                plans.put(message)
    except WireError as error:
        reason = f"lost the coordinator: {error}"
    finally:  # whatever it was: a rank that hears of no more plans looks idle, and idle is healthy for days
        gate.abort(reason)
