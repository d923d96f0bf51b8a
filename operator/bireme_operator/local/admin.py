"""Calls of the admin port: short, with the group's token, and never trusted to have worked until `/watch` says so."""

import logging

import aiohttp
import msgspec

from bireme.names import Header, Port

log = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


async def post(session: aiohttp.ClientSession, host: str, path: str, body: msgspec.Struct, token: str) -> bool:
    """Post ``body`` to a stage's admin port; whether it said yes."""
    url = f"http://{host}:{int(Port.ADMIN)}{path}"
    headers: dict[str, str] = {Header.TOKEN: f"Bearer {token}", "content-type": "application/json"}
    try:
        async with session.post(url, data=msgspec.json.encode(body), headers=headers, timeout=_TIMEOUT) as response:
            if response.status < 300:
                return True
            log.warning("%s answered %d: %s", url, response.status, await response.text())
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        log.info("%s: %s", url, str(error) or type(error).__name__)
    return False
