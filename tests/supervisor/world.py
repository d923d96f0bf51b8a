"""A whole group in one pure object: the leader's machine, every stage's machine, ranks and coordinator, and the
messages between them, delivered one at a time in whatever order a test chooses."""

from collections import deque

from bireme.wire.control import (
    Address,
    Checkpoint,
    Committed,
    ControlMessage,
    Discard,
    End,
    Ended,
    Form,
    Formed,
    Hello,
    Load,
    Loaded,
    Prepared,
)
from bireme.wire.control import Stage as StageCheckpoint
from bireme.wire.plan import Commit
from bireme.wire.state import ReloadRequest
from bireme_worker.coordinator.messages import Begin, Begun, CoordinatorKinds, Finish, Quiet, Reload, Serve, Swap
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.membership import Group, Membership, Phase
from bireme_worker.supervisor.stage import Action, Stage, ToLeader, ToRank

CHECKPOINT = Checkpoint("/models/m", "1")


class RankModel:
    """A rank that does what it is told, one message at a time."""

    def __init__(self) -> None:
        self.alive = False
        self.epoch = 0
        self.weights: Checkpoint | None = None
        self.staged: Checkpoint | None = None
        self.inbox: deque[ControlMessage | Commit] = deque()


class Node:
    """One stage: its machine, its ranks, its end of a conversation."""

    def __init__(self, stage: int, tensor: int, incarnation: int, last_epoch: int, file: Checkpoint) -> None:
        self.stage = stage
        self.incarnation = incarnation
        self.file = file
        self.machine = Stage(tensor, file, last_epoch)
        self.ranks = [RankModel() for _ in range(tensor)]
        self.connection = 0
        self.down: deque[ControlMessage] = deque()


