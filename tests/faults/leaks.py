"""What must be as at the start once all is quiet again: gauges, routes, processes and files."""

import time
from collections.abc import Callable

import httpx

from bireme.names import Metric
from tests.faults.parts import gauges
from tests.support.deployment import Deployment

ZERO = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.KV_USAGE)
ROUTER_ZERO = (Metric.ROUTER_IN_FLIGHT, Metric.ROUTER_OUTSTANDING, Metric.ROUTER_WAITING)
KEPT = {"lock", "status.json", "routes.json", "events.jsonl", "logs"}
"""What stays of a run for whoever asks later."""
_QUIET_LIMIT_S = 60.0


def busy_gauges(deployment: Deployment, groups: int) -> list[str]:
    """Gauges that are not zero, given a moment to become so."""
    return _settled(lambda: _busy(deployment, groups))


def _busy(deployment: Deployment, groups: int) -> list[str]:
    found = []
    for group in range(groups):
        values = gauges(deployment, group)
        found += [f"group {group}: {name} is {values[name]:g}" for name in ZERO if values[name] != 0]
    lines = httpx.get(f"{deployment.url}/metrics", timeout=30).text.splitlines()
    return found + [
        f"router: {line}"
        for line in lines
        if line.startswith(tuple(ROUTER_ZERO)) and float(line.rpartition(" ")[2]) != 0
    ]


def _settled(look: Callable[[], list[str]]) -> list[str]:
    end = time.monotonic() + _QUIET_LIMIT_S
    while (found := look()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def left_files(deployment: Deployment) -> list[str]:
    """Files of a run that should have gone with it."""
    directory = deployment.run_dir / deployment.name
    return sorted(path.name for path in directory.iterdir() if path.name not in KEPT)
