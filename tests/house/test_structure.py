"""The shape of the house: sizes, promises kept by lint that no linter knows, generated pages up to date."""

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bireme import reference

ROOT = Path(__file__).parent.parent.parent
PARTS = ["bireme", "operator/bireme_operator", "router/bireme_router", "worker/bireme_worker"]
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
LONGEST_FILE = 400


def _functions(path: Path) -> list[int]:
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]


def test_no_file_is_longer_than_the_house_allows() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in SOURCES if (lines := _lines(path)) > LONGEST_FILE}
    assert not long, f"split these by noun: {long}"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("part", PARTS)
def test_functions_stay_short(part: str) -> None:
    lengths = [length for path in SOURCES if path.is_relative_to(ROOT / part) for length in _functions(path)]
    assert statistics.median(lengths) <= 10
    assert statistics.quantiles(lengths, n=10)[-1] <= 35


def test_every_module_opens_with_its_story() -> None:
    silent = [str(path.relative_to(ROOT)) for path in SOURCES if path.read_text().strip() and not _story(path)]
    assert not silent


def _story(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text()))


def test_no_open_end_is_kept_in_the_sources() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    found = [str(path.relative_to(ROOT)) for path in SOURCES if any(mark in path.read_text() for mark in marks)]
    assert not found


def test_broad_excepts_are_only_in_the_places_that_the_style_names() -> None:
    broad = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}))
    ]
    raises_no_other = "worker/bireme_worker/text/tokenizer.py"  # the tokenizers library knows only Exception itself
    assert all(path.endswith("main.py") or path == raises_no_other for path in broad), broad


def test_nothing_waits_by_a_call_that_swallows_a_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 does, when what it waits for comes in the same turn; `asyncio.timeout` does not."""
    waiting = [str(path.relative_to(ROOT)) for path in SOURCES if "asyncio.wait_for(" in path.read_text()]
    assert not waiting, f"use `async with asyncio.timeout(...)`: {waiting}"


def test_the_reference_page_is_generated_from_the_names() -> None:
    assert reference.render() == reference.PAGE.read_text(), "run `make reference`"
    assert reference.render_operator() == reference.OPERATOR_PAGE.read_text(), "run `make reference`"


TORCH_FREE = [
    "bireme.wire.frames",
    "bireme.cli.main",
    "bireme_operator.plan.plan",
    "bireme_router.main",
    "bireme_worker.supervisor.main",
    "bireme_worker.coordinator.main",
    "bireme_worker.http.main",
]


@pytest.mark.parametrize("module", TORCH_FREE)
def test_only_rank_processes_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
