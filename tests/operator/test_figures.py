"""What routers say on their metrics pages becomes what a canary is judged by."""

import asyncio

import pytest

from bireme_operator.plan.figures import Served, Times
from bireme_operator.shell.exposition import Tally, read_page
from bireme_router.accounts import Accounts
from bireme_router.groups import Groups
from bireme_router.metrics import RouterMetrics
from bireme_router.outcome import Failed, Finished
from bireme_router.room import WaitingRoom
from bireme_router.selection import Selection


async def test_the_page_of_a_real_router_is_read_by_version() -> None:
    groups = Groups(Accounts(), asyncio.get_running_loop().time)
    metrics = RouterMetrics(groups, WaitingRoom(Selection(groups, groups._clock, lambda: 0.5), 10))
    canary, other = metrics.revision("rev2/model1"), metrics.revision("rev1/model1")
    for _ in range(3):
        canary.ended(Finished())
        canary.first_token.observe(0.3)
    canary.ended(Failed(b"{}"))
    canary.gap.observe(0.02, 10)
    other.ended(Finished())
    found = read_page(metrics.page().decode())
    assert found.keys() == {"rev2/model1", "rev1/model1"}
    assert (found["rev2/model1"].finished, found["rev2/model1"].failed) == (3, 1)
    first, gap = found["rev2/model1"].first_token, found["rev2/model1"].gap
    assert first.count == 3
    assert first.mean_s == pytest.approx(0.3)
    assert dict(first.counts)[0.5] == 3
    assert gap.count == 10
    assert gap.mean_s == pytest.approx(0.02)
    assert found["rev1/model1"].requests == 1


def test_what_is_no_page_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match="invalid metric name"):
        read_page("<html>not here</html>")


def counted(requests: int) -> dict[str, Served]:
    return {"a": Served(requests, 0, Times(((1.0, requests), (float("inf"), 0)), 0.5 * requests))}


def test_only_what_comes_after_the_first_page_of_a_router_counts() -> None:
    tally = Tally()
    tally.take("one", counted(100))
    assert tally.versions == {}
    tally.take("one", counted(130))
    tally.take("two", counted(5000))
    tally.take("two", counted(5010))
    assert (tally.versions["a"].requests, tally.versions["a"].first_token.count) == (40, 40)
    assert tally.versions["a"].first_token.mean_s == pytest.approx(0.5)


def test_a_router_that_counts_from_zero_again_takes_nothing_back() -> None:
    tally = Tally()
    tally.take("one", counted(100))
    tally.take("one", counted(130))
    tally.take("one", counted(7))
    tally.take("one", counted(9))
    assert tally.versions["a"].requests == 32


def test_a_version_that_appears_later_counts_from_its_first_request() -> None:
    tally = Tally()
    tally.take("one", counted(100))
    tally.take("one", counted(100) | {"b": Served(3, 1)})
    assert (tally.versions["b"].finished, tally.versions["b"].failed) == (3, 1)
