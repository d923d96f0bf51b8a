"""A network that swallows, delays or drops packets: nobody is told, so only silence can be noticed, and it is.

Two scripted stages on two nodes of a network of their own; what they say is read from the leader's log.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import network
from tests.faults.network import Line
from tests.supervisor.pods import PATIENCE_S, Pod, children
from tests.support.deployment import until

pytestmark = pytest.mark.skipif(bool(network.missing()), reason=network.missing() or "-")


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    """Two nodes."""
    with Line("net") as made:
        yield made


@pytest.fixture
def group(line: Line, tmp_path: Path) -> Iterator[tuple[Pod, Pod]]:
    """One stage on each node, serving."""
    leader, other = line.addresses
    pods = (
        Pod(tmp_path, 0, leader, netns=line.nodes[0]).start(),
        Pod(tmp_path, 1, leader, netns=line.nodes[1], address=other).start(),
    )
    _await(pods[0], lambda log: "Serving/None" in log)
    yield pods
    for pod in pods:
        pod.kill()


def _await(pod: Pod, wanted: Callable[[str], bool]) -> None:
    until(lambda: wanted(pod.log.read_text()), PATIENCE_S, lambda: f"never said: {pod.log.read_text()[-4000:]}")


def _ranks(group: tuple[Pod, Pod]) -> list[int]:
    """How many rank processes each stage has started so far."""
    return [pod.log.read_text().count("runs as process") for pod in group]


def _served(log: str) -> int:
    return log.count("Serving/None")


def test_a_stage_behind_a_dead_line_is_missed_by_its_silence_and_rejoins_with_its_weights(
    group: tuple[Pod, Pod], line: Line
) -> None:
    before = _ranks(group)
    with line.cut():
        _await(group[0], lambda log: "Recovering/StageLost" in log and "no word for" in log)
        _await(group[1], lambda log: "no word from the leader" in log)
    _await(group[0], lambda log: _served(log) >= 2)
    assert _ranks(group) == before


def test_recoveries_converge_while_packets_are_late_and_lost(group: tuple[Pod, Pod], line: Line) -> None:
    with line.bad():
        for number in (1, 2, 3):
            os.kill(children(group[number % 2].pid)[0], signal.SIGKILL)
            _await(group[0], lambda log, wanted=1 + number: _served(log) >= wanted)  # type: ignore[misc]
