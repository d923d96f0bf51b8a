"""The loop of `bireme up`: wait for news or a deadline, look, plan, apply, write status and routes. Level-triggered.

Stopping is a wish like any other: no group is wanted any more, the planner drains and deletes them, and the run ends
when nothing is left. A second wish to stop kills.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bireme.api import InferenceDeployment
from bireme.names import ConditionType, Exit, Reason
from bireme_operator.local.backend import LocalBackend, describe_limits, describe_pods
from bireme_operator.local.clock import Clock
from bireme_operator.local.errors import LocalError, NeverStarts, RouterFailed
from bireme_operator.local.event_log import EventLog
from bireme_operator.local.kubelet import Kubelet
from bireme_operator.local.past import Past, with_checkpoint, with_pause, with_restart, with_resume, with_spec
from bireme_operator.local.router import RouterKeeper, describe_router
from bireme_operator.local.status_file import StatusFile
from bireme_operator.local.wish import AnyWish, Pause, Restart, Resume, RollBack, Wish
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.naming import names_of
from bireme_operator.plan.observed import LeaderView
from bireme_operator.plan.plan import Plan, plan

_ROUTER_GRACE_S = 5.0
_EXIT_OF: dict[str, Exit] = {
    Reason.BAD_CONFIGURATION: Exit.BAD_CONFIGURATION,
    Reason.BAD_CHECKPOINT: Exit.BAD_CHECKPOINT,
}


@dataclass
class Runner:
    """One run. ``told`` is called with every plan, for whoever shows progress."""

    deployment: InferenceDeployment
    desired: Desired
    backend: LocalBackend
    kubelet: Kubelet
    router: RouterKeeper
    status_file: StatusFile
    events: EventLog
    clock: Clock
    news: asyncio.Event
    endpoint: str
    told: Callable[[Plan], None]
    memory: Memory = field(default_factory=Memory)
    past: Past = field(default_factory=Past)
    forced: bool = False
    _failure: LocalError | None = None
    _next_look: float | None = None

    def __post_init__(self) -> None:
        """Number what is wanted first."""
        self.past.note(self.deployment)

    async def run(self) -> None:
        """Run until everything has stopped.

        Raises:
            NeverStarts: no group can ever start; the message has the worker's own words.
            RouterFailed: the router's configuration can't work.
        """
        keeping = asyncio.create_task(self.router.run())
        try:
            while self._pass() or self._left():
                await self._news_or(self._next_look)
            await self._end_router(keeping)
        finally:
            keeping.cancel()
            self.status_file.flush(self.clock())
        if self._failure is not None:
            raise self._failure

    @property
    def shortage(self) -> str:
        """How long requests may be and why not as long as the model allows, or nothing."""
        limits = describe_limits(self.backend.observe().leaders.values())
        return f"up to {limits['context']} tokens a request: {limits['message']}" if limits["message"] else ""

    def stop(self) -> None:
        """Drain everything and end; the second time, kill everything and end."""
        if self.desired.stopping:
            self.forced = True
            self.kubelet.kill_all()
            self.router.kill()
        self.desired = self.desired.stopped()
        self.router.stop()
        self.news.set()

    def obey(self, wish: AnyWish) -> None:
        """Want what is asked for; ``wish`` was checked by who wrote it."""
        if self.desired.stopping:
            return
        match wish:
            case Wish():
                self._want(with_checkpoint(self.deployment.to_dict(), wish), wish.mode, anew=True)
            case Restart():
                self._want(with_restart(self.deployment, wish.value))
            case Pause():
                self._want(with_pause(self.deployment))
            case Resume():
                self._want(with_resume(self.deployment, wish.value))
            case RollBack():
                if earlier := self.past.get(wish.number):
                    self._want(with_spec(self.deployment, earlier))

    def _want(self, deployment: InferenceDeployment, reload_mode: str = "finish", *, anew: bool = False) -> None:
        """``anew``: to ask for the same again is news, as for a checkpoint that was mended."""
        self.past.note(deployment)
        before, changed = self.desired, deployment.spec != self.deployment.spec
        self.deployment = deployment
        self.desired = replace(
            Desired.of(deployment, before.uid),
            generation=before.generation + (changed or anew),
            reload_mode=reload_mode,
            history={**before.history, before.rendering.key: before.rendering},
        )
        self.news.set()

    def _pass(self) -> bool:
        """One look; False when nothing is left to wait for."""
        self.news.clear()
        now = self.clock()
        seen = self.backend.observe()
        result = plan(self.desired, seen, self.memory, now)
        self.memory = result.memory
        for action in result.actions:
            self.backend.apply(action)
        self.router.write(self.backend.routes())
        self.status_file.offer(self._content(result, seen.leaders), now)
        self.events.look(result, self.kubelet.pods, seen.leaders, self.router, now)
        self.told(result)
        self._give_up_if_hopeless(result)
        dues = [due for due in (result.wake_at, self.status_file.due) if due is not None]
        self._next_look = min(dues, default=None)
        return not self.desired.stopping or bool(result.memory.groups)

    def _left(self) -> bool:
        return bool(self.kubelet.pods)

    async def _news_or(self, deadline: float | None) -> None:
        """Return when something changed or ``deadline`` has come."""
        limit = None if deadline is None else max(deadline - self.clock(), 0.0)
        try:
            async with asyncio.timeout(limit):
                await self.news.wait()
        except TimeoutError:
            return

    def _give_up_if_hopeless(self, result: Plan) -> None:
        if self._failure is not None or self.desired.stopping:
            return
        if self.router.failed is not None:
            self._failure = RouterFailed(f"the router can't start: {self.router.failed}")
        elif not any(group.served for group in result.memory.groups.values()):
            stalled = next(c for c in result.status.conditions if c.type == ConditionType.STALLED)
            if stalled.status == "True":
                self._failure = NeverStarts(
                    f"no group can start: {stalled.reason}: {stalled.message}",
                    _EXIT_OF.get(stalled.reason, Exit.INTERNAL),
                )
        if self._failure is not None:
            self.stop()

    async def _end_router(self, keeping: asyncio.Task[None]) -> None:
        """Let the last answers out, then insist."""
        self.router.stop()
        _, pending = await asyncio.wait({keeping}, timeout=_ROUTER_GRACE_S)
        if pending:
            self.router.kill()
            await keeping

    def _content(self, result: Plan, leaders: Mapping[int, LeaderView]) -> dict[str, Any]:
        content = self.deployment.to_dict()
        content["metadata"] |= {"uid": self.desired.uid, "generation": self.desired.generation}
        content["status"] = result.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        content["local"] = {
            "pid": os.getpid(),
            "endpoint": self.endpoint,
            "routerPid": self.router.pid,
            "router": describe_router(self.router),
            "limits": describe_limits(leaders.values()),
            "names": names_of(self.memory, self.desired.revision),
            "revisions": self.past.describe(self.deployment),
            "pods": describe_pods(self.kubelet, leaders),
        }
        return content
