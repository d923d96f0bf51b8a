"""One deployment under care, from the first visit of this process to the last: a visit looks, plans, applies, tells.

What a plan would make or end is planned a second time on a live read before it is done: a cache may be behind, and no
watch is trusted with somebody's running requests. A read that fails ends the visit; it is never taken for "none".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp
import msgspec

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.document import parse
from bireme.api.engine import EngineType
from bireme.api.errors import InvalidDeployment
from bireme.api.rollout import OnCordon
from bireme.api.status import Status
from bireme.names import Event
from bireme.wire.routes import Routes
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import KubeError
from bireme_operator.local.watcher import Leader, Watcher
from bireme_operator.plan.actions import (
    Action,
    Become,
    CreatePod,
    DeletePod,
    DrainGroup,
    LiftGate,
    ReloadGroup,
    TellLeader,
    UndrainGroup,
)
from bireme_operator.plan.autoscale import Scaled, autoscaled
from bireme_operator.plan.canary import trial_of, weights
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.fallback import is_at_rest, target
from bireme_operator.plan.memory import Memory, intent, without_pods
from bireme_operator.plan.news import News
from bireme_operator.plan.observed import SPARE, Observed, Phase
from bireme_operator.plan.own import guarded
from bireme_operator.plan.places import Needs, NodeView
from bireme_operator.plan.plan import Plan, plan
from bireme_operator.plan.providers import Gang, with_gates
from bireme_operator.plan.rest import Rest
from bireme_operator.plan.suspects import suspects
from bireme_operator.render.owned import Owner
from bireme_operator.render.spares import spare_token
from bireme_operator.render.tokens import group_token
from bireme_operator.shell.belongings import Belongings
from bireme_operator.shell.budgets import Budgets
from bireme_operator.shell.children import Children
from bireme_operator.shell.demand import DemandReader
from bireme_operator.shell.errands import Errands
from bireme_operator.shell.gangs import Gangs
from bireme_operator.shell.history import History
from bireme_operator.shell.metrics import OperatorMetrics
from bireme_operator.shell.nodes import Nodes
from bireme_operator.shell.places import Places
from bireme_operator.shell.pod_groups import NoGangs
from bireme_operator.shell.pods import PodWriter
from bireme_operator.shell.recorder import Recorder
from bireme_operator.shell.records import PodRecord
from bireme_operator.shell.routers import Routers
from bireme_operator.shell.routes import route_of
from bireme_operator.shell.spares import Spares
from bireme_operator.shell.status_writer import Found, StatusWriter
from bireme_operator.shell.store import Store
from bireme_operator.shell.tryout import TryOut, probe
from bireme_operator.shell.verbs import Verbs
from bireme_operator.status import describe_invalid

RESYNC_S: Final = 60.0
_LISTENS_S: Final = 3.0
_ROUTES_VERSION: Final = 1


@dataclass(frozen=True)
class Tools:
    """What all cases share."""

    kube: Kube
    store: Store
    belongings: Belongings
    session: aiohttp.ClientSession
    clock: Callable[[], float]
    master_key: bytes
    worker_image: str
    router_image: str
    identity: str
    nodes: Nodes
    sees_nodes: bool
    places: Places
    metrics: OperatorMetrics


@dataclass(frozen=True)
class Room:
    """The nodes with what is free on them, if they could be read, and what a stage asks of one."""

    nodes: tuple[NodeView, ...] | None
    needs: Needs


@dataclass
class Case:
    """See the module. ``changed`` asks for another visit, ``found`` is the object as ``memory`` was read from it."""

    tools: Tools
    owner: Owner
    memory: Memory
    changed: Callable[[], None]
    found: Found = field(default_factory=Found)
    _understood: tuple[object, InferenceDeployment] | None = None
    _untold: tuple[News, ...] = ()
    _resync_at: float = float("-inf")
    _rest: Rest = field(default_factory=Rest)

    def __post_init__(self) -> None:
        """Set up the parts that live as long as the case."""
        tools, owner = self.tools, self.owner
        self._opened_at = tools.clock()
        self.watcher = Watcher(tools.session, tools.clock, self.changed)
        self.verbs = Verbs(tools.session, tools.store.told, self.changed)
        self.errands = Errands(self.changed)
        self.children = Children(
            tools.kube, owner, tools.belongings, tools.master_key, tools.router_image, self.errands
        )
        self.budgets = Budgets(tools.kube, owner, self.errands)
        self.history = History(tools.kube, owner)
        self.pods = PodWriter(tools.kube, tools.store, owner, self.history.spec_of, self.errands, tools.sees_nodes)
        self.gangs = Gangs(self.pods.pod_groups)
        self.try_out = TryOut(self.pods, self.gangs)
        self.status = StatusWriter(tools.kube, owner, tools.clock, self.errands, self.found)
        self.spares = Spares(tools.kube, tools.store, owner, tools.clock)
        self.routers = Routers(tools.kube, owner, tools.session, tools.clock, self.changed)
        self.recorder = Recorder(tools.kube, owner, tools.identity, self.errands)
        self.load = DemandReader(tools.kube, owner, tools.session, self.changed)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.owner.namespace, self.owner.name

    async def close(self) -> None:
        """Stop listening and calling."""
        self.tools.metrics.forget(self.key)
        self.tools.belongings.forget(self.key)
        await self.routers.close()
        await self.load.close()
        await self.watcher.close()
        await self.verbs.close()
        await self.errands.close()

    async def visit(self, body: Mapping[str, Any]) -> float | None:
        """Do what is to be done now; when the next visit is due at the latest."""
        self.memory = without_pods(self.memory, self.pods.take_unmade())
        self._check()
        try:
            asked = self._understand(body)
        except InvalidDeployment as error:
            return self._tell_invalid(body, str(error))
        await self._resync()
        deployment = await self._placeable(asked)
        desired = Desired.of(deployment, self.owner.uid)
        await self.history.keep(asked, self._used_revisions())
        desired = replace(desired, history=self.history.renderings, image=self.tools.worker_image)
        if self.memory.gangless is not None:
            desired = desired.without_gangs(self.memory.gangless.why)
        scaled = self._scale(desired, deployment.spec)
        desired = scaled.desired
        if not desired.custom and self._still_listens(desired):
            return self.tools.clock() + _LISTENS_S
        refusal = await self.children.apply(asked, [*self.memory.groups], self.tools.clock())
        refusal = refusal or await self.try_out.refusal(deployment, desired, self.children.token_secret)
        if self.gangs.missing:
            return self.tools.clock()  # without them it looks otherwise
        room = await self._room(deployment, desired, refusal)
        result = self._plan(deployment, desired, refusal, room)
        if doubtful := self.pods.doubtful(result.actions, self.memory.groups):
            await self.pods.look(doubtful)
            result = self._plan(deployment, desired, refusal, room)
        if (kept := intent(result.memory, self._to_keep(result.actions))) is not None:
            await self.status.write(result.status, without_pods(kept, self.pods.unsure))
            self.memory = kept  # also when an act fails halfway
        self._apply(result.actions, deployment, desired, room.needs)
        lost = await self.spares.carry_out(result.actions, deployment.spec, self.pods.ended)
        self.memory = without_pods(result.memory, lost)
        self.tools.metrics.judged(self.key, result.status.groups)
        if self.tools.sees_nodes:
            sizes = guarded(desired, self.memory.groups, self._staying())
            self.budgets.keep(sizes, deployment.spec.template.metadata.get("labels") or {})
        await self.gangs.sweep(self.tools.store.views(self.key, self.owner.uid))
        self.routers.count(trial_of(desired, self.memory), deployment.spec.router)
        routes = None if desired.custom else self._routes(deployment, desired, result.status)
        routes_due = self.children.publish(routes, self.tools.clock())
        self._tell(result.news)
        status_due = self.status.offer(result.status, without_pods(self.memory, self.pods.unsure))
        leave_due = self.tools.store.leave_due(self.key, self.owner.uid)
        quota_due = self.pods.quota_due(self.memory.groups, self.tools.clock())
        own_dues = (self.children.retry_at, self._resync_at)
        dues = (result.wake_at, scaled.due, routes_due, status_due, leave_due, quota_due, *own_dues)
        return min(due for due in dues if due is not None)

    def _check(self) -> None:
        """Fail with what an errand has failed with; but for want of gangs, which is found out anew by a try."""
        try:
            self.errands.check()
        except NoGangs:
            self.try_out.ask_all_again()

    async def _placeable(self, asked: InferenceDeployment) -> InferenceDeployment:
        """Return what is asked, with Gates in the place of a native scheduler without gangs, where we see nodes."""
        views, now = self.tools.store.views(self.key, self.owner.uid), self.tools.clock()
        gangless = await self.gangs.look(asked, self.memory, views, now)
        if gangless is not None and gangless != self.memory.gangless:
            self._untold += (News(Event.NATIVE_GANG_IGNORED, None, gangless.why),)
        self.memory = replace(self.memory, gangless=gangless)
        return with_gates(asked) if gangless is not None and self.tools.sees_nodes else asked

    def _to_keep(self, actions: Sequence[Action]) -> list[Action]:
        """The actions but for those that are under way, or were kept as a wish by an earlier visit."""
        draining = {index for index, group in self.memory.groups.items() if group.draining is not None}
        begun = self.pods.to_begin(actions)
        return [one for one in begun if not isinstance(one, DrainGroup) or one.group not in draining]

    def _scale(self, desired: Desired, spec: Spec) -> Scaled:
        """Let the load decide how many groups are wanted, where that is asked for."""
        scales = desired.autoscaling is not None and not desired.replicas_owner
        self.load.read(spec.router if scales else None)
        scaled = autoscaled(desired, self.memory, self.load.demand, self.tools.clock())
        self.memory = scaled.memory
        return scaled

    def _still_listens(self, desired: Desired) -> bool:
        """Whether this operator has just begun and has not heard every leader yet: till then it judges nobody."""
        if self.tools.clock() - self._opened_at >= _LISTENS_S:
            return False
        leaders = self._leaders()
        self.watcher.follow(self._leader(record, desired) for record in leaders.values())
        heard = {view.pod for view in self.watcher.views.values()} | self.watcher.strangers.keys()
        return any(record.view.name not in heard for record in leaders.values())

    def _used_revisions(self) -> set[str]:
        """The renderings that a group may have to be made of again, by revision or key."""
        groups = {group.revision for group in self.memory.groups.values() if group.revision is not None}
        return groups | {self.memory.good}

    def _staying(self) -> set[int]:
        """The groups with a pod that nobody has asked to end; looked for only where one of them goes for good."""
        if not any(group.draining and group.draining.for_good for group in self.memory.groups.values()):
            return set()
        views = self.tools.store.views(self.key, self.owner.uid)
        return {view.group for view in views if not view.deleting and not self.pods.is_ending(view.name)}

    async def _resync(self) -> None:
        """Now and then trust nothing: read the pods live, apply the other objects again.

        What is seen at other times is no reason to wait for that, so it is read beside the visits then.
        """
        now = self.tools.clock()
        if self.pods.astonished or self._resync_at < 0:
            self.pods.astonished = False
            await self._read_all()
        elif now < self._resync_at or "read" in self.errands:
            return
        else:
            self.errands.begin("read", self._read_all())
        self._resync_at = now + RESYNC_S
        self.children.forget()
        self.status.try_all_fields()
        self.try_out.ask_again()

    async def _read_all(self) -> None:
        try:
            await self.pods.look()
            if self.tools.sees_nodes:
                await self.budgets.look()
        except KubeError:
            self._resync_at = float("-inf")  # the next visit waits for it
            raise

    def _understand(self, body: Mapping[str, Any]) -> InferenceDeployment:
        """Return what is wanted; it is read once, for a status is written far more often than a wish."""
        key = body["metadata"].get("generation"), body["metadata"].get("annotations")
        if self._understood is None or self._understood[0] != key:
            self._understood = key, parse(body)
        return self._understood[1]

    def _tell(self, news: Sequence[News]) -> None:
        """Tell what is new; of a group that is being made only when that has worked."""
        told = [*self._untold, *news]
        self._untold = tuple(one for one in told if ("make", one.group) in self.errands)
        settled = [one for one in told if ("make", one.group) not in self.errands]
        without = self.pods.without_quota
        self.recorder.post([n for n in settled if n.group not in without or n.event is Event.GROUP_WAITS])

    async def _room(self, deployment: InferenceDeployment, desired: Desired, refusal: str) -> Room:
        """Look for free nodes if a group waits for a place, and only where that is allowed."""
        gated = any(view.gated for view in self.tools.store.views(self.key, self.owner.uid))
        if is_at_rest(desired, self.memory, refusal) or not gated or not self.tools.sees_nodes:
            return Room(None, Needs())
        pod = probe(target(desired, self.memory, refusal))
        needs = self.pods.needs(pod, deployment.spec, self.children.token_secret)
        return Room(await self.tools.places.look(), needs)

    def _plan(self, deployment: InferenceDeployment, desired: Desired, refusal: str, room: Room) -> Plan:
        leaders = {} if desired.custom else self._leaders()
        self.watcher.follow(self._leader(record, desired) for record in leaders.values())
        views = self.tools.store.views(self.key, self.owner.uid)
        observed = Observed(
            self.pods.as_wished([view for view in views if view.stage != SPARE]),
            dict(self.watcher.views),
            refusal,
            dict(self.pods.without_quota),
            room.nodes,
            room.needs,
            self.routers.figures,
            tuple(view for view in views if view.stage == SPARE),
            self.spares.refused,
            self.budgets.conflicts,
            self.tools.store.labels,
            self.pods.quota_is_short(now := self.tools.clock()),
            dict(self.watcher.strangers),
        )
        return plan(desired, self._judge_nodes(observed, deployment.spec, now), self.memory, now, self._rest)

    def _judge_nodes(self, observed: Observed, spec: Spec, now: float) -> Observed:
        """Have the nodes in doubt looked at; mark the pods of those that are lost or ask them to leave."""
        custom, moves = spec.engine.type is EngineType.CUSTOM, spec.disruption.on_cordon is OnCordon.MOVE
        doubted = suspects(observed, now, custom=custom)
        others = {pod.node for pod in observed.pods if pod.node} - doubted
        self.tools.nodes.doubt(doubted, others, self.changed)
        lost = {node for node in doubted if self.tools.nodes.lost(node, spec.recovery.node_lost_after_seconds)}
        if moves and not custom:
            self.tools.store.isolation.listen(self.key, observed, self.memory.groups, doubted)
        leaving = self.tools.store.leaving(self.key, self.owner.uid) if moves else {}
        return observed.marked(lost, leaving, self.tools.store.stranded(self.key, self.owner.uid))

    def _apply(
        self, actions: Sequence[Action], deployment: InferenceDeployment, desired: Desired, needs: Needs
    ) -> None:
        for action in actions:
            match action:
                case DeletePod():
                    self.pods.end(action)
                case LiftGate():
                    if (pod := self._record(action.pod)) and self.pods.lift(action):
                        self.tools.places.hold(pod.uid, action.node, needs)
                case DrainGroup() | UndrainGroup() | ReloadGroup():
                    if pod := self._record(action.leader):
                        self.verbs.call(pod, action, self._token(desired, pod))
                case Become():
                    if pod := self._record(action.pod):
                        request = msgspec.structs.replace(action.request, token=self._token(desired, pod))
                        self.verbs.become(pod, action.leader, request, spare_token(self.tools.master_key, self.owner))
                case TellLeader():
                    if pod := self._record(action.pod):
                        self.verbs.call(pod, action, self._token(desired, pod))
        made = [action for action in actions if isinstance(action, CreatePod)]
        self.pods.create(made, deployment.spec, self.children.token_secret, self.tools.clock())
        if made and desired.gang is Gang.GATES and self.tools.sees_nodes:
            self.tools.places.expect()

    def _record(self, name: str) -> PodRecord | None:
        return self.tools.store.pod(self.key, self.owner.uid, name)

    def _leaders(self) -> dict[int, PodRecord]:
        """The newest leader of each group, if it runs."""
        newest: dict[int, PodRecord] = {}
        for record in self.tools.store.pods(self.key, self.owner.uid):
            view = record.view
            known = newest.get(view.group)
            if view.stage == 0 and not view.deleting and (known is None or known.view.incarnation < view.incarnation):
                newest[view.group] = record
        running = {group: record for group, record in newest.items() if record.view.phase is Phase.RUNNING}
        return {group: record for group, record in sorted(running.items()) if record.view.address}

    def _leader(self, record: PodRecord, desired: Desired) -> Leader:
        view = record.view
        uid = desired.group_uid(view.group)
        return Leader(view.name, view.group, uid, view.incarnation, view.address, self._token(desired, record))

    def _token(self, desired: Desired, record: PodRecord) -> str:
        return group_token(self.tools.master_key, desired.group_uid(record.view.group))

    def _routes(self, deployment: InferenceDeployment, desired: Desired, status: Status) -> Routes:
        names = (deployment.model_name, *deployment.spec.model.aliases, *deployment.spec.engine.adapters)
        routes = [route_of(record, desired) for record in self._leaders().values()]
        return Routes(_ROUTES_VERSION, names, tuple(routes), weights(desired, self.memory, status))

    def _tell_invalid(self, body: Mapping[str, Any], message: str) -> float | None:
        """The CRD lets nothing invalid in, unless it is of another release than the operator."""
        generation = int(body["metadata"].get("generation") or 0)
        status, held = describe_invalid(generation, message, self.memory, self.tools.clock())
        self.memory = replace(self.memory, conditions=held)
        return self.status.offer(status, self.memory)
