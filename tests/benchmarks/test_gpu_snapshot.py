"""What is laid out for a machine without a package index: sources, metadata, wheels, one command."""

import tomllib
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from benchmarks.gpu.snapshot import ROOT, lay_out


def test_the_folder_has_what_an_installation_has(tmp_path: Path) -> None:
    wheels, to = tmp_path / "wheels", tmp_path / "out"
    wheels.mkdir()
    (wheels / "a-1-py3-none-any.whl").touch()
    lay_out(to, wheels)
    lay_out(to, wheels)  # anew over its own
    (found,) = Distribution.discover(name="bireme", path=[str(to)])
    assert found.version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (to / "wheels" / "a-1-py3-none-any.whl").exists()
    assert (to / "operator" / "bireme_operator" / "local" / "session.py").exists()
    assert not list(to.rglob("*.pyc"))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit, match="holds something else"):
        lay_out(tmp_path, None)
    assert (tmp_path / "mine").exists()
