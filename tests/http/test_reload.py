"""Tokenizer, template and ends belong to the weights: what a request gets when other weights take over."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bireme.wire.plan import unpack_ids
from bireme_worker.checkpoints.packaged import smollm2_gguf
from bireme_worker.text.identity import text_identity
from bireme_worker.text.tokenizer import TextModel
from tests.http.scripted_coordinator import Script
from tests.http.support import CHAT, Stand, chat_body


@pytest.fixture
def other(smollm2_dir: Path, tmp_path: Path) -> Path:
    """A checkpoint with another chat template; an HTTP process reads no weights."""
    directory = tmp_path / "other"
    shutil.copytree(smollm2_dir, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    (directory / "model.safetensors").touch()
    (directory / "chat_template.jinja").write_text("Q: {{ messages[0].content }} A:")
    return directory


@pytest_asyncio.fixture(loop_scope="session")
async def restored(stand: Stand) -> AsyncIterator[None]:
    """The session's process goes back to its own checkpoint, and has done so before the next test asks it."""
    yield
    coordinator = stand.coordinator
    coordinator.source, coordinator.text = str(smollm2_gguf()), text_identity(smollm2_gguf())
    coordinator.revision = "rev-1"
    coordinator.announce()
    coordinator.script = lambda _: Script([[5]], "stop")
    await stand.until_answered(200, "rev-1")


@pytest.mark.usefixtures("restored")
@pytest.mark.asyncio(loop_scope="session")
async def test_new_requests_use_the_template_of_the_new_weights(stand: Stand, other: Path) -> None:
    coordinator = stand.coordinator
    coordinator.reset()
    coordinator.script = lambda _: Script([[5]], "stop")
    await stand.until_answered(200, "rev-1")
    coordinator.source, coordinator.text, coordinator.revision = str(other), text_identity(other), "rev-2"
    coordinator.announce()
    await stand.until_answered(200, "rev-2")
    coordinator.submits.clear()
    async with stand.client.post(CHAT, json=chat_body(max_tokens=1)) as response:
        assert response.status == 200
    [submit] = coordinator.submits
    assert submit.text == text_identity(other)
    expected = TextModel.load(other).encode("Q: Hello A:", add_special_tokens=False)
    assert list(unpack_ids(submit.prompt)) == expected


@pytest.mark.usefixtures("restored")
@pytest.mark.asyncio(loop_scope="session")
async def test_weights_with_the_same_text_side_need_no_new_one(stand: Stand) -> None:
    coordinator = stand.coordinator
    coordinator.reset()
    coordinator.script = lambda _: Script([[5]], "stop")
    coordinator.source, coordinator.text = "/not/there/any/more", text_identity(smollm2_gguf())
    coordinator.revision = "rev-3"
    coordinator.announce()
    await stand.until_answered(200, "rev-3")


def test_only_what_makes_ids_and_ends_changes_the_name_of_a_text_side(other: Path) -> None:
    before = text_identity(other)
    (other / "model.safetensors").write_bytes(b"other weights")
    assert text_identity(other) == before
    (other / "chat_template.jinja").write_text("another")
    assert text_identity(other) != before
