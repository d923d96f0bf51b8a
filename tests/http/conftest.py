"""One real HTTP process for the session, on a loopback address of its own, and the scripted coordinator behind it."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from bireme_worker.checkpoints.packaged import smollm2_gguf
from bireme_worker.text.tokenizer import TextModel
from tests.http.scripted_coordinator import ScriptedCoordinator
from tests.http.support import TOKEN, HttpProcess, Stand


@pytest.fixture(scope="session")
def text() -> TextModel:
    return TextModel.load(smollm2_gguf())


@pytest.fixture(scope="session")
def http_state_dir() -> Iterator[Path]:
    """Short, since the name of a Unix socket has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="bireme-http-"))
    yield path
    shutil.rmtree(path)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stand(http_state_dir: Path) -> AsyncIterator[Stand]:
    coordinator = ScriptedCoordinator(http_state_dir / "requests.sock", bytes.fromhex(TOKEN))
    await coordinator.start()
    process = HttpProcess(http_state_dir, index=0)
    await process.start()
    async with aiohttp.ClientSession(process.base) as client:
        stand = Stand(process, coordinator, client)
        await stand.until_serving()
        yield stand
    await process.stop()
    await coordinator.stop()


@pytest.fixture
def coordinator(stand: Stand) -> Iterator[ScriptedCoordinator]:
    stand.coordinator.reset()
    yield stand.coordinator
    stand.coordinator.reset()


@pytest.fixture
def client(stand: Stand) -> aiohttp.ClientSession:
    return stand.client
