"""Server-sent events of one answer, and the journal between them for whoever can resume it.

A journal line stands directly before the data event whose ids it tells, so that what a reader has committed is exactly
what it has delivered. The event that opens a choice is told by ``Opened`` (choice 0) or by an ``Emitted`` without ids;
the one that ends a choice by an ``Emitted`` with the finish reason and no ids of its own where text came before it.
The headers go out with the first tokens: until then a request that can't be answered gets a proper status code.
"""

from aiohttp import web

from bireme.wire import WIRE_VERSION
from bireme.wire.journal import Emitted, Handover, JournalEntry, Opened, journal_line
from bireme_worker.http.answer import REVISION_JOINT, Answer, Batch
from bireme_worker.http.best_of import BestOf
from bireme_worker.http.choice import Piece
from bireme_worker.http.errors import ApiError, HandedOver, error_event
from bireme_worker.http.generation import Generation
from bireme_worker.http.shapes import ShapeOf, response_headers


async def stream_answer(
    request: web.Request, generation: Generation, answer: Answer | BestOf, shape_of: ShapeOf
) -> web.StreamResponse:
    """Send the answer as a stream, one write per batch.

    Raises:
        ApiError: it failed before anything was sent.
    """
    stream: _Stream | None = None
    try:
        async for batch in answer.batches():
            if stream is None:
                stream = await _open(request, generation, answer, shape_of)
            await stream.send(batch, answer.model_revision)
    except ApiError as error:
        if stream is None:
            raise
        return await stream.break_off(error)
    assert stream is not None, "an answer has at least one batch"
    return await stream.complete(answer)


async def _open(request: web.Request, generation: Generation, answer: Answer | BestOf, shape_of: ShapeOf) -> "_Stream":
    headers = response_headers(generation, answer.model_revision) | {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
    }
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return _Stream(response, generation, answer, shape_of)


class _Stream:
    def __init__(
        self, response: web.StreamResponse, generation: Generation, answer: Answer | BestOf, shape_of: ShapeOf
    ) -> None:
        self._response = response
        self._journal = generation.journal
        self._prompt = generation.prompt
        self._usage_wanted = generation.include_usage
        self._shape_of = shape_of
        self._revision = answer.model_revision
        self._shape = shape_of(answer.model_revision)
        self._pending: list[bytes] = []
        self._open_choices(generation, answer)

    def _open_choices(self, generation: Generation, answer: Answer | BestOf) -> None:
        self._tell(Opened(WIRE_VERSION, generation.prompt, answer.model_revision, answer.usage.cached_tokens))
        for choice in range(generation.choices):
            if generation.revision is not None and (choice == 0 or choice in generation.resumed):
                continue  # the client has this event from an earlier attempt
            if choice > 0:
                self._tell(Emitted(choice, []))
            self._pending.append(self._shape.role(choice))

    async def send(self, batch: Batch, model_revision: str) -> None:
        if model_revision != self._revision:  # other weights go on with it: its events and the journal say so
            self._revision, self._shape = model_revision, self._shape_of(model_revision)
            now = model_revision.rpartition(REVISION_JOINT)[2]
            self._tell(Opened(WIRE_VERSION, self._prompt, now))
        for choice, piece in batch:
            self._add(choice.index, piece)
        await self._write()

    async def complete(self, answer: Answer | BestOf) -> web.StreamResponse:
        if self._usage_wanted:
            self._pending.append(self._shape.usage(answer.usage.as_object()))
        self._pending.append(b"data: [DONE]\n\n")
        return await self._finish()

    async def break_off(self, error: ApiError) -> web.StreamResponse:
        """End the stream without [DONE]: with a hand-over where there is a journal, else with an error event."""
        if self._journal and isinstance(error, HandedOver):
            self._tell(Handover(str(error)))
        else:
            self._pending.append(error_event(error))
        return await self._finish()

    def _add(self, choice: int, piece: Piece) -> None:
        content = self._shape.content(choice, piece)
        if content or (piece.ids and not piece.finish):
            self._tell(Emitted(choice, piece.ids))
            self._pending.append(content)
        if piece.finish:
            self._tell(Emitted(choice, [] if content else piece.ids, piece.finish))
            self._pending.append(self._shape.finish(choice, piece.finish))

    def _tell(self, entry: JournalEntry) -> None:
        if self._journal:
            self._pending.append(journal_line(entry))

    async def _write(self) -> None:
        if data := b"".join(self._pending):
            await self._response.write(data)
        self._pending.clear()

    async def _finish(self) -> web.StreamResponse:
        await self._write()
        await self._response.write_eof()
        return self._response
