"""A stopwatch that doesn't count what its machine stood still."""

from typing import Any

import pytest

from tests.controlplane.stopwatch import Stopwatch

MADE: dict[str, Any] = {"metadata": {"name": "pod", "creationTimestamp": "2026-01-01T00:00:10Z"}}
AT_0 = 1_767_225_600.0


def test_what_was_made_in_time_is_fine_and_what_was_made_later_is_not() -> None:
    Stopwatch(AT_0).assert_made(MADE, within_s=10)
    with pytest.raises(AssertionError, match=r"pod was made after 10\.0 s, due within 9"):
        Stopwatch(AT_0).assert_made(MADE, within_s=9)


def test_for_as_long_as_the_machine_stood_still_it_may_be_late() -> None:
    Stopwatch(AT_0, stood_still_s=2.0).assert_made(MADE, within_s=8)
    with pytest.raises(AssertionError, match=r"stood still for 2\.0"):
        Stopwatch(AT_0, stood_still_s=2.0).assert_made(MADE, within_s=7)
