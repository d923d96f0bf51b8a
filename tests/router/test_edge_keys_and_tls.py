"""Keys, certificates and the access log on a real router: who is let in, what is read again, what is written down."""

import asyncio
import hashlib
import json
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bireme.names import Exit
from bireme_router.edge.api_keys import ApiKeys, BadKeys, read_keys
from bireme_router.edge.certificate import Certificate
from bireme_router.errors import Unauthorized
from bireme_router.main import main
from tests.router.conftest import Launch
from tests.support.router_process import CHAT, LIMIT_S, QUESTION
from tests.support.stub_leader import Die, Silent

KEY = {"authorization": "Bearer sk-one"}


def keys_file(path: Path, **names: str) -> Path:
    keys = {hashlib.sha256(f"sk-{key}".encode()).hexdigest(): name for key, name in names.items()}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"v": 1, "keys": keys}))
    fresh.rename(path)
    return path


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1."""
    chain, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", chain],
        check=True, capture_output=True,
    )  # fmt: skip
    return chain, key


async def test_without_a_key_or_with_a_wrong_one_the_answer_is_401_in_openais_shape(
    launch: Launch, tmp_path: Path
) -> None:
    fleet = await launch(1, "--api-keys", str(keys_file(tmp_path / "keys.json", one="team-a")))
    for headers in (
        {},
        {"authorization": "Bearer sk-two"},
        {"authorization": "Basic sk-one"},
        {"authorization": "Bearer "},
    ):
        reply = await fleet.client.ask(headers=headers)
        assert reply.status == 401
        error = json.loads(reply.body)["error"]
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
        assert reply.headers["www-authenticate"] == "Bearer"
    assert fleet.received == 0
    reply = await fleet.client.ask(headers=KEY)
    assert reply.status == 200
    assert "sk-one" not in str(fleet.leaders[0].received[0].headers), "a client's key never reaches a worker"


async def test_models_and_routes_ask_for_the_key_and_probes_do_not(launch: Launch, tmp_path: Path) -> None:
    fleet = await launch(1, "--api-keys", str(keys_file(tmp_path / "keys.json", one="a")))
    for path, status in (("/v1/models", 401), ("/admin/routes", 401), ("/", 200), ("/metrics", 200), ("/livez", 200)):
        assert await fleet.client.status(path) == status, path
    async with fleet.client.session.get(fleet.client.url + "/admin/routes", headers=KEY) as response:
        assert (await response.json())["groups"][0]["used"] is True


async def test_keys_are_read_again_and_a_broken_file_changes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("bireme_router.edge.changed.LOOK_S", 0.0)
    path = keys_file(tmp_path / "keys.json", one="a")
    keys = ApiKeys(path)
    assert keys.name_of("Bearer sk-one") == "a"
    keys_file(path, two="b")
    assert keys.name_of("bearer sk-two") == "b"
    with pytest.raises(Unauthorized):
        keys.name_of("Bearer sk-one")
    path.write_text("{broken")
    assert keys.name_of("Bearer sk-two") == "b"


def test_a_key_in_the_clear_is_refused_without_being_repeated() -> None:
    with pytest.raises(BadKeys) as refused:
        read_keys(b'{"v": 1, "keys": {"sk-secret": "a"}}')
    assert "sk-secret" not in str(refused.value)


@pytest.mark.parametrize("flag", ["--api-keys", "--access-log", "--tls-cert"])
def test_a_file_that_cannot_be_used_is_named_and_ends_with_64(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none" / "file")
    more = ["--tls-key", missing] if flag == "--tls-cert" else []
    script = ["--routes", "r", "--port", "0", flag, missing, *more]
    assert main(script) == Exit.BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert missing in said
    assert "Traceback" not in said


async def test_tls_is_spoken_with_the_certificate_and_streams_pass(launch: Launch, tmp_path: Path) -> None:
    chain, key = certificate(tmp_path, "first")
    trusting = ssl.create_default_context(cafile=str(chain))
    fleet = await launch(1, "--tls-cert", str(chain), "--tls-key", str(key), tls=trusting)
    assert fleet.client.url.startswith("https://")
    body = {**QUESTION, "stream": True}
    fleet.script.append(Die(4))
    async with fleet.client.session.post(fleet.client.url + CHAT, json=body) as response:
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


def test_a_renewed_certificate_is_used_and_half_a_pair_is_not(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path, "first")
    other_chain, other_key = certificate(tmp_path, "second")
    served = Certificate(chain, key)
    assert common_name(served, tmp_path) == "first"
    other_chain.rename(chain)
    served.renew()
    assert common_name(served, tmp_path) == "first", "the key does not fit yet"
    other_key.rename(key)
    served.renew()
    assert common_name(served, tmp_path) == "second"


def common_name(served: Certificate, directory: Path) -> str:
    """What a client is shown, by a handshake in memory."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="x")
    server = served.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    der = client.getpeercert(binary_form=True)
    assert der is not None
    (directory / "seen.pem").write_text(ssl.DER_cert_to_PEM_cert(der))
    seen = subprocess.run(
        ["openssl", "x509", "-noout", "-subject", "-in", directory / "seen.pem"],
        check=True,
        capture_output=True,
        text=True,
    )
    return seen.stdout.rpartition("=")[2].strip()


async def lines_of(log: Path, count: int) -> list[dict[str, Any]]:
    """So many lines, once they are there: a client has its answer before it is written down."""
    async with asyncio.timeout(LIMIT_S):
        while log.read_text().count("\n") < count:
            await asyncio.sleep(0.01)
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_the_access_log_has_one_line_per_request_and_nothing_secret(launch: Launch, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    keys = keys_file(tmp_path / "keys.json", one="team-a")
    fleet = await launch(1, "--access-log", str(log), "--api-keys", str(keys))
    whole = await fleet.client.ask(headers=KEY | {"x-request-id": "mine"}, stream=True)
    await lines_of(log, 1)
    await fleet.client.ask(headers=KEY)
    await lines_of(log, 2)
    await fleet.client.ask()
    lines = await lines_of(log, 3)
    assert [line["status"] for line in lines] == [200, 200, 401]
    stream, unary, refused = lines
    assert (stream["request_id"], stream["key"], stream["model"], stream["stream"]) == ("mine", "team-a", "m", True)
    assert stream["bytes_out"] == len(whole.body)
    assert 0 <= stream["first_byte_ms"] <= stream["duration_ms"]
    assert re.fullmatch("[0-9a-f]{32}", unary["request_id"])
    assert "no API key" in refused["error"] or "not known" in refused["error"]
    assert "sk-one" not in log.read_text()
    assert "Where to" not in log.read_text()


async def test_the_access_log_follows_a_rotation_and_notes_who_left(launch: Launch, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    fleet = await launch(1, "--access-log", str(log))
    await fleet.client.ask()
    log.rename(tmp_path / "access.jsonl.1")
    async with asyncio.timeout(LIMIT_S):
        while not log.exists():
            await fleet.client.ask()
    before = fleet.received
    fleet.script.append(Silent())
    asking = asyncio.create_task(fleet.client.ask())
    await fleet.until_received(before + 1)
    asking.cancel()
    async with asyncio.timeout(LIMIT_S):
        while '"status":499' not in log.read_text():
            await asyncio.sleep(0.01)
