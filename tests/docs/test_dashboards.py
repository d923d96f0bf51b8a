"""`make dashboards`: what Prometheus is told, and that a real one understands every query of every dashboard."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bireme_operator.local.rundir import RunDir
from charts import look
from tests.chart.helm import ROOT
from tests.support.browser import CHROMIUM, browser
from tests.support.ports import free_port

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus on the PATH (Debian: apt-get install prometheus)"
)
STATUS = {
    "metadata": {"name": "demo", "namespace": "default"},
    "local": {
        "endpoint": "http://127.0.0.1:8080/v1",
        "pods": [{"name": "demo-0-1-a", "group": 0, "stage": 1, "address": "127.1.2.3"}],
    },
}


def test_router_and_stages_of_what_is_up_are_read_with_the_names_of_the_monitors(tmp_path: Path) -> None:
    running, stopped = RunDir(tmp_path / "demo").open(), tmp_path / "old"
    stopped.mkdir()
    for folder in (running.path, stopped):
        (folder / "status.json").write_text(json.dumps(STATUS))
    try:
        router, stage = look.targets(tmp_path)
    finally:
        running.close()
    assert router["targets"] == ["127.0.0.1:8080"]
    assert stage["targets"] == ["127.1.2.3:8001"]
    assert router["labels"].items() >= {"namespace": "default", "deployment": "demo"}.items()
    assert stage["labels"].items() >= {"group": "0", "stage": "1", "node": "localhost"}.items()
    assert look.targets(tmp_path) == []


def test_grafana_is_found_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "grafana-12"
    for name in ("conf/defaults.ini", "bin/grafana"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    monkeypatch.setenv("GRAFANA_HOME", str(home))
    words = look.grafana_command(tmp_path)
    assert words is not None
    assert words[:4] == [str(home / "bin" / "grafana"), "server", "--homepath", str(home)]
    look.write(tmp_path / "made", look.Ports(9090, 3000))
    made = tmp_path / "made" / "grafana"
    assert "http_addr = 127.0.0.1\n" in (made / "grafana.ini").read_text()
    assert str(look.CHART / "dashboards") in (made / "provisioning" / "dashboards" / "bireme.yaml").read_text()


@contextlib.asynccontextmanager
async def running(folder: Path, root: Path) -> AsyncIterator[str]:
    """`make dashboards` as a user runs it; gives Prometheus' address."""
    port = free_port()
    words = [sys.executable, "-m", "charts.look", "--port", str(port), "--folder", str(folder)]
    child = subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, "BIREME_RUN_DIR": str(root)}, stdout=subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(120):
            while child.poll() is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/-/ready") as answer:
                        if answer.status == 200:
                            break
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


async def ask(address: str, path: str, **params: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{address}{path}", params=params) as answer:
        body = await answer.json()
        assert body["status"] == "success", (params, body)
        return body["data"]


@needs_prometheus
async def test_a_real_prometheus_takes_every_alert_and_understands_every_query(tmp_path: Path) -> None:
    asked = list(look.queries())
    assert "$" not in "".join(query for _, _, query in asked)
    async with running(tmp_path / "look", tmp_path / "run") as address:
        for _, _, query in asked:
            await ask(address, "/api/v1/query", query=query)
        groups = (await ask(address, "/api/v1/rules"))["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert sum(len(group["rules"]) for group in groups) == 8


@pytest.mark.docs
@pytest.mark.timeout(600, func_only=True)
@needs_prometheus
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH (Debian: apt-get install chromium)")
async def test_what_up_serves_is_seen_on_a_page_of_prometheus(tmp_path: Path, smollm2_dir: Path) -> None:
    root, port = tmp_path / "run", free_port()
    mount = f"/models={smollm2_dir.parent}"
    words = [sys.executable, "-m", "bireme.cli.main", "up", "-f", "examples/smollm2.yaml", "--port", str(port)]
    environment = {**os.environ, "BIREME_RUN_DIR": str(root)}
    up = subprocess.Popen([*words, "--mount", mount], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        async with running(tmp_path / "look", root) as address:
            await until(address, "sum(bireme_ready)", 4)
            await chat(port)
            await until(address, "sum(bireme_generation_tokens_total) > bool 0", 1)
            cost = next(query for board, panel, query in look.queries() if panel == "Dollars per hour")
            await until(address, cost, 4 * float(look.PRICE))
            shot = tmp_path / "prometheus.png"
            async with browser(tmp_path) as tab:
                await tab.open(f"{address}/consoles/bireme.html", 1200, 900)
                await tab.until("document.links.length > 40")
                link = await tab.value("[...document.links].find(a => a.textContent === 'Dollars per hour').href")
                await tab.open(link, 1200, 900)
                await tab.until(
                    "document.body?.innerText.includes('smollm2') && !!document.querySelector('canvas, svg')"
                )
                await tab.picture(shot)
            assert shot.stat().st_size > 10_000
            if keep := os.environ.get("BIREME_SCREENSHOTS"):
                shutil.copy(shot, Path(keep) / "prometheus.png")
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(120) == 0


async def until(address: str, query: str, value: float) -> None:
    """Wait for the only value of a query."""
    async with asyncio.timeout(240):
        while True:
            found = (await ask(address, "/api/v1/query", query=query))["result"]
            if found and float(found[0]["value"][1]) == value:
                return
            await asyncio.sleep(0.5)


async def chat(port: int) -> None:
    body = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
