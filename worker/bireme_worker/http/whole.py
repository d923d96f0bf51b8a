"""Answers without a stream: collected, then sent as one JSON object."""

from aiohttp import web

from bireme_worker.http.answer import Answer
from bireme_worker.http.best_of import BestOf
from bireme_worker.http.choice import Piece
from bireme_worker.http.generation import Generation
from bireme_worker.http.shapes import ShapeOf, response_headers


async def whole_answer(generation: Generation, answer: Answer | BestOf, shape_of: ShapeOf) -> web.Response:
    """Collect the answer.

    Raises:
        ApiError: it failed; nothing was sent.
    """
    pieces: list[list[Piece]] = [[] for _ in range(generation.choices)]
    async for batch in answer.batches():
        for choice, piece in batch:
            pieces[choice.index].append(piece)
    body = shape_of(answer.model_revision).whole(pieces, answer.usage.as_object())
    headers = response_headers(generation, answer.model_revision)
    return web.Response(body=body, headers=headers, content_type="application/json")
