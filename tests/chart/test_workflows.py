"""The workflows for the public are clean and call what the repository has."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.helm import ROOT
from tests.controlplane.build import ensure
from tests.controlplane.programs import Program
from tests.controlplane.toolchain import CannotBuild

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.controlplane
@pytest.mark.timeout(120, func_only=True)
def test_actionlint_finds_nothing(actionlint: Path) -> None:
    done = subprocess.run([actionlint, "-no-color", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def actionlint() -> Path:
    """Where actionlint is."""
    try:
        return ensure([Program.ACTIONLINT])[Program.ACTIONLINT]
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_asks_for_no_right_that_it_does_not_name(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_makes_what_the_makefile_makes(path: Path) -> None:
    asked = set(re.findall(r"run: make ([\w-]+)", path.read_text()))
    assert asked <= set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))


def test_every_image_is_built_and_released() -> None:
    wanted = {path.parent.name for path in (ROOT / "images").glob("*/Dockerfile")}
    jobs = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS}
    assert set(jobs["images"]["build"]["strategy"]["matrix"]["image"]) == wanted
    released = jobs["release"]["images"]["strategy"]["matrix"]["include"]
    assert {entry["image"] for entry in released} == wanted
