"""A wait of a GPU benchmark says how it goes, and ends with what everybody says of himself."""

import threading
import time
from unittest.mock import Mock

import httpx
import pytest

from benchmarks.gpu.waits import Wait


def test_a_wait_speaks_each_five_seconds_and_ends_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = Mock(groups=lambda: ["Serving"], client=Mock(get=Mock(side_effect=httpx.ConnectError("refused"))))
    load, over = Mock(arrived=7, failed=["503"]), threading.Event()
    wait = Wait("waits for parts", deployment, load, over)
    begin = time.monotonic()
    load.arrived = 9
    for later in (4.0, 6.0, 8.0, 12.0):
        monkeypatch.setattr(time, "monotonic", lambda later=later: begin + later)
        wait.look()
    said = 'waits for parts for {} s: 2 parts came, 1 streams failed, the last by 503; ["Serving"]'
    assert capsys.readouterr().out.splitlines() == [said.format(6), said.format(12)]
    monkeypatch.setattr(time, "monotonic", lambda: begin + 61.0)
    with pytest.raises(AssertionError, match=r"waits for parts for 61 s: .*; nobody answers: .*refused"):
        wait.look()
    over.set()
    with pytest.raises(AssertionError, match="all is over"):
        wait.look()
