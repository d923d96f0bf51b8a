"""Whatever is wrong is refused by name with the remedy, and a stream that runs meanwhile does not notice."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bireme.names import Env, Exit, Port
from bireme.wire.plan import Sampling
from tests.support.deployment import EXAMPLES, Deployment, until, up_to_its_end, variant
from tests.support.ports import free_port
from tests.support.streams import Delivery, stream

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
BYSTANDER_TOKENS = 24
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
# How long the demo keeps what a lost client asked for; the acceptance is that nothing stays.
LEFT_LIMIT_S = 60


@contextlib.asynccontextmanager
async def nothing_disturbed(demo: Deployment) -> AsyncIterator[None]:
    """Streams run all the time and end as they should; no process, epoch or count of starts is another afterwards."""
    before = fixed_facts(demo)
    begun, over = asyncio.Event(), asyncio.Event()

    async def bystanders() -> None:
        while not over.is_set():
            bystander = Delivery("Tell me about the sea.", Sampling())
            await stream(demo.url, bystander, BYSTANDER_TOKENS, lambda count: begun.set() if count else None)
            assert (bystander.finish_reason, len(bystander.ids)) == ("length", BYSTANDER_TOKENS)

    async with asyncio.TaskGroup() as group:
        group.create_task(bystanders())
        await begun.wait()
        yield
        over.set()
    assert fixed_facts(demo) == before


def fixed_facts(demo: Deployment) -> list[Any]:
    """What no bad input may change."""
    pods = [(pod["name"], pod["pid"], pod["restarts"]) for pod in demo.status()["local"]["pods"]]
    return [pods, [demo.state(index).epoch for index in (0, 1)], demo.status()["local"]["routerPid"]]


async def refused(demo: Deployment, content: bytes) -> tuple[int, str]:
    """The code and message of a chat request."""
    async with httpx.AsyncClient(timeout=60) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(f"{demo.url}/v1/chat/completions", content=content, headers=headers)
    return answer.status_code, answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("request_body", "code", "words"),
    [
        ({"model": "gpt-9"}, 404, ["gpt-9", f"here are: {MODEL}"]),
        ({"max_tokens": 0}, 400, ["max_tokens", "got 0", "Ask for at least 1"]),
        ({"max_tokens": -5}, 400, ["max_tokens", "got -5", "Ask for at least 1"]),
        ({"max_tokens": 100_000}, 400, ["max_tokens is 100000", "ask for at most"]),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, ["the context has", "shorten it to"]),
        ({"temprature": 1}, 400, ["temprature", "did you mean temperature?"]),
    ],
    ids=["unknown model", "no tokens", "negative tokens", "too many tokens", "long prompt", "misspelt field"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_bad_request_is_refused_by_name(
    demo: Deployment, request_body: dict[str, Any], code: int, words: list[str], streamed: bool
) -> None:
    async with nothing_disturbed(demo):
        got, message = await refused(demo, json.dumps(CHAT | {"stream": streamed} | request_body).encode())
    assert got == code, message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\0" * 99, b"[" * 100_000, b'{"model": "\xff"}'],
    ids=["empty", "cut", "a list", "zeros", "deep", "no UTF-8"],
)
async def test_what_is_no_json_object_is_refused(demo: Deployment, content: bytes) -> None:
    async with nothing_disturbed(demo):
        got, message = await refused(demo, content)
    assert got == 400
    assert "JSON" in message


@pytest.mark.parametrize("after_ids", [0, 5], ids=["before the first id", "after some ids"])
@pytest.mark.parametrize("choices", [1, 3])
async def test_a_client_that_leaves_frees_its_slot_and_its_blocks(
    demo: Deployment, after_ids: int, choices: int
) -> None:
    body = CHAT | {"stream": True, "max_tokens": 1000, "n": choices, "ignore_eos": True}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{demo.url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        seen = 0
        lines = answer.aiter_lines()
        while seen < after_ids:
            seen += (await anext(lines)).startswith("data: ")
        await asyncio.to_thread(until, lambda: used(demo) > (0, 0), LEFT_LIMIT_S, lambda: "it never ran")
    await asyncio.to_thread(until, lambda: used(demo) == (0, 0), LEFT_LIMIT_S, lambda: f"still held: {used(demo)}")


def used(demo: Deployment) -> tuple[int, int]:
    """Requests and blocks in use in all groups."""
    documents = [demo.state(index) for index in (0, 1)]
    return sum(d.running + d.waiting for d in documents), sum(d.kv_blocks_used for d in documents)


def cut(weights: bytes, size: int) -> tuple[bytes, int]:
    """A copy that broke off."""
    return weights, size - 1000


def without_its_last_tensor(weights: bytes, size: int) -> tuple[bytes, int]:
    """A file that is right in itself and lacks a tensor."""
    header = json.loads(weights[8:])
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    last = max(tensors, key=lambda name: tensors[name]["data_offsets"])
    begin, end = tensors[last]["data_offsets"]
    del header[last]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text, size - len(weights) + len(text) + 8 - (end - begin)


def spoiled(directory: Path, model: Path, spoil: Callable[[bytes, int], tuple[bytes, int]] | None) -> Path:
    """A model directory like ``model`` whose weights are missing or spoiled (holes stand in for their numbers)."""
    copy = directory / "models" / model.name
    copy.mkdir(parents=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (copy / file.name).symlink_to(file)
    weights = model / "model.safetensors"
    if spoil is not None:
        with weights.open("rb") as whole:
            length = 8 + struct.unpack("<Q", whole.read(8))[0]
            whole.seek(0)
            head, size = spoil(whole.read(length), weights.stat().st_size)
        (copy / weights.name).write_bytes(head)
        os.truncate(copy / weights.name, size)
    return copy.parent


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (None, ["holds no model.safetensors"]),
        (cut, ["model.safetensors is", "its header needs", "copy"]),
        (without_its_last_tensor, ["1 missing: model.norm.weight", "copy the checkpoint again"]),
    ],
    ids=["missing file", "truncated file", "missing tensor"],
)
async def test_a_checkpoint_that_can_t_be_served_is_refused_by_name(
    demo: Deployment,
    run_dir: Path,
    smollm2_dir: Path,
    spoil: Callable[[bytes, int], tuple[bytes, int]] | None,
    words: list[str],
) -> None:
    models = spoiled(run_dir, smollm2_dir, spoil)
    file = variant(EXAMPLES / "smollm2.yaml", run_dir, {"replicas": 1}, "bad")
    async with nothing_disturbed(demo):
        ended = await asyncio.to_thread(up_to_its_end, file, demo.run_dir, free_port(), {"/models": models})
    assert ended.returncode == Exit.BAD_CHECKPOINT, ended.stderr
    assert all(word in ended.stderr for word in words), ended.stderr


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replica": 2}, ["spec.replica", "did you mean replicas?"]),
        ({"parallelism": {"tensor": 2}}, ["9 attention heads do not divide by tensor parallelism 2"]),
        ({"parallelism": {"pipeline": 31}}, ["parallelism.pipeline is 31, but the model has 30 layers"]),
    ],
    ids=["misspelt field", "tensor", "pipeline"],
)
async def test_a_deployment_that_can_t_work_is_refused_by_name(
    demo: Deployment, run_dir: Path, mounts: dict[str, Path], spec: dict[str, Any], words: list[str]
) -> None:
    file = variant(EXAMPLES / "smollm2.yaml", run_dir, spec, "bad")
    async with nothing_disturbed(demo):
        ended = await asyncio.to_thread(up_to_its_end, file, demo.run_dir, free_port(), mounts)
    assert ended.returncode == Exit.BAD_CONFIGURATION, ended.stderr
    assert all(word in ended.stderr for word in words), ended.stderr


async def test_the_port_of_another_router_is_refused_by_number(
    demo: Deployment, run_dir: Path, mounts: dict[str, Path]
) -> None:
    file = variant(EXAMPLES / "smollm2.yaml", run_dir, {}, "bad")
    async with nothing_disturbed(demo):
        ended = await asyncio.to_thread(up_to_its_end, file, demo.run_dir, demo.port, mounts)
    assert ended.returncode == Exit.BAD_CONFIGURATION
    assert f"port {demo.port} on 127.0.0.1 is in use" in ended.stderr
    assert "choose another port with --port" in ended.stderr


@pytest.mark.parametrize("port", [Port.HTTP, Port.DATA])
async def test_a_stage_whose_port_is_in_use_ends_with_its_number(run_dir: Path, smollm2_dir: Path, port: Port) -> None:
    address = "127.63.1.1"  # `bireme up` gives its stages others
    (run_dir / "token").write_text("ab" * 32)
    identity: dict[str, str] = {
        Env.GROUP_UID: "g",
        Env.STAGE: "0",
        Env.LEADER_ADDRESS: address,
        Env.POD_IP: address,
        Env.TOKEN_FILE: str(run_dir / "token"),
        Env.STATE_DIR: str(run_dir),
        Env.MODEL_NAME: MODEL,
        Env.MODEL_PATH: str(smollm2_dir),
    }
    command = [sys.executable, "-m", "bireme_worker.supervisor.main"]
    with socket.create_server((address, port)):
        worker = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **identity}, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(worker.communicate(), 120)
    assert worker.returncode == Exit.BAD_CONFIGURATION
    assert f"port {address}:{int(port)} can't be opened" in said.decode()
    assert "or give this pod another address" in said.decode()
