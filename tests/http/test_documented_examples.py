"""Every example of docs/api-http.md, as it stands there, against a real engine of random weights."""

import asyncio
import contextlib
import io
import json
import re
import tempfile
from pathlib import Path

import jsonschema
import pytest

from tests.http.in_process import post, remove, whole_group
from tests.http.support import CHAT
from tests.support.byte_model import PLAIN, make_byte_model

PAGE = (Path(__file__).parents[2] / "docs" / "api-http.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_pages_examples_run_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bireme-docs-"))
    try:
        async with whole_group(make_byte_model(folder / "model", PLAIN), folder, name="m") as (client, _):
            monkeypatch.setenv("OPENAI_BASE_URL", f"{client._base_url}v1")
            monkeypatch.setenv("OPENAI_API_KEY", "none")
            known: dict[str, object] = {}
            for example in examples("python"):
                assert await asyncio.to_thread(printed, example, known)
            for example in examples("json"):
                body = json.loads(example)
                status, answer = await post(client, CHAT, body)
                assert status == 200, answer
                text = answer["choices"][0]["message"]["content"]
                jsonschema.validate(json.loads(text), body["response_format"]["json_schema"]["schema"])
    finally:
        remove(folder)
    assert len(examples("python")) == 3
    assert len(examples("json")) == 1


def printed(example: str, known: dict[str, object]) -> str:
    """Run it; what one example defines the later ones know."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(example, known)
    return out.getvalue()
