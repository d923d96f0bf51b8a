"""Startup, readiness and liveness of one running container, with the kubelet's thresholds and defaults."""

import asyncio
from collections.abc import Callable

from tests.fleet.actions import Inside, succeeds
from tests.fleet.api import Object
from tests.fleet.runtime import Container


async def watch_health(container: Container, inside: Inside, changed: Callable[[], None]) -> None:
    """Keep ``container.started`` and ``ready`` true to its probes; returns when liveness or startup has failed."""
    if not container.started and not await _starts(container, inside):
        return
    container.started = True
    readiness = container.spec.get("readinessProbe")
    if readiness is None:
        container.ready = True
    changed()
    async with asyncio.TaskGroup() as group:
        ready = group.create_task(_keep_ready(container, readiness, inside, changed))
        await _until_dead(container.spec.get("livenessProbe"), inside)
        ready.cancel()


async def _starts(container: Container, inside: Inside) -> bool:
    probe = container.spec.get("startupProbe")
    return probe is None or await _until(probe, inside, wanted=True)


async def _until_dead(probe: Object | None, inside: Inside) -> None:
    if probe is None:
        await asyncio.Event().wait()
    else:
        await _until(probe, inside, wanted=False)


async def _keep_ready(container: Container, probe: Object | None, inside: Inside, changed: Callable[[], None]) -> None:
    while probe is not None:
        await _until(probe, inside, wanted=not container.ready, gives_up=False)
        container.ready = not container.ready
        changed()


async def _until(probe: Object, inside: Inside, *, wanted: bool, gives_up: bool = True) -> bool:
    """Probe until the threshold of ``wanted`` answers in a row is met, or with ``gives_up`` the opposite one."""
    needed = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    last, row = wanted, 0
    while True:
        answer = await once(probe, inside)
        last, row = answer, row + 1 if answer == last else 1
        if row >= needed[answer] and answer is wanted:
            return True
        if row >= needed[answer] and gives_up and wanted:
            return False
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def once(probe: Object, inside: Inside) -> bool:
    """One answer of a probe; silence beyond its timeout is a failure."""
    try:
        async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
            return await succeeds(probe, inside)
    except TimeoutError:
        return False
