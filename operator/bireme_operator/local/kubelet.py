"""The kubelet's part on a laptop: runs each pod's process, restarts it as `restartPolicy: OnFailure` would, ends it.

The first restart follows at once, the next ones wait as `spec.recovery.backoff` says. Exits 0, 64 and 65 are final.
Whether a pod is worth having is the planner's business.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM

from bireme.child import Child
from bireme.names import Env, Exit
from bireme_operator.local.addresses import Addresses
from bireme_operator.local.clock import Clock
from bireme_operator.local.errors import PortTaken
from bireme_operator.local.rundir import RunDir
from bireme_operator.local.termination import last_words
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import RecoveryPolicy
from bireme_operator.plan.observed import Phase, PodView
from bireme_operator.plan.recovery import delay_s, in_a_row

log = logging.getLogger(__name__)

FINAL_EXITS = (Exit.DRAINED, Exit.BAD_CONFIGURATION, Exit.BAD_CHECKPOINT)


@dataclass
class Pod:
    """One pod and its process, as the kubelet keeps it."""

    made: CreatePod
    state_dir: Path
    log: Path
    environment: Mapping[str, str]
    address: str = ""
    phase: Phase = Phase.RUNNING
    child: Child | None = None
    restarts: int = 0
    exit_code: int | None = None
    message: str = ""
    started_at: float = 0.0
    told_leader: int = 0
    ends: list[float] = field(default_factory=list)
    deleting: asyncio.Event = field(default_factory=asyncio.Event)
    end_by: float = 0.0

    @property
    def pid(self) -> int:
        """The supervisor's process id, 0 when there is no process."""
        return self.child.pid if self.child else 0

    def view(self) -> PodView:
        """Return the pod as the planner looks at it."""
        made = self.made
        return PodView(
            made.name,
            made.group,
            made.stage,
            made.incarnation,
            made.revision,
            made.model_revision,
            self.phase,
            self.address,
            self.restarts,
            self.exit_code,
            self.message,
            self.started_at,
            self.told_leader,
            self.deleting.is_set(),
            self.end_by,
            source=made.environment.get(Env.MODEL_PATH, ""),
        )


class Kubelet:
    """All pods of a deployment. ``changed`` is called whenever a look would see something else."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        policy: RecoveryPolicy,
        rundir: RunDir,
        addresses: Addresses,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._command = list(command)
        self._policy = policy
        self._rundir = rundir
        self._addresses = addresses
        self._clock = clock
        self._changed = changed
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pods(self) -> Sequence[Pod]:
        """Every pod that is not gone."""
        return tuple(self._pods.values())

    def get(self, name: str) -> Pod | None:
        """Return the pod of that name, None when it is gone."""
        return self._pods.get(name)

    def leader(self, group: int) -> Pod | None:
        """Return the newest leader pod of the group that is not on its way out."""
        leaders = [p for p in self._pods.values() if (p.made.group, p.made.stage) == (group, 0)]
        staying = [pod for pod in leaders if not pod.deleting.is_set()]
        return max(staying, key=lambda pod: pod.made.incarnation, default=None)

    def create(self, made: CreatePod, environment: Mapping[str, str]) -> None:
        """Start a pod; does nothing when there is one of that name.

        Raises:
            OSError: it can't be started, and there is no such pod.
        """
        if made.name in self._pods:
            return
        state_dir = self._rundir.state_dir(made.group, made.stage, made.incarnation)
        pod = Pod(made, state_dir, self._rundir.log(made.name), environment)
        self._pods[made.name] = pod
        try:
            pod.address = self._addresses.take()
        except PortTaken as error:
            self._end(pod, Exit.INTERNAL, str(error))
            pod.phase = Phase.EXITED
        else:
            self._start_new(pod)
        self._spawn(self._keep(pod))
        self._changed()

    def delete(self, name: str, grace_s: float) -> None:
        """Ask a pod to end, and end it after ``grace_s``; does nothing when it is going or gone."""
        pod = self._pods.get(name)
        if pod is None or pod.deleting.is_set():
            return
        pod.deleting.set()
        pod.end_by = self._clock() + grace_s
        if pod.child is not None:
            pod.child.signal(SIGTERM)
            asyncio.get_running_loop().call_later(grace_s, pod.child.signal, SIGKILL)
        self._changed()

    def kill_all(self) -> None:
        """End every pod now."""
        for pod in self._pods.values():
            pod.deleting.set()
            if pod.child is not None:
                pod.child.signal(SIGKILL)

    async def _keep(self, pod: Pod) -> None:
        while pod.child is not None:
            code = await pod.child.wait()
            self._end(pod, code, last_words(pod.state_dir, pod.log, code))
            if pod.deleting.is_set():
                break
            if code in FINAL_EXITS:
                pod.phase = Phase.EXITED
            else:
                await self._restart(pod)
            self._changed()
        await pod.deleting.wait()
        self._forget(pod)

    async def _restart(self, pod: Pod) -> None:
        """Start it again unless it is not wanted any more; what the machine refuses counts as another end."""
        while not await self._deleted_while_waiting(pod):
            pod.restarts += 1
            try:
                self._start(pod)
            except OSError as error:
                self._end(pod, Exit.INTERNAL, f"its process can't be started: {error}")
            else:
                return

    async def _deleted_while_waiting(self, pod: Pod) -> bool:
        """Wait for the next start; True when the pod is not wanted any more."""
        wait = delay_s(in_a_row(pod.ends, self._policy), self._policy)
        if wait == 0:
            return False
        pod.phase = Phase.BACKING_OFF
        self._changed()
        try:
            async with asyncio.timeout(wait):
                await pod.deleting.wait()
        except TimeoutError:
            return False
        return True

    def _start_new(self, pod: Pod) -> None:
        try:
            self._start(pod)
        except OSError:
            self._forget(pod)
            raise

    def _start(self, pod: Pod) -> None:
        leader = self.leader(pod.made.group)
        own: dict[str, str] = {Env.POD_IP: pod.address, Env.STATE_DIR: str(pod.state_dir)}
        if leader is not None:
            own[Env.LEADER_ADDRESS] = leader.address
            pod.told_leader = leader.made.incarnation
        pod.started_at = self._clock()
        pod.child = Child(self._command, {**pod.environment, **own}, log=pod.log)
        pod.phase = Phase.RUNNING
        log.info("pod %s runs as process %d at %s", pod.made.name, pod.child.pid, pod.address)

    def _end(self, pod: Pod, code: int, message: str) -> None:
        pod.child, pod.exit_code, pod.message = None, code, message
        pod.ends = [*pod.ends[-32:], self._clock()]
        log.info("pod %s ended with %d: %s", pod.made.name, code, message)

    def _forget(self, pod: Pod) -> None:
        del self._pods[pod.made.name]
        self._addresses.give_back(pod.address)
        shutil.rmtree(pod.state_dir, ignore_errors=True)
        self._changed()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
