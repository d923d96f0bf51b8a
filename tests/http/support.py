"""Helpers of the HTTP tests: the process under test, and readers of its streams."""

import asyncio
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bireme.names import Env, Header, Port
from bireme.wire.journal import JOURNAL_PREFIX, Emitted, JournalEntry, Opened, read_journal
from bireme_worker.checkpoints.packaged import smollm2_gguf
from tests.http.scripted_coordinator import LIMIT_S, ScriptedCoordinator

TOKEN = "0123456789abcdef" * 4
ROUTER = {Header.TOKEN.value: f"Bearer {TOKEN}", Header.JOURNAL.value: "1"}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def loopback_address() -> str:
    """An address of this machine that nobody else listens on."""
    chosen = random.SystemRandom()
    return f"127.{chosen.randrange(64, 127)}.{chosen.randrange(1, 255)}.{chosen.randrange(2, 254)}"


@dataclass
class HttpProcess:
    """`python -m bireme_worker.http.main`, as the supervisor starts it."""

    state_dir: Path
    index: int
    host: str = field(default_factory=loopback_address)
    process: asyncio.subprocess.Process | None = None

    @property
    def base(self) -> str:
        return f"http://{self.host}:{Port.HTTP.value}"

    @property
    def environment(self) -> dict[str, str]:
        token_file = self.state_dir / "token"
        token_file.write_text(TOKEN)
        return os.environ | {
            Env.GROUP_UID: "group",
            Env.STAGE: "0",
            Env.LEADER_ADDRESS: self.host,
            Env.POD_IP: self.host,
            Env.TOKEN_FILE: str(token_file),
            Env.STATE_DIR: str(self.state_dir),
            Env.MODEL_NAME: "smol",
            Env.MODEL_ALIASES: "smol-alias,org/smol",
            Env.MODEL_PATH: str(smollm2_gguf()),
            Env.MODEL_REVISION: "rev-1",
            Env.PARENT_PID: str(os.getpid()),
        }

    async def start(self) -> None:
        self.process = await self.spawn()
        async with asyncio.timeout(LIMIT_S):
            while not await self._answers():
                assert self.process.returncode is None, "the HTTP process ended at its start"
                await asyncio.sleep(0.02)

    async def spawn(self, **options: Any) -> asyncio.subprocess.Process:
        arguments = ("-m", "bireme_worker.http.main", "--index", str(self.index))
        return await asyncio.create_subprocess_exec(sys.executable, *arguments, env=self.environment, **options)

    async def stop(self) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self.host, Port.HTTP)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True


@dataclass
class Stand:
    """The process under test with its coordinator and a client."""

    process: HttpProcess
    coordinator: ScriptedCoordinator
    client: aiohttp.ClientSession

    async def until_serving(self) -> None:
        """Wait until the process knows its coordinator."""
        async with asyncio.timeout(LIMIT_S):
            while await self._context() is None:
                await asyncio.sleep(0.01)

    async def until_lost(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self._context() is not None:
                await asyncio.sleep(0.01)

    async def until_answered(self, status: int, model_revision: str | None = None) -> None:
        """Wait until the process has heard what the coordinator announced. The script must answer."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with self.client.post(CHAT, json=chat_body(max_tokens=1)) as response:
                    if (response.status, response.headers.get(Header.MODEL_REVISION)) == (status, model_revision):
                        return

    async def _context(self) -> int | None:
        async with self.client.get("/v1/models/smol") as response:
            context: int | None = (await response.json())["max_model_len"]
            return context


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "smol", "messages": HELLO, **fields}


def extension(resume: dict[str, Any] | None = None) -> dict[str, Any]:
    base = {"request_id": "r1", "created": 1_700_000_000, "seed": 7}
    return base if resume is None else base | {"resume": resume}


@dataclass
class Reader:
    """A router's eye on a stream: what it has delivered to its client, and what it has committed of the journal."""

    delivered: list[bytes] = field(default_factory=list)
    opened: Opened | None = None
    choices: dict[int, Emitted] = field(default_factory=dict)
    last: JournalEntry | None = None
    _uncommitted: JournalEntry | None = None

    def line(self, line: bytes) -> None:
        """Take one whole line: it commits the entry before it."""
        self._commit()
        if line.startswith(JOURNAL_PREFIX):
            self._uncommitted = self.last = read_journal(line)
        elif line.strip():
            self.delivered.append(line)

    def _commit(self) -> None:
        entry, self._uncommitted = self._uncommitted, None
        if isinstance(entry, Opened):
            self.opened = entry
        elif isinstance(entry, Emitted):
            before = self.choices.get(entry.choice, Emitted(entry.choice, []))
            self.choices[entry.choice] = Emitted(
                entry.choice, before.token_ids + entry.token_ids, entry.finish_reason or before.finish_reason
            )

    def resume(self) -> dict[str, Any] | None:
        """What a router sends to go on; None when nothing was delivered yet."""
        if self.opened is None:
            return None
        return {
            "prompt_token_ids": self.opened.prompt_token_ids,
            "model_revision": self.opened.model_revision,
            "choices": [
                {"index": index, "output_token_ids": emitted.token_ids, "finish_reason": emitted.finish_reason}
                for index, emitted in sorted(self.choices.items())
            ],
        }


async def read_lines(response: aiohttp.ClientResponse) -> list[bytes]:
    return (await response.read()).splitlines(keepends=True)
