"""A status is written down anew only where it says something else."""

from dataclasses import replace

from bireme_operator.plan.plan import plan
from bireme_operator.plan.rest import Rest
from bireme_operator.shell.status_content import StatusContent
from tests.planner.world import World, wanted


def test_it_is_the_whole_status_without_the_memory_and_what_stays_is_not_written_down_again() -> None:
    world, content, rest = World(wanted(replicas=3)), StatusContent(), Rest()
    world.settle()
    for _ in range(2):
        world.memory = plan(world.desired, world.observe(), world.memory, world.now, rest).memory
    seen = world.observe()
    first = plan(world.desired, seen, world.memory, world.now, rest).status
    before = content.of(first)
    assert before == first.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"memory"})
    lost = replace(seen, pods=tuple(pod for pod in seen.pods if (pod.group, pod.stage) != (1, 1)))
    second = plan(world.desired, lost, world.memory, world.now, rest).status
    after = content.of(second)
    assert after == second.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"memory"})
    assert after["groups"][1] != before["groups"][1]
    assert [after["groups"][index] is before["groups"][index] for index in range(3)] == [True, False, True]
