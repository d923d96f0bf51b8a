"""Fixtures of the chart's tests: helm, built from its Go module like the programs of the control plane."""

from pathlib import Path

import pytest

from tests.chart.helm import Helm


@pytest.fixture
def helm(helm_program: Path, tmp_path: Path) -> Helm:
    """A helm that knows no cluster."""
    return Helm(helm_program, tmp_path / "helm")
