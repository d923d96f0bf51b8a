"""A pod that stands by: nobody's stage until it is adopted, and that stage for good from then on."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import httpx
import msgspec
import pytest

from bireme.names import Env
from bireme.wire.state import AdoptRequest
from tests.supervisor.pods import PATIENCE_S, TOKEN, Pod, Pods

SPARE_TOKEN = bytes(range(32, 64))
NOT_KNOWN = (Env.GROUP_UID, Env.GROUP_INDEX, Env.STAGE, Env.INCARNATION, Env.LEADER_ADDRESS)


def standby(pods: Pods, tmp_path: Path) -> Pod:
    """A pod with the environment of a spare; its checkpoint has something to be read."""
    pod = pods.make(1)
    for name in NOT_KNOWN:
        pod.environment.pop(name, None)
    token, checkpoint = tmp_path / "spare-token", tmp_path / "checkpoint"
    token.write_text(SPARE_TOKEN.hex())
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(bytes(1 << 20))
    pod.environment |= {Env.STANDBY: "1", Env.TOKEN_FILE: str(token), Env.MODEL_PATH: str(checkpoint)}
    return pod


def adoption(pods: Pods, incarnation: int = 1) -> AdoptRequest:
    return AdoptRequest("g", 0, 1, incarnation, pods.leader_address, "/models/good", "1", TOKEN.hex())


async def until_ready(pod: Pod) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if (await pod.get("/readyz"))[0] == 200:
                    return
            except (OSError, aiohttp.ClientError):
                pass
            await asyncio.sleep(0.05)


async def test_a_spare_becomes_the_stage_that_it_is_told_and_stays_it_over_restarts(pods: Pods, tmp_path: Path) -> None:
    leader = pods.make(0).start()
    spare = standby(pods, tmp_path).start()
    await until_ready(spare)
    assert (await spare.get("/livez"))[0] == 200
    code, text = await spare.post("/adopt", adoption(pods), token=SPARE_TOKEN)
    assert code == 200, text
    first = await leader.until_serving()
    await spare.until_serving()
    assert [(stage.stage, stage.incarnation) for stage in first.stages] == [(0, 1), (1, 1)]
    code, text = await spare.post("/adopt", adoption(pods, incarnation=2))
    assert (code, "this pod is stage 1 of group g, incarnation 1" in text) == (409, True)
    spare.kill()
    await leader.until(lambda document: not document.ready)
    spare.start()
    assert (await leader.until_serving(above=first.epoch)).epoch > first.epoch


@pytest.mark.parametrize(
    ("body", "token", "expected"),
    [
        (None, TOKEN, 401),
        ({"group": "g"}, SPARE_TOKEN, 400),
        (b"{nonsense", SPARE_TOKEN, 400),
    ],
)
async def test_who_may_not_adopt_or_says_nonsense_is_refused(
    pods: Pods, tmp_path: Path, body: object, token: bytes, expected: int
) -> None:
    spare = standby(pods, tmp_path).start()
    await until_ready(spare)
    code, text = await spare.post("/adopt", body, token=token)
    assert code == expected
    assert "error" in msgspec.json.decode(text)


async def test_a_spare_that_is_told_to_end_ends_with_zero(pods: Pods, tmp_path: Path) -> None:
    spare = standby(pods, tmp_path).start()
    await until_ready(spare)
    spare.signal(signal.SIGTERM)
    assert await spare.ended() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(spare.url("/livez"), trust_env=False)
