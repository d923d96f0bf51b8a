"""What the kubelet says becomes what the planner sees; late and missing events do no harm."""

from typing import Any

import pytest

from bireme.names import GroupState, Reason
from bireme_operator.plan.memory import Draining, Failure, GroupMemory, Memory, Purpose, Transition, without_pods
from bireme_operator.plan.observed import Phase
from bireme_operator.shell.notes import read_memory, write_memory
from bireme_operator.shell.records import record_of
from bireme_operator.shell.store import Store

KEY = ("default", "demo")
ENDED = {"exitCode": 70, "reason": "Error", "message": "a line\nbireme-worker: Hung: rank 1\n"}


def pod(version: int = 1, uid: str = "u1", status: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    labels = {"bireme.dev/group": "1", "bireme.dev/stage": "0", "bireme.dev/incarnation": "3"}
    owner = {"kind": "InferenceDeployment", "name": "demo", "uid": "owner", "controller": True}
    metadata = {
        "name": "demo-1-0-x", "namespace": "default", "uid": uid, "resourceVersion": str(version),
        "labels": labels, "ownerReferences": [owner], **meta,
    }  # fmt: skip
    return {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status or {}}


def container(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    worker = {"name": "worker", "restartCount": restarts, "state": state, "lastState": last or {}}
    return {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [worker]}


def initial(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    first = {"name": "fetch", "restartCount": restarts, "state": state, "lastState": last or {}}
    return container({"waiting": {"reason": "PodInitializing"}}) | {"initContainerStatuses": [first]}


CASES: dict[str, tuple[dict[str, Any], Phase, int]] = {
    "nothing yet": ({}, Phase.PENDING, 0),
    "pulling": (container({"waiting": {"reason": "ContainerCreating"}}), Phase.PENDING, 0),
    "running": (container({"running": {}}), Phase.RUNNING, 0),
    "running again": (container({"running": {}}, {"terminated": ENDED}, 2), Phase.RUNNING, 2),
    "waits to be restarted": (container({"waiting": {}}, {"terminated": ENDED}, 2), Phase.BACKING_OFF, 3),
    "has just ended": (container({"terminated": ENDED}, None, 0), Phase.BACKING_OFF, 1),
    "bad checkpoint": (container({"waiting": {}}, {"terminated": {"exitCode": 65}}, 0), Phase.EXITED, 1),
    "its init container fails": (initial({"waiting": {}}, {"terminated": {"exitCode": 65}}, 2), Phase.BACKING_OFF, 3),
    "its init container runs again": (initial({"running": {}}, {"terminated": ENDED}, 3), Phase.PENDING, 3),
    "its init container has done its work": (initial({"terminated": {"exitCode": 0}}, None, 0), Phase.PENDING, 0),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, Phase.EXITED, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_kubelet_s_words_are_translated(case: str) -> None:
    status, phase, deaths = CASES[case]
    record = record_of(pod(status=status))
    assert record is not None
    assert (record.view.phase, record.view.deaths) == (phase, deaths)


def test_the_last_line_says_why_a_stage_ended() -> None:
    record = record_of(pod(status=container({"waiting": {}}, {"terminated": ENDED}, 1)))
    assert record is not None
    assert (record.view.message, record.view.exit_code) == ("bireme-worker: Hung: rank 1", 70)


@pytest.mark.parametrize("state", ["waiting", "running"])  # by the time that anybody looks it may run again
def test_an_init_container_that_fails_is_named_and_its_exit_code_is_not_taken_for_the_worker_s(state: str) -> None:
    record = record_of(pod(status=initial({state: {}}, {"terminated": {"exitCode": 65, "reason": "Error"}}, 1)))
    assert record is not None
    assert (record.view.message, record.view.exit_code) == ("init container fetch: Error (exit code 65)", None)


def test_gates_and_the_node_that_a_pod_was_let_go_for_are_seen() -> None:
    body = pod()
    body["spec"] = {"schedulingGates": [{"name": "bireme.dev/gang"}, {"name": "example.com/mine"}]}
    waiting = record_of(body)
    body["spec"] = {
        "schedulingGates": [{"name": "example.com/mine"}],
        "nodeSelector": {"kubernetes.io/hostname": "n3"},
    }
    lifted = record_of(body)
    assert waiting is not None
    assert lifted is not None
    assert (waiting.view.gated, waiting.view.aim) == (True, "")
    assert (lifted.view.gated, lifted.view.aim) == (False, "n3")


def test_a_pod_without_a_node_has_the_scheduler_s_words() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    record = record_of(pod(status={"phase": "Pending", "conditions": [condition]}))
    assert record is not None
    assert (record.view.unplaced, record.view.message) == (True, "0/4 nodes")


def test_a_pod_that_the_scheduler_has_not_come_to_since_it_was_let_go_is_not_refused() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}
    record = record_of(pod(status={"phase": "Pending", "conditions": [condition]}))
    assert record is not None
    assert not record.view.unplaced


def test_a_pod_of_somebody_else_is_no_stage() -> None:
    assert record_of(pod(labels={"bireme.dev/group": "1"})) is None
    for stranger in (pod(ownerReferences=[]), pod(labels={"bireme.dev/stage": "x"})):
        record = record_of(stranger)
        assert record is not None
        assert (record.owner_uid, record.view.node) == ("", "n1"), "it takes room of its node all the same"


def test_a_pod_that_is_orphaned_is_not_planned_with_any_more() -> None:
    store = Store(lambda: 100.0)
    named = pod()["metadata"]["labels"] | {"bireme.dev/deployment": "demo"}
    store.see_pod(pod(5, labels=named))
    assert store.see_pod(pod(6, labels=named, ownerReferences=[])) == KEY
    assert store.views(KEY, "owner") == ()
    assert [record.uid for record in store.everything()] == ["u1"]
    store.see_pod(pod(7, labels=named, ownerReferences=[]), gone=True)
    assert not list(store.everything())


def test_a_label_that_somebody_wrote_onto_a_stage_hides_it_from_nobody() -> None:
    body = pod()
    body["metadata"]["labels"]["bireme.dev/spare"] = "yes"
    assert record_of(body) == record_of(pod())


def test_a_late_event_never_undoes_what_is_known() -> None:
    store = Store(lambda: 100.0)
    store.see_pod(pod(5, status=container({"running": {}})))
    assert store.see_pod(pod(4)) is None
    assert [view.phase for view in store.views(KEY, "owner")] == [Phase.RUNNING]


def test_a_pod_that_is_gone_stays_gone_whatever_comes_late() -> None:
    store = Store(lambda: 100.0)
    store.see_pod(pod(5))
    store.replace_pods(KEY, [])
    assert store.see_pod(pod(6)) is None
    store.replace_pods(KEY, [pod(6)])
    assert store.views(KEY, "owner") == ()


def test_a_pod_whose_labels_were_taken_and_given_back_is_there_again() -> None:
    store = Store(lambda: 100.0)
    store.see_pod(pod(5))
    assert store.see_pod(pod(6), gone=True) == KEY, "for whoever watches by labels it is gone"
    assert store.see_pod(pod(6)) is None
    assert store.see_pod(pod(7)) == KEY
    assert len(store.views(KEY, "owner")) == 1


def test_an_event_that_changes_nothing_for_a_plan_asks_for_no_visit() -> None:
    store = Store(lambda: 100.0)
    assert store.see_pod(pod(5)) == KEY
    assert store.see_pod(pod(6, annotations={"a": "b"})) is None


def test_a_start_is_dated_once_by_our_own_clock_and_a_restart_anew() -> None:
    now = [100.0]
    store = Store(lambda: now[0])
    store.see_pod(pod(1, status=container({"running": {"startedAt": "1999-01-01T00:00:00Z"}})))
    now[0] = 200.0
    store.see_pod(pod(2, status=container({"running": {}}) | {"podIP": "10.0.0.8"}))
    assert store.views(KEY, "owner")[0].started_at == 100.0
    store.see_pod(pod(3, status=container({"running": {}}, {"terminated": ENDED}, 1)))
    assert store.views(KEY, "owner")[0].started_at == 200.0


def test_what_a_member_was_told_is_forgotten_when_it_starts_again() -> None:
    store = Store(lambda: 100.0)
    store.see_pod(pod(1, status=container({"running": {}})))
    store.told(store.pods(KEY, "owner")[0], 3)
    assert store.views(KEY, "owner")[0].told_leader == 3
    store.see_pod(pod(2, status=container({"running": {}}, {"terminated": ENDED}, 1)))
    assert store.views(KEY, "owner")[0].told_leader == 0


def test_the_pods_of_an_object_that_had_the_name_before_are_not_ours() -> None:
    store = Store(lambda: 100.0)
    store.see_pod(pod(1))
    assert store.views(KEY, "another owner") == ()


def test_a_status_of_our_own_asks_for_no_visit_and_a_change_of_spec_does() -> None:
    store = Store(lambda: 100.0)

    def seen(version: int, generation: int) -> bool:
        meta = {"namespace": "default", "name": "demo", "uid": "u", "generation": generation}
        return store.see_deployment({"metadata": meta | {"resourceVersion": str(version)}})

    assert seen(1, 1)
    assert not seen(2, 1)
    assert seen(3, 2)
    assert not seen(2, 1), "an old event"


def test_memory_survives_as_text() -> None:
    group = GroupMemory(
        3, 1.5, None, GroupState.FAILED, 2.5, 7, {0: 1, 1: 2}, {"a": 1}, frozenset({"b"}), (1.0, 2.0), "words", 4,
        Failure(Reason.HUNG, "why", "key"), Draining(9.0, Purpose.ROLL),
    )  # fmt: skip
    memory = Memory({3: group}, {"Ready": Transition(status=True, since=1.0)}, 5)
    assert read_memory(write_memory(memory)) == memory


@pytest.mark.parametrize("text", ["", "no base64!", "aGVsbG8="])
def test_a_memory_that_can_t_be_read_is_lost_and_stops_nothing(text: str) -> None:
    assert read_memory(text) == Memory()


def test_a_pod_that_could_not_be_made_is_not_missed() -> None:
    memory = Memory({0: GroupMemory(0, 1.0, 1.0, counted={"made": 0, "refused": 0})})
    assert without_pods(memory, ["refused"]).groups[0].counted == {"made": 0}
