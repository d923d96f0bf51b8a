"""A wait for a deployment under load: it says how it goes, and ends with what the deployment's parts say of themselves.

A benchmark on a machine that is lent for minutes must not lose them to a wait that says nothing.
"""

import threading
import time
from typing import Final

import httpx

from benchmarks.gpu.served import Streams, told
from bireme.names import Metric
from tests.support.deployment import Deployment

SAY_S: Final = 5.0
LIMIT_S: Final = 60.0
_TOLD: Final = (Metric.ROUTER_WAITING, Metric.ROUTER_IN_FLIGHT, Metric.ROUTER_OUTSTANDING, Metric.ROUTER_GROUP_READY)


class Wait:
    """``what`` is waited for, unless ``over`` is set. Look often; a line is said every 5 s."""

    def __init__(self, what: str, deployment: Deployment, load: Streams, over: threading.Event) -> None:
        self._what = what
        self._deployment = deployment
        self._load = load
        self._over = over
        self._begin = self._said = time.monotonic()
        self._arrived = load.arrived

    def look(self) -> None:
        """Say something if it is time to.

        Raises:
            AssertionError: it took too long; the message is what everybody says.
        """
        assert not self._over.is_set(), f"{self._what}, but all is over"
        now = time.monotonic()
        if now - self._said >= SAY_S:
            self._said = now
            print(f"{self._line(now)}; {told(self._deployment)}", flush=True)
        if now - self._begin >= LIMIT_S:
            text = f"{self._line(now)}; {standing(self._deployment)}"
            print(f"{text}\n{told(self._deployment)}", flush=True)
            raise AssertionError(text)

    def _line(self, now: float) -> str:
        failed = self._load.failed
        last = f", the last by {failed[-1][:200]}" if failed else ""
        return (
            f"{self._what} for {now - self._begin:.0f} s: {self._load.arrived - self._arrived} parts came, "
            f"{len(failed)} streams failed{last}"
        )


def standing(deployment: Deployment) -> str:
    """What the router has open and waiting, and what the group's leader has to do."""
    try:
        page = deployment.client.get(f"{deployment.url}/metrics").text.splitlines()
        names = tuple(map(str, _TOLD))
        router = ", ".join(line.removeprefix("bireme_router_") for line in page if line.startswith(names))
        said = deployment.state(0)
    except (httpx.HTTPError, StopIteration, OSError) as error:
        return f"nobody answers: {error!r}"
    leader = f"{said.state} {said.message}, {said.running} running, {said.waiting} waiting, step {said.step}"
    ranks = [f"{rank.phase} step {rank.step} {rank.step_age_s:.1f} s" for one in said.stages for rank in one.ranks]
    return f"router: {router}; leader: {leader}, age {said.step_age_s:.1f} s; ranks: {', '.join(ranks)}"
