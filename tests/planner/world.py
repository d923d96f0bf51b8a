"""A simulated backend: pods that start, die, vanish and speak, on a clock that only the test moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bireme.names import Env, GroupState, Reason
from bireme.wire.requests import Limits
from bireme.wire.state import ReloadRequest, ReloadState, StateDocument
from bireme_operator.plan.actions import (
    Action,
    AdoptSpare,
    Become,
    CreatePod,
    CreateSpare,
    DeletePod,
    DrainGroup,
    EndSpare,
    ReloadGroup,
    TellLeader,
    UndrainGroup,
)
from bireme_operator.plan.desired import Desired, RecoveryPolicy
from bireme_operator.plan.figures import Figures
from bireme_operator.plan.memory import Memory, intent
from bireme_operator.plan.observed import SPARE, LeaderView, Observed, Phase, PodView
from bireme_operator.plan.plan import Plan, plan
from bireme_operator.plan.recovery import delay_s

START = 1_000_000.0


def wanted(replicas: int = 2, stages: int = 2, **changes: object) -> Desired:
    policy = RecoveryPolicy(budget=6, window_s=3600, initial_s=1, longest_s=300)
    base = Desired("demo", "uid", 1, replicas, stages, 1, "rev1", "model1", {"SHARED": "1"}, policy, 300)
    return replace(base, **changes)  # type: ignore[arg-type]


def document(pod: PodView, **changes: object) -> StateDocument:
    fields: dict[str, object] = {
        "v": 1,
        "seq": 1,
        "group": str(pod.group),
        "stage": pod.stage,
        "incarnation": pod.incarnation,
        "boot": "boot",
        "epoch": (pod.incarnation << 20) + 1,
        "state": GroupState.SERVING.value,
        "reason": Reason.NONE.value,
        "message": "",
        "retry_after_s": 0.0,
        "revision": pod.revision,
        "model_revision": pod.model_revision,
        "generation": 0,
        "reload": ReloadState(),
        "running": 0,
        "waiting": 0,
        "queued_prefill_tokens": 0,
        "kv_blocks_used": 0,
        "kv_blocks": 100,
        "block_size": 16,
        "step": 0,
        "step_age_s": 0.0,
        "draining": False,
        "limits": Limits(1024, 8, 8),
        "stages": (),
    }
    return StateDocument(**{**fields, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Luck:
    """How far one visit comes. ``acts`` are carried out, then the server fails or, with ``dies``, the operator does.

    ``refused``: what is to be kept before can't be written, although with ``unheard`` it was: only the answer is lost.
    ``unwritten``: the status after the acts is not written, because it is too soon or because nobody is left to do it.
    """

    acts: int | None = None
    dies: bool = False
    refused: bool = False
    unheard: bool = False
    unwritten: bool = False


def in_order(actions: Sequence[Action]) -> list[Action]:
    """Return the actions as the operator carries them out: pods are made last."""
    return sorted(actions, key=lambda action: isinstance(action, CreatePod))


@dataclass
class World:
    """Pods by name. Leaders serve as soon as all their stages run and know them, unless ``mute``."""

    desired: Desired
    now: float = START
    pods: dict[str, PodView] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    mute: set[int] = field(default_factory=set)
    served: dict[int, str] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    requests: dict[int, int] = field(default_factory=dict)
    wake_up: dict[str, float] = field(default_factory=dict)
    created: list[CreatePod] = field(default_factory=list)
    deleted: list[DeletePod] = field(default_factory=list)
    reloads: list[ReloadGroup] = field(default_factory=list)
    drained: list[DrainGroup] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    failed: dict[int, ReloadState] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Where the weights of a model revision lie that are not at /models/REVISION."""
    broken: set[str] = field(default_factory=set)
    """Revisions with which no group ever comes to serve."""
    figures: Figures | None = None
    """What the routers counted, as the test wants it."""
    spares: dict[str, PodView] = field(default_factory=dict)
    adopted: list[AdoptSpare] = field(default_factory=list)
    deaf: bool = False
    """Spares never hear who they are."""
    full: bool = False
    """There is no room for another spare."""
    kept: Memory = field(default_factory=Memory)
    """The memory that an operator finds that begins now: what was written last."""

    def observe(self) -> Observed:
        leaders = {}
        for pod in self.pods.values():
            heard = pod.phase is Phase.RUNNING and not pod.deleting and pod.group not in self.mute
            if pod.stage == 0 and heard and self.reachable(pod):
                leaders[pod.group] = LeaderView(pod.name, self._speaks(pod), self.now)
        return Observed(
            tuple(self.pods.values()),
            leaders,
            figures=self.figures,
            spares=tuple(self.spares.values()),
            no_more_spares=self.full,
        )

    def reachable(self, pod: PodView) -> bool:
        """Whether what runs as this pod can be heard."""
        return not pod.spare or pod.told_leader > 0

    def step(self) -> Plan:
        """One pass: look, plan, keep what must be kept, apply, write down."""
        return self.visit(Luck())

    def visit(self, luck: "Luck") -> Plan:
        """One pass as the operator does it, as far as it comes with this luck."""
        result = plan(self.desired, self.observe(), self.memory, self.now)
        ahead = intent(result.memory, result.actions)
        if ahead is not None and luck.refused:
            self.kept = ahead if luck.unheard else self.kept
            self._end_of_visit(luck)
            return result
        if ahead is not None:
            self.memory = self.kept = ahead
        done = in_order(result.actions)[: luck.acts]
        for action in done:
            self.apply(action)
        if len(done) == len(result.actions):
            self.memory = result.memory
            self.kept = self.kept if luck.unwritten else self.memory
        self._end_of_visit(luck)
        return result

    def _end_of_visit(self, luck: "Luck") -> None:
        if luck.dies:
            self.memory = self.kept

    def step_without_applying(self) -> Plan:
        """Look and plan only."""
        return plan(self.desired, self.observe(), self.memory, self.now)

    def settle(self, passes: int = 200) -> Plan:
        """Pass after pass, moving the clock to the next deadline, until nothing is planned and nothing waits."""
        for _ in range(passes):
            result = self.step()
            if result.actions:
                continue
            states = {group.state for group in result.status.groups}
            if not self.wake_up and states <= {GroupState.SERVING, GroupState.FAILED}:
                return result
            self.advance(min([*self.wake_up.values(), result.wake_at or self.now + 1]) - self.now)
        raise AssertionError(f"not settled: {result.status}")

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for name, when in list(self.wake_up.items()):
            if when <= self.now:
                del self.wake_up[name]
                if name in self.pods:
                    self._restart(name)

    def kill(self, name: str, code: int = -9, message: str = "killed") -> None:
        """The process ends; the kubelet stand-in restarts it at once, later, or never, as its exit code says."""
        pod = self.pods[name]
        if pod.deleting or pod.phase is not Phase.RUNNING:
            return
        if code in {0, 64, 65}:
            self.pods[name] = replace(pod, phase=Phase.EXITED, exit_code=code, message=message)
            return
        self.pods[name] = replace(pod, phase=Phase.BACKING_OFF, exit_code=code, message=message)
        wait = delay_s(pod.restarts + 1, self.desired.recovery)
        self.wake_up[name] = self.now + wait
        if wait == 0:
            self.advance(0)

    def vanish(self, name: str) -> None:
        self.pods.pop(name)
        self.wake_up.pop(name, None)

    def apply(self, action: object) -> None:
        match action:
            case CreatePod():
                assert action.name not in self.pods, "a pod is made once"
                assert action.name not in {made.name for made in self.created}, "a name is never used again"
                self.created.append(action)
                if action.stage == 0:
                    self.served.pop(action.group, None)  # it loads what it was made with
                self.pods[action.name] = self._made(action)
            case DeletePod():
                self.deleted.append(action)
                self.vanish(action.name)
            case DrainGroup():
                self.drained.append(action)
                self.draining.add(action.leader)
            case UndrainGroup():
                self.draining.discard(action.leader)
            case ReloadGroup(group, _, request):
                self.reloads.append(action)
                self._reload(group, request)
            case TellLeader():
                self.pods[action.pod] = replace(self.pods[action.pod], told_leader=action.incarnation)
            case _:
                self._apply_to_spares(action)

    def _apply_to_spares(self, action: object) -> None:
        match action:
            case CreateSpare():
                assert action.name not in self.spares
                self.spares[action.name] = PodView(
                    action.name,
                    SPARE,
                    SPARE,
                    action.number,
                    action.revision,
                    action.model_revision,
                    Phase.RUNNING,
                    f"127.1.0.{action.number}",
                    ready=True,
                    spare=action.number,
                    image=action.image,
                )
            case EndSpare():
                del self.spares[action.name]
            case AdoptSpare():
                place = {"group": action.group, "stage": action.stage, "incarnation": action.incarnation}
                self.adopted.append(action)
                self.pods[action.name] = replace(self.spares.pop(action.name), **place)  # type: ignore[arg-type]
            case Become():
                leaders = [pod for pod in self.pods.values() if (pod.group, pod.stage) == (action.request.index, 0)]
                newest = max(leaders, key=lambda pod: pod.incarnation)  # beside one that a dead node does not let go
                assert action.request.leader == newest.address
                if not self.deaf and action.pod in self.pods:
                    self.pods[action.pod] = replace(self.pods[action.pod], told_leader=action.leader)

    def pod(self, group: int, stage: int) -> PodView:
        return next(pod for pod in self.pods.values() if (pod.group, pod.stage) == (group, stage))

    def change(self, **changes: object) -> None:
        """Want something else; what groups were made of so far is remembered."""
        before = self.desired
        history = {**before.history, before.rendering.key: before.rendering}
        self.desired = replace(before, generation=before.generation + 1, history=history, **changes)  # type: ignore[arg-type]

    def _size(self, revision: str) -> int:
        sizes = {made.revision: made.stages for made in self.desired.history.values()}
        return {**sizes, self.desired.revision: self.desired.stages}.get(revision, self.desired.stages)

    def _reload(self, group: int, request: ReloadRequest) -> None:
        """Done at once, or refused: the leader's next word says so."""
        if request.model_revision in self.bad:
            self.failed[group] = ReloadState("Failed", request.model_revision, "truncated", "", True, request.wish)
            return
        self.failed.pop(group, None)
        self.served[group] = request.model_revision
        if request.source:
            self.sources[request.model_revision] = request.source

    def _made(self, action: CreatePod) -> PodView:
        leaders = [pod.incarnation for pod in self.pods.values() if (pod.group, pod.stage) == (action.group, 0)]
        return PodView(
            action.name,
            action.group,
            action.stage,
            action.incarnation,
            action.revision,
            action.model_revision,
            Phase.RUNNING,
            f"127.0.{action.group}.{len(self.created)}",
            started_at=self.now,
            told_leader=max(leaders, default=0),
            source=action.environment.get(Env.MODEL_PATH, ""),
            image=action.image,
        )

    def _restart(self, name: str) -> None:
        pod = self.pods[name]
        self.pods[name] = replace(pod, phase=Phase.RUNNING, restarts=pod.restarts + 1, started_at=self.now)

    def _speaks(self, leader: PodView) -> StateDocument:
        members = {p.stage: p for p in self.pods.values() if p.group == leader.group and not p.deleting}
        whole = all(
            stage in members
            and self.reachable(members[stage])
            and members[stage].phase is Phase.RUNNING
            and (stage == 0 or members[stage].told_leader == leader.incarnation)
            for stage in range(self._size(leader.revision))
        )
        whole = whole and leader.revision not in self.broken
        draining = leader.name in self.draining
        state = GroupState.DRAINING if draining else GroupState.SERVING if whole else GroupState.RECOVERING
        running = self.requests.get(leader.group, 0)
        revision = self.served.get(leader.group, leader.model_revision)
        reload = self.failed.get(leader.group, ReloadState())
        own = "" if leader.group in self.served else leader.source
        source = own or self.sources.get(revision, f"/models/{revision}")
        facts = {"model_revision": revision, "source": source, "reload": reload}
        return document(leader, state=state.value, draining=draining, running=running, **facts)
