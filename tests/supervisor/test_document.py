"""What the state document says: of limits the coordinator's word, which knows the model and the KV cache."""

from pathlib import Path

from bireme.names import GroupState, Reason
from bireme.wire.control import Standing
from bireme.wire.requests import Limits
from bireme.wire.state import ReloadState, StateDocument
from bireme_worker.coordinator.messages import Status
from bireme_worker.supervisor.document import build
from bireme_worker.supervisor.standing import Facts, judge
from tests.support.rank_threads import identity


def document(status: Status | None) -> StateDocument:
    who = identity(Path("/m"))
    return build(
        who,
        boot="b",
        standing=Standing(1, GroupState.SERVING, Reason.NONE, "", 0.0),
        stages=(),
        status=status,
        checkpoint=who.checkpoint,
        reload=ReloadState(),
        draining=False,
    )


def test_the_limits_are_those_that_the_coordinator_keeps_to() -> None:
    limits = Limits(1792, 64, 256, wanted=8192)
    assert document(Status(1, 0, 0, 0, 0, 0, 0, 0.0, False, 0, 0, 0, {}, limits=limits)).limits == limits


def test_before_the_coordinator_speaks_they_are_those_that_were_asked_for() -> None:
    who = identity(Path("/m"))
    assert document(None).limits == Limits(who.max_model_length, who.max_running_requests, who.max_queued_requests)


def test_the_same_words_are_told_once() -> None:
    told = "HTTP process 0 was ended by SIGKILL"
    facts = Facts(1, True, False, False, False, False, told, (Reason.LEADER_LOST, told), "", (), 0)
    assert judge(facts).message == told
