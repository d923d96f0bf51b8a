"""The page at `/` in a real browser: eight groups, one of them recovering, wide and on a phone, by day and by night."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bireme.wire.state import RankState, StageState
from tests.router.conftest import Fleet, Launch
from tests.support.browser import CHROMIUM, browser
from tests.support.stub_leader import Serve

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"
)
SHOTS = os.environ.get("BIREME_SCREENSHOTS")
"""A directory to keep the pictures in, for people who want to look."""


def stages(lost: int | None = None) -> tuple[StageState, ...]:
    """Two stages of two ranks; all ranks of stage ``lost`` are gone."""
    return tuple(
        StageState(stage, 1, "b", 0.1, tuple(RankState(r, stage != lost, 1, "Formed", 812, 0.0, 1) for r in range(2)))
        for stage in range(2)
    )


async def eight_groups(launch: Launch) -> Fleet:
    fleet = await launch(8)
    for number, leader in enumerate(fleet.leaders):
        used = 12 + 9 * number
        await leader.change(stages=stages(), kv_blocks_used=used, running=number % 3, epoch=1 + number % 2)
    await fleet.leaders[2].change(
        state="Recovering", reason="StageLost", message="stage 1 was lost, its pod is replaced"
    )
    await fleet.client.until_ready(7)
    await fleet.leaders[2].change(state="Serving", reason="None", message="", epoch=2)
    await fleet.client.until_ready(8)
    lost = "stage 1 of 2 was lost (its supervisor's connection ended); epoch 4 forms when its pod is back"
    await fleet.leaders[5].change(state="Recovering", reason="StageLost", message=lost, epoch=3, stages=stages(lost=1))
    await fleet.client.until_ready(7)
    return fleet


@needs_browser
@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("wide", (1360, 1000), "light"), ("night", (1360, 1000), "dark"), ("phone", (390, 844), "light")],
)
async def test_the_page_shows_eight_groups_and_the_one_that_recovers(
    launch: Launch, tmp_path: Path, name: str, size: tuple[int, int], scheme: str
) -> None:
    fleet = await eight_groups(launch)
    asking = [asyncio.create_task(ask_again_and_again(fleet)) for _ in range(24)]
    async with browser(tmp_path) as tab:
        await tab.open(fleet.client.url + "/", *size, scheme=scheme, mobile=size[0] < 500)
        await tab.until("document.querySelectorAll('article.group').length === 8")
        await tab.until("document.body.dataset.looks > 6 && /[1-9]/.test(document.querySelector('.value').textContent)")
        # "back after": the recovery of group 2 is among the transitions.
        for words in ("7 of 8 groups serve", "stage 1 of 2 was lost", "back after"):
            await tab.until(f"document.body.innerText.includes('{words}')")
        await tab.until("document.querySelectorAll('.stage.lost').length === 1")
        assert await tab.value("document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"
        luminance = await tab.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(luminance) < 64) is (scheme == "dark")
        await tab.picture(tmp_path / f"{name}.png")
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    if SHOTS:
        shutil.copy(tmp_path / f"{name}.png", SHOTS)


async def ask_again_and_again(fleet: Fleet) -> None:
    while True:
        fleet.script.append(Serve(pause_s=0.03))
        await fleet.client.ask(stream=True, max_tokens=40)


async def test_the_page_is_one_file_without_any_asset_from_outside(launch: Launch) -> None:
    fleet = await launch(1)
    page = await fleet.client.page("/")
    for outside in ("http://", "https://", "src=", "@import", "url("):
        assert outside not in page.replace("http://www.w3.org/2000/svg", ""), outside
    async with fleet.client.session.get(fleet.client.url + "/") as response:
        assert "default-src 'none'" in response.headers["content-security-policy"]
