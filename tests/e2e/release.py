"""The release of the chart on the cluster: this checkout's, or the one before it, which is the same under other names."""

import shutil
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.cluster import ROOT
from tests.e2e.commands import run
from tests.e2e.images import PREVIOUS, TAG

CHART: Final = ROOT / "charts" / "bireme"
NAME: Final = "bireme"
SYSTEM: Final = "bireme-system"


def install(*words: str, chart: Path = CHART, tag: str = TAG) -> None:
    """`helm upgrade --install`, until the operator is ready.

    Raises:
        CommandFailed: helm or the server said no.
    """
    run(
        "helm", "upgrade", "--install", NAME, chart, "--namespace", SYSTEM, "--create-namespace", "--wait",
        "--timeout=180s", f"--set=image.tag={tag}", *words,
    )  # fmt: skip


def install_previous(directory: Path) -> None:
    """Take the release away and install the one before, whose images have its version as their tag."""
    copy = directory / NAME
    shutil.copytree(CHART, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": PREVIOUS, "appVersion": PREVIOUS}))
    uninstall()
    install(chart=copy, tag=PREVIOUS)


def uninstall() -> None:
    """`helm uninstall`, until all of it is gone."""
    run("helm", "uninstall", NAME, "--namespace", SYSTEM, "--wait", "--timeout=120s")
