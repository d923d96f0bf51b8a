"""The site builds without a warning and loads nothing from outside; what is generated is up to date."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docsite import metrics, pictures
from docsite.hooks import ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(https?:)?//|<link\b(?![^>]*canonical)[^>]*href=\"?(https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make docs` does it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_loads_anything_from_outside(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    assert {page.name: found[0] for page in pages if (found := LOADED.search(page.read_text()))} == {}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)


def test_no_mark_of_a_command_is_left_on_a_page(site: Path) -> None:
    for page in ("quickstart.html", "observability.html"):
        text = (site / page).read_text()
        assert "```" not in text
        assert "until=" not in text
    assert "language-bash" in (site / "quickstart.html").read_text()


def test_the_pictures_are_drawn_from_their_tables() -> None:
    assert pictures.main(["--check"]) == 0, "run `make docs`"


def test_the_page_of_metrics_is_written_from_names_dashboards_and_alerts() -> None:
    assert metrics.main(["--check"]) == 0, "run `make reference`"
