"""The processes as the supervisor sees them: one port for all, clear ends, a coordinator that comes and goes."""

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from bireme.names import Env, Exit, Header, Port
from tests.http.scripted_coordinator import LIMIT_S, ScriptedCoordinator, continuing
from tests.http.support import CHAT, TOKEN, HttpProcess, Stand, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def own_state_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bireme-http-"))
    yield path
    shutil.rmtree(path)


async def test_two_processes_share_the_port_and_end_cleanly(own_state_dir: Path) -> None:
    coordinator = ScriptedCoordinator(own_state_dir / "requests.sock", bytes.fromhex(TOKEN), script=continuing([5, 2]))
    await coordinator.start()
    first = HttpProcess(own_state_dir, index=0)
    second = HttpProcess(own_state_dir, index=1, host=first.host)
    await first.start()
    await second.start()
    await coordinator.until(lambda: coordinator.connections == 2)
    async with asyncio.timeout(LIMIT_S):
        while len(coordinator.asked_by) < 2:  # the second may know the coordinator before it listens
            async with (
                aiohttp.ClientSession(first.base) as client,
                client.post(CHAT, json=chat_body()) as response,
            ):
                assert response.status in (200, 503)  # its process may not have read the coordinator's status yet
    assert await first.stop() == Exit.DRAINED
    assert await second.stop() == Exit.DRAINED
    await coordinator.stop()


async def test_a_process_waits_for_its_coordinator_and_refuses_meanwhile(own_state_dir: Path) -> None:
    process = HttpProcess(own_state_dir, index=0)
    await process.start()
    coordinator = ScriptedCoordinator(own_state_dir / "requests.sock", bytes.fromhex(TOKEN), script=continuing([5, 2]))
    async with aiohttp.ClientSession(process.base) as client:
        stand = Stand(process, coordinator, client)
        for _ in range(2):  # the second time the coordinator was there and died
            async with client.post(CHAT, json=chat_body()) as response:
                assert response.status == 503
                assert response.headers[Header.UNPROCESSED] == "1"
                assert int(response.headers["Retry-After"]) >= 1
            await coordinator.start()
            await stand.until_serving()
            async with client.post(CHAT, json=chat_body()) as response:
                assert response.status == 200
            await coordinator.stop()
            await stand.until_lost()
    assert await process.stop() == Exit.DRAINED


async def test_a_coordinator_with_another_token_is_not_believed(own_state_dir: Path) -> None:
    coordinator = ScriptedCoordinator(own_state_dir / "requests.sock", b"another token...", script=continuing([5, 2]))
    await coordinator.start()
    process = HttpProcess(own_state_dir, index=0)
    await process.start()
    async with aiohttp.ClientSession(process.base) as client, client.post(CHAT, json=chat_body()) as response:
        assert response.status == 503
    assert coordinator.connections == 0
    await process.stop()
    await coordinator.stop()


async def end_of(process: HttpProcess, **environment: str) -> tuple[int, str]:
    ended = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bireme_worker.http.main",
        env=process.environment | environment,
        stderr=subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(ended.communicate(), LIMIT_S)
    assert ended.returncode is not None
    return ended.returncode, errors.decode()


async def test_a_port_in_use_is_a_bad_configuration(own_state_dir: Path) -> None:
    process = HttpProcess(own_state_dir, index=0)
    with socket.socket() as taken:
        taken.bind((process.host, Port.HTTP))
        taken.listen()
        code, errors = await end_of(process)
    assert code == Exit.BAD_CONFIGURATION
    assert f"port 8000 of {process.host} is in use" in errors
    assert "Traceback" not in errors


async def test_an_address_of_another_machine_is_a_bad_configuration(own_state_dir: Path) -> None:
    code, errors = await end_of(HttpProcess(own_state_dir, index=0), **{Env.POD_IP: "192.0.2.1"})
    assert code == Exit.BAD_CONFIGURATION
    assert Env.POD_IP in errors


async def test_a_missing_checkpoint_is_a_bad_checkpoint(own_state_dir: Path) -> None:
    code, errors = await end_of(HttpProcess(own_state_dir, index=0), **{Env.MODEL_PATH: str(own_state_dir / "none")})
    assert code == Exit.BAD_CHECKPOINT
    assert "does not exist" in errors


async def test_an_incomplete_environment_is_a_bad_configuration(own_state_dir: Path) -> None:
    code, errors = await end_of(HttpProcess(own_state_dir, index=0), **{Env.MODEL_NAME: ""})
    assert code == Exit.BAD_CONFIGURATION
    assert Env.MODEL_NAME in errors


async def test_torch_is_never_imported() -> None:
    code = "import sys, bireme_worker.http.main; sys.exit('torch' in sys.modules)"
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await ended.wait() == 0
