"""Reloads A→B→A and a restarted stage under sixteen streams: the short form of `benchmarks/reload_requests.py`."""

import random

import pytest

from benchmarks.reload_requests import RESTART, Run, serve

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_reloads_and_a_restart_under_sixteen_streams_fail_nothing_and_every_id_is_of_the_weights_it_names() -> None:
    run = Run(left=48, restarts=1)
    serve(run, random.Random(3))
    assert not [ask.error for ask in run.asks if ask.error]
    assert not run.different
    assert {"a", "b"} <= run.revisions.keys()
    assert run.done[RESTART] == 1
    assert len(run.asks) >= 48
