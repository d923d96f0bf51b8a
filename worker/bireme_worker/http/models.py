"""`GET /v1/models`, and the tokenizer as a service: `POST /tokenize` and `POST /detokenize`."""

from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from bireme_worker.http.body import check, read_object
from bireme_worker.http.prompts import encode_chat, encode_text
from bireme_worker.http.schema import DetokenizeBody, TokenizeBody
from bireme_worker.http.service import Service
from bireme_worker.http.texts import TEXTS


async def list_models(request: web.Request) -> web.Response:
    """Every name that a request may use."""
    service = await request.app[TEXTS].ready()
    return _json({"object": "list", "data": [_model(service, name) for name in service.model_names]})


async def show_model(request: web.Request) -> web.Response:
    """One of them."""
    service = await request.app[TEXTS].ready()
    name = request.match_info["name"]
    service.require_model(name)
    return _json(_model(service, name))


async def tokenize(request: web.Request) -> web.Response:
    """The ids of a text, or of a chat as the engine would see it."""
    service = await request.app[TEXTS].ready()
    body = check(TokenizeBody, await read_object(request))
    service.require_model(body.model)
    if body.messages is not None:
        ids = await encode_chat(service.text, body.messages, body.tools, body.chat_template_kwargs)
    else:
        ids = await encode_text(service.text, body.prompt or "", add_special_tokens=body.add_special_tokens)
    return _json({"count": len(ids), "max_model_len": _context(service), "tokens": ids})


async def detokenize(request: web.Request) -> web.Response:
    """The text of ids, special tokens included."""
    service = await request.app[TEXTS].ready()
    body = check(DetokenizeBody, await read_object(request))
    service.require_model(body.model)
    service.require_ids("tokens", body.tokens)
    return _json({"prompt": service.text.decode(body.tokens, skip_special_tokens=False)})


def _model(service: Service, name: str) -> dict[str, Any]:
    # The checkpoint's own time: all HTTP processes of all groups say the same.
    serving = service.link.serving
    source = serving.source if serving is not None and serving.source else service.identity.checkpoint.source
    created = int(Path(source).stat().st_mtime)
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "bireme",
        "root": service.identity.model_name,
        "max_model_len": _context(service),
    }


def _context(service: Service) -> int | None:
    serving = service.link.serving
    return None if serving is None else serving.limits.context


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
