"""A wall clock that jumps changes nothing: worker and router decide by the monotonic clock only.

The wall clock may be read where it is told to people or models: creation times, logs, dates in prompts. Each such
place is listed here; a new one has to be looked at.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PARTS = ("worker/bireme_worker", "router/bireme_router")
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
TOLD_ONLY = {
    "worker/bireme_worker/http/generation.py": "the answer's `created`",
    "worker/bireme_worker/http/prompts.py": "the date that a chat template may print",
    "worker/bireme_worker/llm/engine.py": "the date that a chat template may print",
    "router/bireme_router/job.py": "the answer's `created`",
    "router/bireme_router/pages.py": "what a page shows",
    "router/bireme_router/edge/access_log.py": "the time of a log line",
}


def _reads_wall_clock(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [c for c in calls if isinstance(c, ast.Attribute) and isinstance(c.value, ast.Name)]
    return any((call.value.id, call.attr) in WALL for call in named if isinstance(call.value, ast.Name))


def test_nothing_in_worker_or_router_decides_by_the_wall_clock() -> None:
    sources = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    readers = {str(path.relative_to(ROOT)) for path in sources if _reads_wall_clock(path)}
    assert readers <= TOLD_ONLY.keys(), f"read time.monotonic() here: {sorted(readers - TOLD_ONLY.keys())}"
    assert len(sources) > 100


def test_the_check_sees_a_wall_clock(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text("import time\ndeadline = time.time() + 5\n")
    assert _reads_wall_clock(file)
