"""The router as a process: its command line, its signals, its exit codes, and its end with its parent."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.api.router import RouterLimits, RouterRetry
from bireme.names import Exit
from bireme_router.settings import Settings, read_settings
from tests.router.conftest import Launch
from tests.support.deployment import alive
from tests.support.router_process import LIMIT_S
from tests.support.stub_leader import Serve, Silent

COMMAND = [sys.executable, "-m", "bireme_router.main", "--routes", "nowhere.json"]


def test_the_defaults_are_those_of_the_api() -> None:
    limits, settings = RouterLimits(), Settings(routes=Path("f"))
    assert settings.max_body_bytes == limits.max_body_bytes
    assert settings.max_queued == limits.max_queued_requests
    assert settings.queue_timeout_s == limits.queue_timeout_seconds
    assert settings.connect_timeout_s == limits.connect_timeout_seconds
    assert settings.first_token_timeout_s == limits.first_token_timeout_seconds
    assert settings.idle_timeout_s == limits.idle_timeout_seconds
    assert settings.total_timeout_s == limits.total_timeout_seconds
    assert settings.retry_attempts == RouterRetry().attempts


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--routes", "f", "--port", "many"],
        ["--routes", "f", "--idle-timeout", "0"],
        ["--routes", "f", "--tls-cert", "x"],
    ],
)
def test_a_command_line_that_cannot_be_right_ends_with_64(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(arguments)
    assert ended.value.code == Exit.BAD_CONFIGURATION
    assert "bireme-router:" in capsys.readouterr().err


def test_help_teaches_the_overload_contract(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--help"])
    text = capsys.readouterr().out
    assert "Retry-After" in text
    assert "--first-token-timeout" in text


def test_a_taken_port_is_named_and_ends_with_64() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == Exit.BAD_CONFIGURATION
    assert f"127.0.0.1:{port} is in use" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_sigterm_lets_an_open_stream_finish_and_accepts_no_other(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].script.append(Serve(pause_s=0.02))
    asking = asyncio.create_task(fleet.client.ask(stream=True))
    await fleet.until_received()
    process = fleet.router.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    reply = await asking
    assert reply.body.endswith(b"[DONE]\n\n")
    assert await process.wait() == Exit.DRAINED


async def test_a_second_sigterm_ends_at_once(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].script.append(Silent(8))
    asking = asyncio.create_task(fleet.client.ask(stream=True))
    await fleet.until_received()
    process = fleet.router.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(LIMIT_S):
        while await listens(fleet.router.url):  # one that has not looked yet would take two signals for one
            await asyncio.sleep(0.01)
    assert process.returncode is None, "the first lets the stream go on"
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == Exit.DRAINED
    with pytest.raises(Exception, match=r"(?i)payload|disconnect|reset|closed"):
        await asking


async def listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionError:
        return False
    writer.close()
    return True


async def test_the_router_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; from bireme.process import child_environment;"
        "child = subprocess.Popen(sys.argv[1:], env=child_environment({}), stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    async with asyncio.timeout(LIMIT_S):
        while alive(child):
            await asyncio.sleep(0.01)
