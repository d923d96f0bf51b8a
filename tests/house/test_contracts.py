"""The import contracts bite: each is broken on purpose in a scratch copy, and the checker must name it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ["bireme", "operator/bireme_operator", "router/bireme_router", "worker/bireme_worker"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _lint(root: Path) -> subprocess.CompletedProcess[str]:
    path = ":".join(str(root / folder) for folder in ("", "operator", "router", "worker"))
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    return subprocess.run(
        [*command, "--no-cache"], cwd=root, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True
    )


def test_the_contracts_hold(scratch: Path) -> None:
    result = _lint(scratch)
    assert result.returncode == 0, result.stdout


BREACHES = {
    "the wire imports torch": ("bireme/wire/frames.py", "import torch"),
    "the API imports a part": ("bireme/api/__init__.py", "import bireme_worker"),
    "the router imports the worker": ("router/bireme_router/main.py", "import bireme_worker.identity"),
    "the operator imports the router": ("operator/bireme_operator/plan/plan.py", "import bireme_router"),
    "the planner opens a socket": ("operator/bireme_operator/plan/plan.py", "import socket"),
    "the planner reads the clock": ("operator/bireme_operator/plan/plan.py", "import time"),
    "the scheduler reads the environment": ("worker/bireme_worker/engine/scheduler.py", "import os"),
    "the coordinator imports torch": ("worker/bireme_worker/coordinator/main.py", "import torch"),
    "a policy of the router does I/O": ("router/bireme_router/policies/__init__.py", "import aiohttp"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_named(scratch: Path, breach: str) -> None:
    file, line = BREACHES[breach]
    target = scratch / file
    target.write_text(target.read_text() + f"\n{line}\n")
    result = _lint(scratch)
    assert result.returncode != 0
    assert "BROKEN" in result.stdout
