"""The aiohttp application: routes, the body limit, errors in OpenAI's shape, and the line to the coordinator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from bireme_worker.http.body import MAX_BODY
from bireme_worker.http.chat import chat
from bireme_worker.http.completions import completions
from bireme_worker.http.embeddings import embeddings
from bireme_worker.http.errors import errors_as_json
from bireme_worker.http.models import detokenize, list_models, show_model, tokenize
from bireme_worker.http.service import Service
from bireme_worker.http.texts import TEXTS, Texts


def make_app(service: Service) -> web.Application:
    """The application of one HTTP process; run it with ``handler_cancellation=True``, or clients that left go on."""
    app = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY)
    app[TEXTS] = Texts(service)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/embeddings", embeddings)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/v1/models/{name:.+}", show_model)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)
    app.cleanup_ctx.append(_linked)
    return app


async def _linked(app: web.Application) -> AsyncIterator[None]:
    texts = app[TEXTS]
    tasks = [asyncio.create_task(work) for work in (texts.service.link.run(), texts.run())]
    yield
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
