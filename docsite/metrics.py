"""Writes docs/metrics.md: every metric with its type and who shows it, every alert with its page.

``python -m docsite.metrics [--check]``. The metrics are those of `bireme/names.py`, dashboards and alerts the chart's.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bireme.names import Metric

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "metrics.md"
CHART: Final = ROOT / "charts" / "bireme"

_PAGES: Final = {
    "Stages": ("", "`/metrics` on port 8001 of every stage pod. Where `rank` is a label it is a rank of that stage."),
    "Routers": ("bireme_router_", "`/metrics` on the router's port, over all its processes."),
    "Operator": ("bireme_operator_", "`/metrics` on the operator's probe port, 8080."),
}
_ABOUT: Final = re.compile(r"(?P<kind>Counter|Gauge|Histogram)(?: by (?P<labels>.+?))?: (?P<meaning>.+)")
_HEAD: Final = """# Metrics and alerts

Written by `make reference` from `bireme/names.py` and the chart; change them there.

The chart's monitors add `namespace`, `deployment`, `group`, `stage` and `node`. *Shown on* is the dashboard that has
it, *alert* the rule that asks for it. [Observability](observability.md) says how to collect and look at them.
"""


def render() -> str:
    """The page."""
    uses = _uses()
    parts = "".join(_section(title, prefix, about, uses) for title, (prefix, about) in _PAGES.items())
    return _HEAD + parts + _alerts()


def _section(title: str, prefix: str, about: str, uses: dict[str, dict[str, list[str]]]) -> str:
    others = tuple(other for other, _ in _PAGES.values() if other)
    mine = [one for one in Metric if one.startswith(prefix) and (prefix or not one.startswith(others))]
    rows = "".join(_row(one, uses.get(one, {})) for one in mine)
    head = "| metric | type | by | meaning | shown on | alert |\n|---|---|---|---|---|---|\n"
    return f"\n## {title}\n\n{about}\n\n{head}{rows}"


def _row(metric: Metric, uses: dict[str, list[str]]) -> str:
    about = _ABOUT.fullmatch(metric.about)
    if about is None:
        raise ValueError(f"names.py says of {metric.value} neither its type nor its meaning: {metric.about!r}")
    meaning = about["meaning"][0].upper() + about["meaning"][1:]
    boards = ", ".join(uses.get("boards", []))
    alerts = ", ".join(f"[{name}](runbooks/{name}.md)" for name in uses.get("alerts", []))
    return (
        f"| `{metric.value}` | {about['kind'].lower()} | {about['labels'] or ''} | {meaning} | {boards} | {alerts} |\n"
    )


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def _uses() -> dict[str, dict[str, list[str]]]:
    """By metric: the dashboards and the alerts that ask for it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted((CHART / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        asked = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
        for metric in _named(asked):
            found.setdefault(metric, {}).setdefault("boards", []).append(path.stem)
    for rule in _rules():
        for metric in _named(rule["expr"]):
            found.setdefault(metric, {}).setdefault("alerts", []).append(rule["alert"])
    return found


def _named(expression: str) -> set[str]:
    words = {re.sub(r"_(bucket|sum|count)$", "", word) for word in re.findall(r"\bbireme_[a-z_]+", expression)}
    return words | set(re.findall(r"\bbireme_[a-z_]+", expression))


def _alerts() -> str:
    rows = "".join(
        f"| [{rule['alert']}](runbooks/{rule['alert']}.md) | {rule['labels']['severity']} "
        f"| {rule.get('for', 'at once')} "
        f"| {_plain(rule['annotations']['summary'])} |\n"
        for rule in _rules()
    )
    head = "\n## Alerts\n\n`charts/bireme/alerts.yaml`. Each has a page that says what to look at and what to do.\n\n"
    return f"{head}| alert | severity | after | what it says |\n|---|---|---|---|\n{rows}"


def _plain(summary: str) -> str:
    """Without the template language."""
    return re.sub(r"{{ *\$labels\.(\w+) *}}", r"*\1*", re.sub(r"{{ *\$value[^}]*}}", "*N*", summary))


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it with --check."""
    text = render()
    if list(arguments) == ["--check"]:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
