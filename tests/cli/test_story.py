"""What `bireme why` makes of conditions, events and timings: sentences that a person can act on."""

from typing import Any

from bireme.cli.story import WHOLE, Told, ago, all_serve, read_note, seconds, tell

NOW = seconds("2026-11-28T12:00:00Z")
LOSS = NOW - 600


def _content(*groups: dict[str, Any], **conditions: tuple[str, str, str]) -> dict[str, Any]:
    said = [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _at(NOW - 60)}
        for kind, (status, reason, message) in conditions.items()
    ]
    serving = sum(group["state"] == "Serving" for group in groups)
    return {
        "metadata": {"name": "demo"},
        "spec": {"replicas": 2},
        "status": {"readyReplicas": serving, "conditions": said, "groups": list(groups)},
    }


def _at(when: float) -> str:
    return f"2026-11-28T{12 + int(when - NOW) // 3600:02d}:{int(when - NOW) // 60 % 60:02d}:{int(when) % 60:02d}Z"


def _group(index: int = 0, state: str = "Serving", reason: str = "None", message: str = "", **more: Any) -> Any:
    group = {"index": index, "state": state, "reason": reason, "message": message, "epoch": 7, "since": _at(NOW - 60)}
    return group | more


READY = {"Ready": ("True", "AllGroupsServing", "")}


def test_a_recovery_is_told_from_the_loss_to_the_service() -> None:
    told = [
        Told(NOW - 900, "GroupServing", 0, "epoch 6 after 12.0 s"),
        Told(LOSS - 0.002, "StageReplaced", 0, "stage 1 is made anew as demo-0-1-abc"),
        Told(LOSS, "GroupLostPart", 0, "StageLost: pod demo-0-1-old is gone"),
        Told(LOSS + 2.3, "GroupServing", 0, "epoch 7 after 2.3 s"),
        Told(LOSS + 9, "GroupServing", 1, "epoch 1 after 9.0 s"),
    ]
    timings = {"totalMilliseconds": 2300, "loadMilliseconds": 1100}
    _, group = tell(_content(_group(restarts=2, timings=timings), **READY), told, NOW)
    assert group == (
        "Group 0 serves epoch 7 since 2026-11-28T11:59:00Z (60 s ago). "
        "Its last recovery: at 2026-11-28T11:50:00Z it lost a part (StageLost: pod demo-0-1-old is gone); "
        "0.0 s later stage 1 is made anew as demo-0-1-abc; 2.3 s later it served again, epoch 7 after 2.3 s. "
        "Its parts were restarted twice in all. Its last start or recovery took 2.3 s (loading weights 1.1 s)."
    ).replace("twice", "2 times")


def test_what_befell_a_group_before_that_had_the_same_index_is_not_told() -> None:
    told = [
        Told(LOSS, "GroupLostPart", 0, "StageLost: pod demo-0-1-old is gone"),
        Told(LOSS + 60, "GroupCreated", 0, "2 stages"),
        Told(LOSS + 69, "GroupServing", 0, "epoch 1 after 9.0 s"),
    ]
    _, group = tell(_content(_group(), **READY), told, NOW)
    assert "Nothing of it was lost." in group


def test_a_recovery_that_goes_on_ends_with_what_is_waited_for() -> None:
    group = _group(1, "Recovering", "StageLost", "stage 1 is being started again")
    told = [Told(LOSS, "GroupLostPart", 1, "StageLost: stage 1: ended by SIGKILL")]
    content = _content(_group(), group, Ready=("False", "SomeGroupsServing", "1 of 2 groups serve, 1 Recovering"))
    first, _, second = tell(content, told, NOW)
    assert "demo: 1 of 2 groups serve. It is not ready since" in first
    assert "(SomeGroupsServing: Fewer groups than wanted serve): 1 of 2 groups serve, 1 Recovering." in first
    assert "Group 1 is Recovering" in second
    assert "(StageLost: A stage's supervisor or its connection ended): stage 1 is being started again." in second
    assert second.endswith("it lost a part (StageLost: stage 1: ended by SIGKILL).")
    assert not all_serve(content)


def test_a_group_that_lost_nothing_says_so_and_one_whose_events_are_gone_says_that() -> None:
    _, calm, old = tell(_content(_group(), _group(1, restarts=1), **READY), [], NOW)
    assert "Nothing of it was lost." in calm
    assert "restarted once; the events of that are gone" in old


def test_a_stalled_deployment_says_why() -> None:
    first, *_ = tell(_content(_group(), Stalled=("True", "RolledBack", "2 groups serve it")), [], NOW)
    assert "It is stalled since" in first
    assert "RolledBack: A rollout failed; the groups have gone back" in first


def test_what_a_resume_would_do_is_told() -> None:
    failed = _group(1, "Failed", "BudgetExhausted", "7 restarts within 3600 s")
    unready = {"Ready": ("False", "SomeGroupsServing", "1 of 2 groups serve, 1 Failed")}
    first, *_ = tell(_content(_group(), failed, **unready), [], NOW)
    assert first.endswith("`bireme resume demo` gives it a fresh restart budget.")
    first, *_ = tell(_content(_group(), Ready=("True", "Paused", "2 of 2 groups serve")), [], NOW)
    assert first.endswith("`bireme resume demo` goes on.")
    first, *_ = tell(_content(_group(), Stalled=("True", "CanaryFailed", "too slow")), [], NOW)
    assert first.endswith("`bireme resume demo` tries that rollout once more.")
    assert "resume" not in tell(_content(_group(), **READY), [], NOW)[0]


def test_how_long_nobody_knew_of_a_loss_is_told_first() -> None:
    timings = {"totalMilliseconds": 21_000, "detectMilliseconds": 18_750, "loadMilliseconds": 2_000}
    _, group = tell(_content(_group(timings=timings), **READY), [], NOW)
    assert group.endswith("Its last start or recovery took 21.0 s (seeing it 18.8 s, loading weights 2.0 s).")


def test_an_object_that_nobody_looked_at_is_no_success() -> None:
    content = {"metadata": {"name": "demo"}, "spec": {}}
    assert "no operator has looked at it" in tell(content, [], NOW)[0]
    assert not all_serve(content)


def test_events_about_one_group_and_about_many_are_told_apart() -> None:
    assert list(read_note(1.0, "GroupServing", "group 3: epoch 4")) == [Told(1.0, "GroupServing", 3, "epoch 4")]
    many = list(read_note(1.0, "GroupCreated", "7 groups (0, 1, 2, 3, 4, 5, 6); group 0: 2 stages"))
    assert [one.group for one in many] == list(range(7))
    assert {one.message for one in many} == {"2 stages"}
    assert [one.group for one in read_note(1.0, "E", "30 groups (4, 5, …); group 4: x")] == [4, 5]
    assert list(read_note(1.0, "CanaryFailed", "too slow")) == [Told(1.0, "CanaryFailed", WHOLE, "too slow")]


def test_what_concerns_the_whole_deployment_stands_first() -> None:
    told = [Told(LOSS, "CanaryStarted", WHOLE, "1 groups serve"), Told(LOSS + 60, "CanaryFailed", WHOLE, "too slow")]
    assert tell(_content(_group(), **READY), told, NOW)[0].endswith("At 2026-11-28T11:51:00Z CanaryFailed: too slow.")


def test_times_are_told_in_the_unit_that_a_person_would_use() -> None:
    assert [ago(NOW - past, NOW) for past in (3, 119, 121, 7300, 200_000)] == [
        "3 s ago", "119 s ago", "2 minutes ago", "2 hours ago", "2 days ago",
    ]  # fmt: skip
