"""A standby pod: it holds a stage's devices, keeps the checkpoint's files in memory, and waits to be told who it is.

`POST /adopt` makes it a stage of a group, for good. That is written down before it is answered, so a container that
starts again is still that stage; the pod goes on as any other, in the same process.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from bireme.names import Admission, Env, Header, Port
from bireme.wire.state import AdoptRequest

log = logging.getLogger(__name__)

_ADOPTED: Final = "adopted.json"
_TOKEN: Final = "adopted.token"  # noqa: S105  # a file's name
_CHUNK: Final = 8 << 20
_FILES: Final = ("*.safetensors", "*.gguf", "*.json", "*.model")


class Warmth:
    """Reads every file of a checkpoint once, so that the stage finds them in memory. ``read`` of ``files`` are."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._enough = threading.Event()
        self.done = False

    def run(self) -> None:
        """Read until all is read or it is enough; what can't be read is the stage's to tell."""
        with contextlib.suppress(OSError):
            for path in self._paths():
                self._read(path)
        self.done = True

    def stop(self) -> None:
        """Whoever waits for the devices now needs the disk."""
        self._enough.set()

    def _paths(self) -> list[Path]:
        if self._checkpoint.is_file():
            return [self._checkpoint]
        return sorted(path for pattern in _FILES for path in self._checkpoint.rglob(pattern))

    def _read(self, path: Path) -> None:
        buffer = bytearray(_CHUNK)
        with path.open("rb", buffering=0) as file:
            while not self._enough.is_set() and file.readinto(buffer):
                continue


async def stand_by(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Wait until this pod is told which stage it is, and return that as environment; None when it is to end."""
    folder = Path(environment[Env.STATE_DIR])
    known = _remembered(folder)
    if known is not None:
        return _identity(known, folder)
    warmth = Warmth(Path(environment[Env.MODEL_PATH]))
    door = _Door(folder, _token(Path(environment[Env.TOKEN_FILE])), warmth)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, door.end)
    runner = web.AppRunner(door.application(), shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, environment[Env.POD_IP], Port.ADMIN).start()
    reading = threading.Thread(target=warmth.run, name="warmth", daemon=True)
    reading.start()
    try:
        asked = await door.opened
    finally:
        warmth.stop()
        await runner.cleanup()
    return None if asked is None else _identity(asked, folder)


class _Door:
    """The admin port of a pod that is nobody yet."""

    def __init__(self, folder: Path, token: str, warmth: Warmth) -> None:
        self._folder = folder
        self._secret = f"Bearer {token}".encode()
        self._warmth = warmth
        self.opened: asyncio.Future[AdoptRequest | None] = asyncio.get_running_loop().create_future()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_post("/adopt", self._adopt)
        return app

    def end(self) -> None:
        """Wait no longer."""
        if not self.opened.done():
            self.opened.set_result(None)

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        text = "stands by\n" if self._warmth.done else "reads the checkpoint\n"
        return web.Response(status=200 if self._warmth.done else Admission.NOT_SERVING, text=text)

    async def _adopt(self, request: web.Request) -> web.Response:
        given = request.headers.get(Header.TOKEN, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._secret):
            return _answer(Admission.UNAUTHORIZED, "send `Authorization: Bearer <token of the standby pods>`")
        try:
            asked = msgspec.json.decode(await request.read(), type=AdoptRequest)
            bytes.fromhex(asked.token)
        except (msgspec.MsgspecError, ValueError) as error:
            return _answer(400, str(error))
        if not self.opened.done():
            _remember(asked, self._folder)
            self.opened.set_result(asked)
            log.info(f"adopted: stage {asked.stage} of group {asked.group}, incarnation {asked.incarnation}")
        return _answer(200, "adopted")


def _token(path: Path) -> str:
    return path.read_text().strip()


def _identity(asked: AdoptRequest, folder: Path) -> dict[str, str]:
    return {
        Env.GROUP_UID: asked.group,
        Env.GROUP_INDEX: str(asked.index),
        Env.STAGE: str(asked.stage),
        Env.INCARNATION: str(asked.incarnation),
        Env.LEADER_ADDRESS: asked.leader,
        Env.MODEL_PATH: asked.source,
        Env.MODEL_REVISION: asked.model_revision,
        Env.TOKEN_FILE: str(folder / _TOKEN),
    }


def _remembered(folder: Path) -> AdoptRequest | None:
    try:
        return msgspec.json.decode((folder / _ADOPTED).read_bytes(), type=AdoptRequest)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _remember(asked: AdoptRequest, folder: Path) -> None:
    """Write both files whole, the one that counts last."""
    for name, content in ((_TOKEN, asked.token.encode()), (_ADOPTED, msgspec.json.encode(asked))):
        fresh = folder / f"{name}.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
        fresh.replace(folder / name)


def _answer(status: int, message: str) -> web.Response:
    return web.json_response({"message": message} if status == 200 else {"error": {"message": message}}, status=status)