class World:
    """``serves`` logs every epoch that was told to serve; ``begun`` every epoch that was opened.

    ``served`` logs the weights of each of them, reloads included; a new pod is made of the last of these, as the
    operator does. ``bad`` has the model revisions that no rank can verify.
    """

    def __init__(self, stages: int, tensor: int) -> None:
        self.stages, self.tensor = stages, tensor
        self.now = 0.0
        self.file_epoch = 0
        self.served = [CHECKPOINT]
        self.bad: set[str] = set()
        self.incarnation = 1
        self.begun: list[int] = []
        self.serves: list[int] = []
        self.formed: dict[int, set[tuple[int, int]]] = {}
        self.coordinator_up = False
        self.coordinator: deque[CoordinatorKinds] = deque()
        self.to_leader: dict[int, deque[ev.Event]] = {}
        self._connections = 0
        self.nodes = [Node(stage, tensor, 1, 0, CHECKPOINT) for stage in range(stages)]
        self._new_leader()

    def _new_leader(self) -> None:
        file = self.nodes[0].file
        group = Group("g", self.stages, self.tensor, self.incarnation, Address("127.0.0.1", 8003), file)
        self.leader = Membership(group, Limits(), self.file_epoch, self.now)
        self.to_leader.clear()
        self.coordinator.clear()
        self.coordinator_up = False
        self.tell(ev.FrontChanged(up=True))

    # -- what may happen ------------------------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> None:
        for effect in self.leader.handle(event, self.now):
            self._do(effect)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.tell(ev.Tick())

    def deliver_up(self, stage: int) -> None:
        queue = self.to_leader.get(self.nodes[stage].connection)
        if queue:
            self.tell(queue.popleft())

    def notice_cut(self) -> None:
        """The leader hears the rest of a conversation that the stage has left already."""
        live = {node.connection for node in self.nodes}
        for connection in [c for c in self.to_leader if c not in live]:
            for event in self.to_leader.pop(connection):
                self.tell(event)

    def deliver_down(self, stage: int) -> None:
        node = self.nodes[stage]
        if node.down:
            self._perform(node, node.machine.leader_said(node.down.popleft()))

    def rank_step(self, stage: int, rank: int) -> None:
        node, model = self.nodes[stage], self.nodes[stage].ranks[rank]
        if model.alive and model.inbox:
            answer = self._answer(stage, rank, model, model.inbox.popleft())
            if answer is not None:
                self._perform(node, node.machine.rank_said(rank, answer))

    def kill_rank(self, stage: int, rank: int) -> None:
        node, model = self.nodes[stage], self.nodes[stage].ranks[rank]
        if model.alive:
            node.ranks[rank] = RankModel()
            self._perform(node, node.machine.rank_down(rank, "RankLost", f"rank {rank} was ended"))

    def start_rank(self, stage: int, rank: int) -> None:
        node, model = self.nodes[stage], self.nodes[stage].ranks[rank]
        if not model.alive:
            model.alive = True
            self._perform(node, node.machine.rank_up(rank))

    def silence(self, stage: int, rank: int) -> None:
        if self.nodes[stage].ranks[rank].alive:
            self._perform(self.nodes[stage], self.nodes[stage].machine.rank_silent(rank, "no beat"))

    def hear(self, stage: int, rank: int) -> None:
        self._perform(self.nodes[stage], self.nodes[stage].machine.rank_heard(rank))

    def cut(self, stage: int) -> None:
        node = self.nodes[stage]
        if node.connection:
            queue = self.to_leader.setdefault(node.connection, deque())
            queue.append(ev.Left(node.connection, "cut"))
            node.connection = 0
            node.down.clear()
            self._perform(node, node.machine.disconnect())

    def dial(self, stage: int) -> None:
        node = self.nodes[stage]
        if not node.connection:
            self._connections += 1
            node.connection = self._connections
            data = tuple(Address("127.0.0.1", 8010 + rank) for rank in range(self.tensor))
            boot, known = f"b{self._connections}", node.machine.checkpoint
            hello = Hello("g", stage, node.incarnation, boot, node.machine.last_epoch, data, None, known)
            self.to_leader[node.connection] = deque([ev.Joined(node.connection, hello)])
            self._perform(node, node.machine.connect())

    def restart_stage(self, stage: int, *, replaced: bool) -> None:
        """The supervisor of a stage is killed and started again, in place or as a new pod."""
        old = self.nodes[stage]
        self.cut(stage)
        incarnation = old.incarnation + replaced
        last_epoch = 0 if replaced else old.machine.last_epoch
        ordered = Checkpoint(self.served[-1].source, self.served[-1].model_revision)
        self.nodes[stage] = Node(stage, self.tensor, incarnation, last_epoch, ordered if replaced else old.file)

    def restart_leader(self, *, replaced: bool) -> None:
        """Stage 0 is killed and started again, in place or as a new pod without its file."""
        self.restart_stage(0, replaced=replaced)
        for stage in range(1, self.stages):
            self.cut(stage)
        self.incarnation = self.nodes[0].incarnation
        self.file_epoch = 0 if replaced else self.file_epoch
        self._new_leader()

    def start_coordinator(self) -> None:
        if not self.coordinator_up:
            self.coordinator_up = True
            self.coordinator.clear()
            self.tell(ev.CoordinatorUp())

    def kill_coordinator(self) -> None:
        if self.coordinator_up:
            self.coordinator_up = False
            self.tell(ev.CoordinatorDown("the coordinator was ended"))

    def coordinator_step(self) -> None:
        if self.coordinator_up and self.coordinator:
            message = self.coordinator.popleft()
            match message:
                case Begin(epoch):
                    self.tell(ev.CoordinatorSaid(Begun(epoch)))
                case Reload(epoch, generation):
                    self.tell(ev.CoordinatorSaid(Quiet(epoch, generation)))
                case Swap(epoch, generation):
                    for node in self.nodes:
                        for model in node.ranks:
                            model.inbox.append(Commit(epoch, generation))

    def reload(self, ahead: int) -> bool:
        """The operator posts a wish for a later checkpoint (0: the served one), and hears whether it was taken."""
        served = self.leader.checkpoint
        revision = str(int(served.model_revision) + ahead)
        asked = ReloadRequest(f"/models/{revision}" if ahead else served.source, revision)
        if self.leader.reloading.refusal(asked, serving=self.serving):
            return False
        self.tell(ev.ReloadAsked(asked))
        return True

    def settle(self, rounds: int = 80) -> None:
        """Everything that was lost returns, every message arrives, time passes."""
        for _ in range(rounds):
            self.start_coordinator()
            self.notice_cut()
            for stage in range(self.stages):
                self.dial(stage)
                for rank in range(self.tensor):
                    self.start_rank(stage, rank)
                    self.hear(stage, rank)
                    self.rank_step(stage, rank)
                self.deliver_up(stage)
                self.deliver_down(stage)
            self.coordinator_step()
            self.tick(0.2)

    # -- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        epochs = {model.epoch for node in self.nodes for model in node.ranks if model.epoch}
        assert len(epochs) <= 1, f"ranks are in several epochs at once: {epochs}"
        assert self.begun == sorted(set(self.begun)), f"epochs must grow: {self.begun}"
        assert self.serves == sorted(set(self.serves))
        order = [int(checkpoint.model_revision) for checkpoint in self.served]
        assert order == sorted(order), f"superseded weights were served again: {order}"

    @property
    def serving(self) -> bool:
        return self.leader.phase is Phase.SERVING and self.leader.standing.state == "Serving"

    # -- how messages travel --------------------------------------------------------------------------------------

    def _answer(
        self, stage: int, rank: int, model: RankModel, message: ControlMessage | Commit
    ) -> ControlMessage | None:
        match message:
            case StageCheckpoint(checkpoint):
                model.staged = checkpoint
                error = "truncated" if checkpoint.model_revision in self.bad else ""
                return Prepared(checkpoint.generation, rank, error)
            case Discard(generation) if model.staged is not None and model.staged.generation == generation:
                model.staged = None
                return None
            case Commit(epoch, generation) if epoch == model.epoch:
                assert model.staged is not None, "a commit of what was never staged"
                assert model.staged.generation == generation
                model.weights, model.staged = model.staged, None
                return Committed(generation, rank)
            case Load(checkpoint):
                model.weights = checkpoint
                return Loaded(checkpoint, 100 + stage, rank)
            case Form(epoch):
                model.epoch = epoch
                self.formed.setdefault(epoch, set()).add((stage, rank))
                return Formed(epoch, rank)
            case End(epoch):
                model.epoch = 0
                return Ended(epoch, rank)
            case _:
                return None

    def _perform(self, node: Node, actions: list[Action]) -> None:
        self._record(node, node.machine.checkpoint)
        for action in actions:
            match action:
                case ToRank(rank, message):
                    node.ranks[rank].inbox.append(message)
                case ToLeader(message) if node.connection:
                    self.to_leader[node.connection].append(ev.Said(node.connection, message))

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(connection, message):
                for node in self.nodes:
                    if node.connection == connection:
                        node.down.append(message)
            case ev.Drop(connection, _):
                for node in self.nodes:
                    if node.connection == connection:
                        self.cut(node.stage)
            case ev.Record(epoch):
                self.file_epoch = epoch
                self._record(self.nodes[0], self.leader.checkpoint)
            case ev.ToCoordinator(message):
                self._coordinate(message)

    def _record(self, node: Node, checkpoint: Checkpoint) -> None:
        """As ``StateFile``: the highest generation stays."""
        if checkpoint.generation >= node.file.generation:
            node.file = checkpoint

    def _coordinate(self, message: CoordinatorKinds) -> None:
        match message:
            case Begin(epoch):
                self.begun.append(epoch)
            case Serve(epoch):
                everyone = {(s, r) for s in range(self.stages) for r in range(self.tensor)}
                assert self.formed[epoch] == everyone, f"epoch {epoch} serves before all have formed"
                weights = {model.weights for node in self.nodes for model in node.ranks if model.weights is not None}
                assert weights == {self.leader.checkpoint}, f"epoch {epoch} serves with {weights}"
                if epoch not in self.serves:
                    self.serves.append(epoch)
                self.served.append(self.leader.checkpoint)
            case Finish(epoch):
                assert epoch == self.begun[-1]
        if self.coordinator_up:
            self.coordinator.append(message)
