"""`/profile` of real supervisors over scripted ranks: one at a time, by the leader, and an end whatever happens."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from bireme.wire.control import ControlMessage, Profile, Profiled
from bireme.wire.profile import ProfileReport, ProfileRequest, read_report
from bireme_worker.supervisor import profiling
from bireme_worker.supervisor.profiling import ProfileFailed, Profiling
from tests.supervisor.pods import NOTHING_BY_TIME, PATIENCE_S, TOKEN, Pod, Pods, rank

Group = tuple[Pod, Pod]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    made = Pods(tmp_path_factory.mktemp("profiled"))
    yield made.group(**NOTHING_BY_TIME)
    made.end()


def _message(text: str) -> str:
    return str(msgspec.json.decode(text)["error"]["message"])


def _path(report: ProfileReport, stage: int, number: int) -> str:
    return f"/profile/trace?id={report.id}&stage={stage}&rank={number}"


@contextlib.asynccontextmanager
async def _recording(leader: Pod) -> AsyncIterator["asyncio.Task[tuple[int, str]]"]:
    """A profile that does not end by itself, because rank 0 of stage 0 goes on recording."""
    mark = leader.state_dir / "records-0"
    mark.touch()
    running = asyncio.create_task(leader.post("/profile"))
    async with asyncio.timeout(PATIENCE_S):
        while mark.exists():
            assert not running.done()
            await asyncio.sleep(0.02)
    yield running
    running.cancel()


async def test_the_answer_has_every_rank_and_the_leader_hands_out_every_trace(group: Group) -> None:
    leader, _ = group
    document = await leader.until_serving()
    code, text = await leader.post("/profile", {"steps": 2})
    assert code == 200, text
    report = read_report(text.encode())
    assert [(one.stage, one.rank) for one in report.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (report.epoch, report.group, report.model_revision) == (document.epoch, "g", "1")
    for stage in (0, 1):
        assert await leader.get(_path(report, stage, 1), TOKEN) == (200, "trace of 1")
    assert (await leader.get(_path(report, 0, 0)))[0] == 401
    code, text = await leader.get(_path(report, 1, 7), TOKEN)
    assert (code, "rank 7 has no trace" in text) == (400, True)
    assert (await leader.get(_path(report, 9, 0), TOKEN))[0] == 409


@pytest.mark.parametrize("query", ["", "?id=../../../x&stage=0&rank=0", "?id=0badcafe&stage=-1&rank=0"])
async def test_a_trace_is_asked_for_as_the_answer_names_it(group: Group, query: str) -> None:
    code, text = await group[0].get(f"/profile/trace{query}", TOKEN)
    assert (code, "id, stage and rank" in text) == (400, True)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"steps": -1}, "steps"),
        ({"steps": 100_000}, "1000"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": 31}, "30"),
        ({"seconds": "long"}, "seconds"),
        (b"{nonsense", "malformed"),
    ],
)
async def test_what_can_not_be_meant_is_refused_by_its_field(group: Group, body: object, names: str) -> None:
    leader, _ = group
    await leader.until_serving()
    code, text = await leader.post("/profile", body)
    assert (code, names in _message(text)) == (400, True)


async def test_a_second_profile_is_refused_while_one_runs_and_taken_when_whoever_asked_has_left(group: Group) -> None:
    leader, _ = group
    await leader.until_serving()
    async with _recording(leader):
        code, text = await leader.post("/profile")
        assert (code, "a profile is under way" in _message(text)) == (409, True)
    async with asyncio.timeout(PATIENCE_S):
        while (await leader.post("/profile"))[0] != 200:
            await asyncio.sleep(0.02)


async def test_a_rank_lost_meanwhile_ends_the_profile_by_name_and_the_group_recovers(group: Group) -> None:
    leader, other = group
    before = await leader.until_serving()
    async with _recording(leader) as running:
        os.kill(rank(before, 1, 1).pid, signal.SIGKILL)
        code, text = await running
    assert code == 409
    assert "the profile ended with its epoch: stage 1: rank 1" in _message(text)
    assert (await leader.until_serving(above=before.epoch)).epoch == before.epoch + 1
    await other.until_serving(above=before.epoch)
    assert (await leader.post("/profile"))[0] == 200


async def test_a_group_that_does_not_serve_and_another_stage_refuse(pods: Pods) -> None:
    leader = pods.make(0).start()
    await leader.until(lambda document: document.state == "Starting")
    code, text = await leader.post("/profile")
    assert (code, "does not serve" in _message(text)) == (409, True)
    other = pods.make(1).start()
    await other.until_serving()
    code, text = await other.post("/profile")
    assert (code, leader.address in _message(text)) == (409, True)


class Ranks:
    """Stands in for two ranks of one stage."""

    def __init__(self) -> None:
        self.told: list[Profile] = []
        self.profiling = Profiling("g", 1, 2, self._hear)

    def _hear(self, message: ControlMessage) -> None:
        assert isinstance(message, Profile)
        self.told.append(message)

    def say(self, number: int, error: str = "") -> None:
        self.profiling.hear(0, Profiled(self.told[0].id, number, error))


async def test_an_idle_group_is_told_to_be_given_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "PREPARE_S", 0.01)
    ranks = Ranks()
    with pytest.raises(ProfileFailed, match=r"no rank computed a step within 0\.01 s: send requests"):
        await ranks.profiling.run(ProfileRequest(), 7, "1")
    assert [message.phase for message in ranks.told] == ["Prepare", "Stop"]
    assert not ranks.profiling.runs


async def test_the_ranks_that_are_late_and_those_that_can_not_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "PREPARE_S", 0.2)
    for error, match in (("", "stage 0 rank 1 computed no step"), ("disk full", "stage 0: rank 0: disk full")):
        ranks = Ranks()
        running = asyncio.create_task(ranks.profiling.run(ProfileRequest(), 7, "1"))
        await asyncio.sleep(0)
        ranks.say(0, error)
        with pytest.raises(ProfileFailed, match=match):
            await running
