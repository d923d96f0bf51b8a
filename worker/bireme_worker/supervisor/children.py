"""The leader's other processes: one coordinator, some HTTP processes; both are started again when they end.

The loss of the coordinator ends the epoch (with it went the plan stream). The loss of an HTTP process costs its
connections only, but the stage is not ready until it accepts again.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence

from bireme.child import Child
from bireme.wire.control import Address
from bireme.wire.errors import ConnectionLost, WireError
from bireme_worker.coordinator.messages import CoordinatorKinds, coordinator_codec
from bireme_worker.supervisor.child import TalkingChild, exit_text, start_talking
from bireme_worker.supervisor.events import CoordinatorDown, CoordinatorSaid, CoordinatorUp, Event, FrontChanged
from bireme_worker.supervisor.restarts import Restarts
from bireme_worker.supervisor.watch import Watch

log = logging.getLogger(__name__)

Tell = Callable[[Event], None]
Environment = Callable[[], Mapping[str, str]]
"""What a child started now must know that the pod's own environment may not: a reload changes the checkpoint."""
_PROBE_S = 0.05


class CoordinatorKeeper:
    """Keeps the coordinator running; it counts as up from its first word, and must speak at least each 5 s."""

    def __init__(self, command: Sequence[str], environment: Environment, watch: Watch, tell: Tell) -> None:
        self._command = list(command)
        self._environment = environment
        self._watch = watch
        self._tell = tell
        self._restarts = Restarts("the coordinator", watch)
        self._running: TalkingChild[CoordinatorKinds] | None = None
        self._heard: float | None = None
        self._stopping = False

    def send(self, message: CoordinatorKinds) -> None:
        """Send; while the coordinator is down nobody hears it."""
        if self._running is not None:
            self._running.channel.send(message)

    async def run(self) -> None:
        """Keep it running until ``stop``."""
        while not self._stopping:
            running = self._running = await start_talking(self._command, coordinator_codec, self._environment())
            started = self._watch.now()
            log.info(f"the coordinator runs as process {running.child.pid}")
            code = await self._accompany(running)
            self._running = self._heard = None
            if not self._stopping:
                last_line, proved = running.child.last_line, self._watch.now() - started >= self._watch.limits.stable_s
                text = f"the coordinator {exit_text(code, last_line)}"
                log.warning(text)
                self._tell(CoordinatorDown(text))
                await asyncio.sleep(self._restarts.ended(code, last_line, proved))

    def tick(self) -> None:
        """Kill a coordinator that fell silent."""
        silence = self._watch.now() - self._heard if self._heard is not None else 0.0
        if self._running is not None and silence > self._watch.limits.silent_kill_s:
            log.error(f"killing the coordinator: no word for {silence:.1f} s")
            self._heard = None
            self._running.child.signal(signal.SIGKILL)

    async def stop(self) -> None:
        """End it; it hears so by the end of its conversation."""
        self._stopping = True
        if self._running is not None:
            self._running.channel.close()
            await self._running.child.stop(self._watch.limits.stop_s)

    async def _accompany(self, running: TalkingChild[CoordinatorKinds]) -> int:
        try:
            while True:
                message = await running.channel.receive()
                if self._heard is None:
                    self._tell(CoordinatorUp())
                self._heard = self._watch.now()
                self._tell(CoordinatorSaid(message))
        except ConnectionLost:
            return await running.child.stop(1.0)
        except WireError as error:
            log.error(f"the coordinator spoke another language: {error}")  # noqa: TRY400 - the peer's fault, no trace
            return await running.child.stop(0.0)
        finally:
            running.channel.abort()


class FrontKeeper:
    """Keeps ``count`` HTTP processes running; the front is up when each lives and the port accepts."""

    def __init__(
        self, command: Sequence[str], environment: Environment, address: Address, watch: Watch, tell: Tell
    ) -> None:
        self._command = list(command)
        self._environment = environment
        self._address = address
        self._watch = watch
        self._tell = tell
        self._trouble: dict[int, str] = {}
        self._children: dict[int, Child] = {}
        self._stopping = False

    async def run(self, count: int) -> None:
        """Keep them running until ``stop``; with none the coordinator's own socket is all the front there is."""
        self._trouble = {index: f"HTTP process {index} starts" for index in range(count)}
        if not count:
            self._tell(FrontChanged(True, ""))
        await asyncio.gather(*(self._keep(index) for index in range(count)))

    async def stop(self) -> None:
        """SIGTERM: finish the answers under way and leave."""
        self._stopping = True
        children = list(self._children.values())
        await asyncio.gather(*(child.stop(self._watch.limits.stop_s, signal.SIGTERM) for child in children))

    async def _keep(self, index: int) -> None:
        restarts = Restarts(f"HTTP process {index}", self._watch)
        while not self._stopping:
            child = self._children[index] = Child([*self._command, "--index", str(index)], self._environment())
            started = self._watch.now()
            log.info(f"HTTP process {index} runs as process {child.pid}")
            probing = asyncio.ensure_future(self._probe(index))
            code = await child.wait()
            probing.cancel()
            lived = self._watch.now() - started
            if not self._stopping:
                text = f"HTTP process {index} {exit_text(code, child.last_line)}"
                log.warning(text)
                self._set(index, text)
                await asyncio.sleep(restarts.ended(code, child.last_line, lived >= self._watch.limits.stable_s))

    async def _probe(self, index: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self._address.host, self._address.port)
                writer.close()
                self._set(index, "")
                return
            await asyncio.sleep(_PROBE_S)

    def _set(self, index: int, trouble: str) -> None:
        self._trouble[index] = trouble
        troubles = "; ".join(filter(None, self._trouble.values()))
        self._tell(FrontChanged(not troubles, troubles))
