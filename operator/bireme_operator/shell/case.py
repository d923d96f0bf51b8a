"""One deployment under care, from the first visit of this process to the last: a visit looks, plans, applies, tells.

What a plan would make or end is planned a second time on a live read before it is done: a cache may be behind, and no
watch is trusted with somebody's running requests. A read that fails ends the visit; it is never taken for "none".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.document import parse
from bireme.api.errors import InvalidDeployment
from bireme.api.rollout import OnCordon
from bireme.names import Label, Port
from bireme.wire.routes import Route, Routes
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import Refused
from bireme_operator.kube.resources import PODS
from bireme_operator.local.watcher import Leader, Watcher
from bireme_operator.plan.actions import Action, CreatePod, DeletePod, DrainGroup, LiftGate, ReloadGroup, TellLeader
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import Memory, intent, without_pods
from bireme_operator.plan.observed import Observed, Phase
from bireme_operator.plan.own import as_wanted
from bireme_operator.plan.places import Needs, NodeView
from bireme_operator.plan.plan import Plan, plan
from bireme_operator.plan.providers import Gang
from bireme_operator.plan.suspects import suspects
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.owned import Owner
from bireme_operator.render.router import TOKENS_DIR
from bireme_operator.render.tokens import group_token
from bireme_operator.shell.budgets import Budgets
from bireme_operator.shell.children import Children
from bireme_operator.shell.history import History
from bireme_operator.shell.nodes import Nodes
from bireme_operator.shell.places import Places
from bireme_operator.shell.pods import PodWriter
from bireme_operator.shell.recorder import Recorder
from bireme_operator.shell.records import PodRecord
from bireme_operator.shell.status_writer import StatusWriter
from bireme_operator.shell.store import Store
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
    session: aiohttp.ClientSession
    clock: Callable[[], float]
    master_key: bytes
    worker_image: str
    router_image: str
    identity: str
    nodes: Nodes
    sees_nodes: bool
    places: Places


@dataclass(frozen=True)
class Room:
    """The nodes with what is free on them, if they could be read, and what a stage asks of one."""

    nodes: tuple[NodeView, ...] | None
    needs: Needs


@dataclass
class Case:
    """See the module. ``changed`` asks for another visit."""

    tools: Tools
    owner: Owner
    memory: Memory
    changed: Callable[[], None]
    _tried: dict[str, str] = field(default_factory=dict)
    _resync_at: float = float("-inf")
    _native: bool = False
    _swept: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        """Set up the parts that live as long as the case."""
        tools, owner = self.tools, self.owner
        self._opened_at = tools.clock()
        self.watcher = Watcher(tools.session, tools.clock, self.changed)
        self.verbs = Verbs(tools.session, tools.store.told, self.changed)
        self.children = Children(tools.kube, owner, tools.master_key, tools.router_image)
        self.budgets = Budgets(tools.kube, owner)
        self.history = History(tools.kube, owner)
        self.pods = PodWriter(tools.kube, tools.store, owner, tools.worker_image, self.history.spec_of)
        self.status = StatusWriter(tools.kube, owner, tools.clock)
        self.recorder = Recorder(tools.kube, owner, tools.identity)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.owner.namespace, self.owner.name

    async def close(self) -> None:
        """Stop listening and calling."""
        await self.watcher.close()
        await self.verbs.close()

    async def visit(self, body: Mapping[str, Any]) -> float | None:
        """Do what is to be done now; when the next visit is due at the latest."""
        try:
            deployment = parse(body)
        except InvalidDeployment as error:
            return await self._tell_invalid(body, str(error))
        desired = Desired.of(deployment, self.owner.uid)
        self._native = desired.gang is Gang.NATIVE
        await self._resync()
        await self.history.keep(deployment, self._used_revisions())
        desired = replace(desired, history=self.history.renderings)
        if not desired.custom and self._still_listens(desired):
            return self.tools.clock() + _LISTENS_S
        refusal = await self.children.apply(deployment, [*self.memory.groups])
        refusal = refusal or await self._try_out(deployment, desired)
        room = await self._room(deployment, desired, refusal)
        result = self._plan(deployment, desired, refusal, room)
        if any(isinstance(action, CreatePod | DeletePod) for action in result.actions):
            await self._look_live()
            result = self._plan(deployment, desired, refusal, room)
        if (kept := intent(self.memory, result.memory)) is not None:
            await self.status.write(result.status, kept, at_once=True)
        failed = await self._apply(result.actions, deployment, desired, room.needs)
        self.memory = without_pods(result.memory, failed)
        if self.tools.sees_nodes:
            await self.budgets.keep(self._sizes(desired))
        await self._sweep()
        routes = None if desired.custom else self._routes(deployment, desired)
        routes_due = await self.children.publish(routes, self.tools.clock())
        await self.recorder.post([one for one in result.news if one.group not in self.pods.without_quota])
        status_due = await self.status.write(result.status, self.memory)
        dues = (result.wake_at, routes_due, status_due, self.pods.quota_due(), self._resync_at)
        return min(due for due in dues if due is not None)

    def _still_listens(self, desired: Desired) -> bool:
        """Whether this operator has just begun and has not heard every leader yet: till then it judges nobody."""
        if self.tools.clock() - self._opened_at >= _LISTENS_S:
            return False
        leaders = self._leaders()
        self.watcher.follow(self._leader(record, desired) for record in leaders.values())
        return not leaders.keys() <= self.watcher.views.keys()

    def _used_revisions(self) -> set[str]:
        """The renderings that a group may have to be made of again, by revision or key."""
        groups = {group.revision for group in self.memory.groups.values() if group.revision is not None}
        return groups | {self.memory.good}

    def _sizes(self, desired: Desired) -> dict[int, int]:
        """How many stages each group has; those that never served count with 0."""
        groups = self.memory.groups.items()
        return {index: as_wanted(desired, group).stages if group.served else 0 for index, group in groups}

    async def _resync(self) -> None:
        """Now and then trust nothing: read the pods live, apply the other objects again."""
        if self.tools.clock() >= self._resync_at:
            await self._look_live()
            self.children.forget()
            if self.tools.sees_nodes:
                await self.budgets.look()
            self._tried = {asked: refusal for asked, refusal in self._tried.items() if not refusal}
            self._resync_at = self.tools.clock() + RESYNC_S

    async def _sweep(self) -> None:
        """Delete the PodGroups of groups that are gone."""
        makings = frozenset((pod.group, pod.incarnation) for pod in self.tools.store.views(self.key, self.owner.uid))
        if self._native and makings != self._swept:
            await self.pods.pod_groups.sweep(makings)
            self._swept = makings

    async def _look_live(self) -> None:
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.STAGE}"
        found = await self.tools.kube.list(PODS, self.owner.namespace, selector)
        self.tools.store.replace_pods(self.key, found["items"])

    async def _try_out(self, deployment: InferenceDeployment, desired: Desired) -> str:
        """Return why the server takes no pods of this revision, or nothing. Asked once per revision and placement."""
        asked = f"{desired.revision} {deployment.spec.placement.model_dump_json()}"
        if asked not in self._tried:
            try:
                await self.pods.try_out(_probe(desired), deployment.spec, self.children.token_secret)
                self._tried[asked] = ""
            except (Refused, InvalidTemplate) as error:
                self._tried[asked] = str(error)
        return self._tried[asked]

    async def _room(self, deployment: InferenceDeployment, desired: Desired, refusal: str) -> Room:
        """Look for free nodes if a group waits for a place, and only where that is allowed."""
        gated = any(view.gated for view in self.tools.store.views(self.key, self.owner.uid))
        if refusal or not gated or not self.tools.sees_nodes:
            return Room(None, Needs())
        needs = self.pods.needs(_probe(desired), deployment.spec, self.children.token_secret)
        return Room(await self.tools.places.look(), needs)

    def _plan(self, deployment: InferenceDeployment, desired: Desired, refusal: str, room: Room) -> Plan:
        leaders = {} if desired.custom else self._leaders()
        self.watcher.follow(self._leader(record, desired) for record in leaders.values())
        observed = Observed(
            self.tools.store.views(self.key, self.owner.uid),
            dict(self.watcher.views),
            refusal,
            dict(self.pods.without_quota),
            room.nodes,
            room.needs,
        )
        now = self.tools.clock()
        return plan(desired, self._judge_nodes(observed, deployment.spec, now), self.memory, now)

    def _judge_nodes(self, observed: Observed, spec: Spec, now: float) -> Observed:
        """Have the nodes in doubt looked at; mark the pods of those that are lost and of those that are cordoned."""
        doubted = suspects(observed, now)
        others = {pod.node for pod in observed.pods if pod.node} - doubted
        self.tools.nodes.doubt(doubted, others, self.changed)
        lost = {node for node in doubted if self.tools.nodes.lost(node, spec.recovery.node_lost_after_seconds)}
        leaving = self.tools.store.leaving_nodes if spec.disruption.on_cordon is OnCordon.MOVE else frozenset()
        return replace(
            observed,
            pods=tuple(
                replace(pod, node_lost=pod.node in lost, node_leaving=pod.node in leaving) for pod in observed.pods
            ),
        )

    async def _apply(
        self, actions: Sequence[Action], deployment: InferenceDeployment, desired: Desired, needs: Needs
    ) -> Sequence[str]:
        for action in actions:
            match action:
                case DeletePod():
                    await self.pods.end(action)
                case LiftGate():
                    if pod := self._record(action.pod):
                        self.tools.places.hold(pod.uid, action.node, needs)
                        await self.pods.lift(action)
                case DrainGroup():
                    if pod := self._record(action.leader):
                        self.verbs.drain(pod, action.deadline_s, self._token(desired, pod))
                case ReloadGroup():
                    if pod := self._record(action.leader):
                        self.verbs.reload(pod, action.request, self._token(desired, pod))
                case TellLeader():
                    if pod := self._record(action.pod):
                        self.verbs.introduce(pod, action.address, action.incarnation, self._token(desired, pod))
        made = [action for action in actions if isinstance(action, CreatePod)]
        return await self.pods.create(made, deployment.spec, self.children.token_secret, self.tools.clock())

    def _record(self, name: str) -> PodRecord | None:
        return next((r for r in self.tools.store.pods(self.key, self.owner.uid) if r.view.name == name), None)

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

    def _routes(self, deployment: InferenceDeployment, desired: Desired) -> Routes:
        names = (deployment.model_name, *deployment.spec.model.aliases, *deployment.spec.engine.adapters)
        routes = [_route(record, desired) for record in self._leaders().values()]
        return Routes(_ROUTES_VERSION, names, tuple(routes))

    async def _tell_invalid(self, body: Mapping[str, Any], message: str) -> float | None:
        """The CRD lets nothing invalid in, unless it is of another release than the operator."""
        generation = int(body["metadata"].get("generation") or 0)
        status, held = describe_invalid(generation, message, self.memory, self.tools.clock())
        self.memory = replace(self.memory, conditions=held)
        return await self.status.write(status, self.memory)


def _probe(desired: Desired) -> CreatePod:
    """A pod that is never made, to be asked about."""
    identity, name = desired.pod_environment(0, 0, 0), desired.pod_name(0, 0, 0)
    return CreatePod(name, 0, 0, 0, desired.revision, desired.model_revision, identity)


def _route(record: PodRecord, desired: Desired) -> Route:
    view = record.view
    host = f"[{view.address}]" if ":" in view.address else view.address
    return Route(
        group=desired.group_uid(view.group),
        index=view.group,
        pod=view.name,
        incarnation=view.incarnation,
        http=f"http://{host}:{int(Port.HTTP)}",
        admin=f"http://{host}:{int(Port.ADMIN)}",
        token_file=f"{TOKENS_DIR}/{view.group}",
    )
