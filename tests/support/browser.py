"""A headless Chromium over its DevTools protocol: enough to open a page, ask it things, and take its picture."""

import asyncio
import base64
import contextlib
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._session: str | None = None

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        while True:
            answer = await self._socket.receive_json(timeout=60)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    async def open(self, url: str, width: int, height: int, *, scheme: str = "light", mobile: bool = False) -> None:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        preference = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=preference)
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        async with asyncio.timeout(60):
            while not await self.value(expression):
                await asyncio.sleep(0.1)

    async def picture(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Tab]:
    """A browser with a profile of its own, ended at the end."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
        "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={directory / 'profile'}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = None
        async with asyncio.timeout(60):
            while address is None:
                line = await process.stderr.readline()
                assert line, "the browser ended at its start"
                address = re.search(rb"ws://\S+", line)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address.group().decode(), max_msg_size=0) as socket,
        ):
            yield Tab(socket)
    finally:
        process.kill()
        await process.communicate()
