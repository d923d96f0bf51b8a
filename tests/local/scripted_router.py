"""Stands in for the router: scripted_router.py PORT ANSWER. Streams ANSWER word by word, or refuses when it is empty."""

import asyncio
import json
import sys

from aiohttp import web

from bireme.process import die_with_parent


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if not sys.argv[2]:
        return web.json_response({"error": {"message": "no group at hand"}}, status=503)
    assert body["temperature"] == 0
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for word in sys.argv[2].split():
        chunk = {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    if sys.argv[2] != "broken":
        await response.write(b"data: [DONE]\n\n")
    return response


def main() -> None:
    die_with_parent()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(
        app, host="127.0.0.1", port=int(sys.argv[1]), print=None, shutdown_timeout=0.1, loop=asyncio.new_event_loop()
    )


if __name__ == "__main__":
    main()
