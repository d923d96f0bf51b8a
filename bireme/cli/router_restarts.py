"""What the event log of a run says about the router: each end and the start that followed. Pure."""

from collections.abc import Iterable

from bireme.cli.recoveries import Line, Moment, Recovery

ROUTER = -1
"""The router's place in the event log: it belongs to no group."""


def router_restarts(lines: Iterable[Line]) -> list[Recovery]:
    """All restarts of the router, in order."""
    found: list[Recovery] = []
    for line in lines:
        if line.kind != "router":
            continue
        down = bool(found) and found[-1].took_s is None
        if down and line.phase == "Running":
            found[-1].took_s = round(line.at - found[-1].began, 3)
            found[-1].moments.append(Moment(found[-1].took_s, "rejoin", f"router: started as process {line.pid}"))
        elif not down and line.phase == "BackingOff":
            ended = Moment(0.0, "detect", f"router: process ended: {line.message}")
            found.append(Recovery(ROUTER, line.at, first=False, cause=line.message, moments=[ended]))
    return found
