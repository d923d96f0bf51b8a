"""Pods for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.pods import NOTHING_BY_TIME, Pod, Pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def lasting_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pod, Pod]]:
    """Two stages that all tests of a module share: whatever one of them breaks must be whole again for the next."""
    made = Pods(tmp_path_factory.mktemp("lasting"))
    yield made.group(**NOTHING_BY_TIME)
    made.end()
