"""`bireme profile` of a group under load: no request is changed by it, and a rank that is lost meanwhile ends it."""

import asyncio
import gzip
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from bireme.wire.profile import ProfileReport, Use, read_report
from tests.faults import inject
from tests.faults.bench import Bench
from tests.faults.parts import one
from tests.support.deployment import up_environment

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

KINDS = ("greedy", "sampled")


async def _profile(bench: Bench, folder: Path, *words: str) -> tuple[int, str, str]:
    """Run the command as a user does: exit code, what it printed, what it complained about."""
    deployment = bench.deployment
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bireme.cli.main", "profile", deployment.name, "--output", str(folder), *words),
        env=up_environment(deployment.run_dir),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@pytest.mark.parametrize("bench", [(2, 2)], indirect=True, ids=["tp2-pp2"])
async def test_every_rank_is_profiled_under_load_and_a_lost_one_ends_it_and_no_request_is_changed(
    bench: Bench, tmp_path: Path
) -> None:
    before, ranks = bench.state().epoch, bench.ranks()
    victim = one(bench.parts(), "rank", stage=1, rank=1)
    async with bench.asking(bench.asks(KINDS, tokens=900)):
        code, out, errors = await _profile(bench, tmp_path, "--steps", "8")
        assert code == 0, errors
        assert (bench.state().epoch, bench.ranks()) == (before, ranks), "recording was taken for a loss"
    # Work of its own: nobody knows what the command has left of the other.
    async with bench.asking(bench.asks(KINDS, tokens=1800)):
        refusal = asyncio.create_task(_refusal(bench))
        await bench.wait(lambda: _begun(bench) or refusal.done(), "no rank began to record")
        inject.kill(victim)
        refused = await refusal  # by the supervisor or by the rank, whoever heard of it first
        assert "the profile ended with its epoch" in refused or "the epoch ended" in refused
    await bench.again(before)
    report = read_report((tmp_path / "summary.json").read_bytes())
    assert [(found.stage, found.rank) for found in report.ranks] == sorted(ranks)
    _check(report)
    assert out.startswith((tmp_path / "summary.txt").read_text().rstrip())
    assert (tmp_path / "shares.svg").read_text().count("<title>") > len(ranks)
    for stage, rank in ranks:
        packed = (tmp_path / f"stage-{stage}-rank-{rank}.json.gz").read_bytes()
        names = {event.get("name") for event in json.loads(gzip.decompress(packed))["traceEvents"]}
        assert {"bireme.layers", "bireme.plan", "bireme.wait"} <= names


def _check(report: ProfileReport) -> None:
    for found in report.ranks:
        assert (found.steps, found.limited) == (8, False)
        assert found.tokens >= found.sampled > 0
        assert sum(found.shares.values()) == pytest.approx(found.seconds, rel=1e-3)
        assert found.share(Use.COMPUTE) > 0
        assert found.share(Use.EXCHANGE) > 0
        assert (found.share(Use.SAMPLING) > 0) == (found.stage == 1)
        assert ("bireme.exchange.receive" in found.parts) == (found.stage == 1)


async def _refusal(bench: Bench) -> str:
    """Why a long profile came to nothing."""
    route = bench.deployment.route(0)
    headers = {"authorization": f"Bearer {Path(route.token_file).read_text().strip()}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{route.admin}/profile", json={"steps": 1000, "seconds": 30}) as answer,
    ):
        return await answer.text()


def _begun(bench: Bench) -> bool:
    """Whether a rank has removed its last trace to make room for the next."""
    folders = bench.deployment.run_dir.glob("*/pods/*/profile")
    return any(len(list(folder.iterdir())) < bench.tensor for folder in folders)
