"""The text side that belongs to the weights which answer: read anew when a reload brings another tokenizer or template.

A request keeps the one under which it began, so its ids, its stop ids and its text are always of one piece. New ones
wait for the new one; what the coordinator had taken and not begun is refused as unprocessed.
"""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import web

from bireme.wire.requests import Serving
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.http.coordinator_link import RETRY_AFTER_S
from bireme_worker.http.errors import NotServing
from bireme_worker.http.service import Service
from bireme_worker.text.identity import text_identity
from bireme_worker.text.tokenizer import TextModel

WAIT_S: Final = 30.0

TEXTS: Final[web.AppKey["Texts"]] = web.AppKey("texts")
log = logging.getLogger(__name__)


class Texts:
    """``service`` is what new requests use; its text is that of the coordinator's last word as soon as it is read."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._wanted = service.text_name
        self._current = asyncio.Event()
        self._current.set()
        self._trouble = ""

    async def ready(self) -> Service:
        """The service for a new request.

        Raises:
            NotServing: the text side that it needs can't be read, or not soon.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                await self._current.wait()
        except TimeoutError:
            message = self._trouble or f"the tokenizer of the new weights was not read within {WAIT_S:g} s"
            raise NotServing(message, retry_after_s=RETRY_AFTER_S) from None
        return self.service

    async def run(self) -> None:
        """Follow the coordinator until cancelled."""
        while True:
            serving = await self.service.link.heard()
            if serving.text and serving.text != self._wanted:
                self._wanted = serving.text
                self._current.clear()
                await self._read(serving)

    async def _read(self, serving: Serving) -> None:
        try:
            text = await asyncio.to_thread(TextModel.load, Path(serving.source))
        except CheckpointError as error:  # the coordinator read it a moment ago; the next word of it is another try
            self._trouble, self._wanted = str(error), ""
            log.error("%s", error)  # noqa: TRY400  the files' fault, no trace
            return
        self.service = replace(self.service, text=text, text_name=serving.text)
        self._current.set()
        log.info("requests use the tokenizer of %s", serving.source)


def name_text(path: Path) -> tuple[TextModel, str]:
    """Read a checkpoint's text side and its name.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    return TextModel.load(path), text_identity(path)
