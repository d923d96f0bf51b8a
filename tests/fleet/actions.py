"""The three things that a kubelet does to a running container: an HTTP request, a TCP connection, a command inside.

Probes and lifecycle hooks share them; both only ask whether it went well.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.fleet.api import Object
from tests.fleet.environment import Launch, executable
from tests.fleet.processes import Process
from tests.fleet.sources import Unsatisfied


@dataclass(frozen=True)
class Inside:
    """A running container, as its probes and hooks see it."""

    ip: str
    ports: Mapping[str, int]
    launch: Launch
    mark: str
    cwd: Path
    log: Path


async def succeeds(handler: Object, inside: Inside) -> bool:
    """Do what ``handler`` says, and return whether it went well. The caller bounds the time.

    Raises:
        Unsatisfied: the handler is of a kind that is not built.
    """
    match handler:
        case {"httpGet": request}:
            return await _http(request, inside)
        case {"tcpSocket": target}:
            return await _tcp(target, inside)
        case {"exec": {"command": command}}:
            return await _exec(command, inside)
        case {"sleep": {"seconds": seconds}}:
            await asyncio.sleep(seconds)
            return True
        case _:
            raise Unsatisfied(f"the simulated kubelet has no handler for {', '.join(handler)}")


async def _http(request: Object, inside: Inside) -> bool:
    host = request.get("host") or inside.ip
    url = f"{request.get('scheme', 'HTTP').lower()}://{host}:{_port(request['port'], inside)}{request.get('path', '/')}"
    headers = {each["name"]: each["value"] for each in request.get("httpHeaders", [])}
    connector = aiohttp.TCPConnector(ssl=False, force_close=True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            return 200 <= response.status < 400
    except (aiohttp.ClientError, OSError):
        return False


async def _tcp(target: Object, inside: Inside) -> bool:
    try:
        _, writer = await asyncio.open_connection(target.get("host") or inside.ip, _port(target["port"], inside))
    except OSError:
        return False
    writer.close()
    return True


async def _exec(command: list[str], inside: Inside) -> bool:
    process = Process(executable(command), inside.launch.environment, inside.cwd, inside.log, f"{inside.mark}/exec")
    try:
        return await process.wait() == 0
    finally:
        process.kill()


def _port(port: int | str, inside: Inside) -> int:
    return inside.ports[port] if isinstance(port, str) else port
