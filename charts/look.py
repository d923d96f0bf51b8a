"""Look at what `bireme up` runs through the chart's dashboards, without containers: ``python -m charts.look``.

It starts Prometheus, and Grafana where it is installed, on loopback, on files of its own in dist/dashboards. Series get
the names that the chart's monitors give them in a cluster, so the same dashboards and alerts work.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import yaml

from bireme.names import Port
from bireme_operator.local.rundir import RunDir, run_root

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "bireme"
FOLDER: Final = ROOT / "dist" / "dashboards"
PRICE: Final = "2.50"
_GRAFANA_HOMES: Final = ("/usr/share/grafana", "/opt/grafana")
_EVERY_S: Final = 1.0


class NotInstalled(Exception):
    """A program is missing; the message says where it comes from."""


@dataclass(frozen=True)
class Ports:
    """Where the two listen, on 127.0.0.1."""

    prometheus: int
    grafana: int


def targets(root: Path) -> list[dict[str, Any]]:
    """What Prometheus shall read now: the router and every stage of all that is up below ``root``."""
    found: list[dict[str, Any]] = []
    for path in sorted(root.glob("*/status.json")):
        if RunDir(path.parent).holder() is None:
            continue
        content = json.loads(path.read_text())
        names = {"namespace": content["metadata"]["namespace"], "deployment": content["metadata"]["name"]}
        found.append(_target(urlsplit(content["local"]["endpoint"]).netloc, {**names, "job": "routers"}))
        for pod in content["local"]["pods"]:
            place = {"group": str(pod["group"]), "stage": str(pod["stage"]), "node": "localhost", "pod": pod["name"]}
            found.append(_target(f"{pod['address']}:{int(Port.ADMIN)}", {**names, **place, "job": "stages"}))
    return found


def _target(address: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"targets": [address], "labels": labels}


def queries() -> Iterator[tuple[str, str, str]]:
    """Dashboard, panel and query of everything that the dashboards ask, with every choice set to all."""
    for path in sorted((CHART / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield board["title"], panel["title"], _chosen(target["expr"])


def _chosen(expression: str) -> str:
    plain = expression.replace("$__rate_interval", "1m").replace("$price", PRICE)
    return re.sub(r"\$(namespace|deployment|group|stage|node)\b", ".*", plain)


def write(folder: Path, ports: Ports) -> None:
    """Everything that the two programs read."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "consoles").mkdir(parents=True)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "5s"},
        "rule_files": [str(CHART / "alerts.yaml")],
        "scrape_configs": [
            {
                "job_name": "bireme",
                "file_sd_configs": [{"files": [str(folder / "targets.json")], "refresh_interval": "2s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "consoles" / "bireme.html").write_text(_links())
    _write_targets(folder, [])
    for name, content in _grafana_files(folder, ports).items():
        path = folder / "grafana" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _links() -> str:
    rows: list[str] = []
    board = ""
    for title, panel, query in queries():
        if title != board:
            board = title
            rows.append(f"<h2>{escape(title)}</h2>")
        asked = urlencode({"g0.expr": query, "g0.tab": 0, "g0.range_input": "15m"})
        rows.append(f'<p><a href="/graph?{escape(asked)}">{escape(panel)}</a> <code>{escape(query)}</code></p>')
    # Consoles are templates, in which braces have a meaning.
    body = "\n".join(rows).replace("{{", "{ {")
    return f"<!doctype html><meta charset=utf-8><title>Bireme</title><h1>Bireme</h1>\n{body}\n"


def _grafana_files(folder: Path, ports: Ports) -> dict[str, str]:
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": f"http://127.0.0.1:{ports.prometheus}",
        "isDefault": True,
        "jsonData": {"timeInterval": "1s"},
    }
    boards = {"name": "Bireme", "type": "file", "options": {"path": str(CHART / "dashboards")}}
    paths = {name: folder / "grafana" / name for name in ("data", "logs", "plugins", "provisioning")}
    settings: dict[str, dict[str, object]] = {
        "paths": {name: str(path) for name, path in paths.items()},
        "server": {"http_addr": "127.0.0.1", "http_port": ports.grafana},
        "auth.anonymous": {"enabled": "true", "org_role": "Viewer"},
        "analytics": {"reporting_enabled": "false", "check_for_updates": "false", "check_for_plugin_updates": "false"},
        "security": {"disable_gravatar": "true"},
        "news": {"news_feed_enabled": "false"},
    }
    ini = "".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
        for section, values in settings.items()
    )
    return {
        "grafana.ini": ini,
        "provisioning/datasources/bireme.yaml": yaml.safe_dump({"apiVersion": 1, "datasources": [source]}),
        "provisioning/dashboards/bireme.yaml": yaml.safe_dump({"apiVersion": 1, "providers": [boards]}),
    }


def _write_targets(folder: Path, now: list[dict[str, Any]]) -> None:
    new = folder / "targets.new"
    new.write_text(json.dumps(now, indent=1))
    new.rename(folder / "targets.json")  # Prometheus never reads half of it


def prometheus_command(folder: Path, ports: Ports) -> list[str]:
    """Words that start Prometheus.

    Raises:
        NotInstalled: it is not on the PATH.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise NotInstalled("prometheus is not on the PATH: apt-get install prometheus, or a release of its own")
    return [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.console.templates={folder / 'consoles'}",
        f"--web.listen-address=127.0.0.1:{ports.prometheus}",
        "--log.level=warn",
    ]


def grafana_command(folder: Path) -> list[str] | None:
    """Words that start Grafana, or None where there is none."""
    wanted = os.environ.get("GRAFANA_HOME")
    homes = [Path(wanted)] if wanted else [Path(home) for home in _GRAFANA_HOMES]
    home = next((home for home in homes if (home / "conf" / "defaults.ini").exists()), None)
    if home is None:
        return None
    own = home / "bin" / "grafana"
    program = str(own) if own.exists() else shutil.which("grafana")
    if program is None:
        return None
    return [program, "server", "--homepath", str(home), "--config", str(folder / "grafana" / "grafana.ini")]


def look(folder: Path, ports: Ports) -> int:
    """Run both until one ends or somebody says stop."""
    write(folder, ports)
    commands = {"prometheus": prometheus_command(folder, ports)}
    if grafana := grafana_command(folder):
        commands["grafana"] = grafana
    print(_greeting(ports, with_grafana=grafana is not None), flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    children = {name: _start(folder, name, words) for name, words in commands.items()}
    try:
        return _follow(folder, children)
    except KeyboardInterrupt:
        return 0
    finally:
        for child in children.values():
            child.terminate()
        for child in children.values():
            child.wait()


def _start(folder: Path, name: str, words: list[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        # A session of its own: Ctrl-C is for us, who then end it.
        return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def _follow(folder: Path, children: dict[str, subprocess.Popen[bytes]]) -> int:
    known: list[dict[str, Any]] = []
    while True:
        now = targets(run_root())
        if now != known:
            known = now
            _write_targets(folder, now)
        for name, child in children.items():
            if child.poll() is not None:
                log = (folder / f"{name}.log").read_text(errors="replace")
                print(f"{name} ended with {child.returncode}:\n{log[-2000:]}", file=sys.stderr)
                return 1
        time.sleep(_EVERY_S)


def _greeting(ports: Ports, *, with_grafana: bool) -> str:
    page = f"http://127.0.0.1:{ports.prometheus}/consoles/bireme.html"
    shown = (
        f"Grafana     http://127.0.0.1:{ports.grafana}/dashboards"
        if with_grafana
        else "Grafana     is not installed (GRAFANA_HOME names an unpacked release); the queries are on the page above"
    )
    return f"Prometheus  {page}\n{shown}\nCtrl-C ends both."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them."""
    parser = argparse.ArgumentParser(prog="python -m charts.look", description="Dashboards of `bireme up`.")
    parser.add_argument("--port", type=int, default=9090, help="of Prometheus (%(default)s)")
    parser.add_argument("--grafana-port", type=int, default=3000, help="(%(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where their files are (dist/dashboards)")
    chosen = parser.parse_args(arguments)
    try:
        return look(chosen.folder.absolute(), Ports(chosen.port, chosen.grafana_port))
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main())
