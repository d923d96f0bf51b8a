"""An engine that is not ours has no admin port: nobody is called there, and only its pods' probes speak for its nodes."""

from dataclasses import replace

from bireme_operator.plan.actions import CreatePod, TellLeader
from bireme_operator.plan.observed import Observed, Phase, PodView
from bireme_operator.plan.plan import plan
from bireme_operator.plan.suspects import suspects
from tests.planner.world import START, World, wanted

POD = PodView("demo-0-0", 0, 0, 1, "rev1", "model1", Phase.RUNNING, "127.0.0.9", node="n0", ready=True)


def test_no_member_is_told_who_leads() -> None:
    world = World(wanted(replicas=1, custom=True))
    made = [action for action in world.step().actions if isinstance(action, CreatePod)]
    pods = tuple(
        replace(POD, name=one.name, stage=one.stage, incarnation=one.incarnation, started_at=START) for one in made
    )
    result = plan(world.desired, Observed(pods), world.memory, START + 60)
    assert result.status.ready_replicas == 1
    assert not any(isinstance(action, TellLeader) for action in result.actions)


def test_its_node_is_doubted_when_its_pod_is_not_ready_and_never_for_its_silence() -> None:
    def doubted(**changes: object) -> frozenset[str]:
        pod = replace(POD, **changes)  # type: ignore[arg-type]
        return suspects(Observed((pod,)), START + 3600, custom=True)

    assert doubted() == frozenset()
    assert doubted(ready=False) == {"n0"}
    assert doubted(ready=False, deleting=True) == frozenset()
    assert doubted(phase=Phase.PENDING, started_at=START) == {"n0"}, "it may have died before it started the pod"
    assert doubted(phase=Phase.PENDING, started_at=START + 3599) == frozenset()
