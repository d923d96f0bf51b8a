"""Write the Grafana dashboards of the chart: ``python -m charts.dashboards [--check]``.

A dashboard is a table of questions to Prometheus here and JSON there. All of them filter by what the chart's monitors
put on every series: `namespace`, `deployment`, `group`, `stage`, `node`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bireme.names import Metric

TARGET: Final = Path(__file__).parent / "bireme" / "dashboards"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


@dataclass(frozen=True)
class Panel:
    """One graph. ``queries`` maps a legend to an expression, in which $where is the filter of the dashboard."""

    title: str
    queries: dict[str, str]
    unit: str = "short"


@dataclass(frozen=True)
class Dashboard:
    """``filters`` are the labels that a reader chooses from, the wide ones first."""

    name: str
    title: str
    about: str
    filters: tuple[str, ...]
    panels: tuple[Panel, ...]
    price: bool = False


def _quantile(share: float, metric: Metric, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{$where}}[$__rate_interval])))"


def _rate(metric: Metric, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{$where}}[$__rate_interval]))"


_FAILED: Final = (
    f'sum by (deployment) (rate({Metric.ROUTER_REQUESTS}{{$where,code=~"5.."}}[$__rate_interval]))'
    f" / sum by (deployment) (rate({Metric.ROUTER_REQUESTS}{{$where}}[$__rate_interval]))"
)
_HIT: Final = (
    f"sum by (deployment) (rate({Metric.CACHED_TOKENS}{{$where}}[$__rate_interval]))"
    f" / sum by (deployment) (rate({Metric.CACHED_TOKENS}{{$where}}[$__rate_interval])"
    f" + rate({Metric.PROMPT_TOKENS}{{$where}}[$__rate_interval]))"
)
# Every rank has exactly one such series, so they count the devices.
_DEVICES: Final = f"count by (deployment) ({Metric.LOADS}{{$where}})"
_TOKENS: Final = f"sum by (deployment) (rate({Metric.GENERATION_TOKENS}{{$where}}[$__rate_interval]))"
_SERVING: Final = f"sum by (deployment) (max by (namespace, deployment, group) ({Metric.ROUTER_GROUP_READY}{{$where}}))"

_LATENCY: Final = (
    Panel(
        "Time to first token",
        {
            "p50 {{deployment}}": _quantile(0.5, Metric.ROUTER_FIRST_TOKEN, "deployment"),
            "p95 {{deployment}}": _quantile(0.95, Metric.ROUTER_FIRST_TOKEN, "deployment"),
        },
        "s",
    ),
    Panel(
        "Time per token after the first",
        {
            "p50 {{deployment}}": _quantile(0.5, Metric.ROUTER_TOKEN_GAP, "deployment"),
            "p95 {{deployment}}": _quantile(0.95, Metric.ROUTER_TOKEN_GAP, "deployment"),
        },
        "s",
    ),
)

DASHBOARDS: Final = (
    Dashboard(
        "fleet",
        "Bireme / Fleet",
        "Every deployment on one page: does it serve, how much, how fast.",
        ("namespace",),
        (
            Panel("Groups that serve", {"{{deployment}}": _SERVING}),
            Panel("Requests", {"{{deployment}}": _rate(Metric.ROUTER_REQUESTS, "deployment")}, "reqps"),
            Panel("Failed requests", {"{{deployment}}": _FAILED}, "percentunit"),
            Panel("Output tokens per second", {"{{deployment}}": _TOKENS}),
            *_LATENCY,
            Panel(
                "Requests that wait for a group",
                {"{{deployment}}": f"sum by (deployment) ({Metric.ROUTER_WAITING}{{$where}})"},
            ),
            Panel(
                "Used share of the KV cache",
                {"{{deployment}}": f"avg by (deployment) ({Metric.KV_USAGE}{{$where}})"},
                "percentunit",
            ),
            Panel(
                "Lost parts, last hour",
                {"{{deployment}}": f"sum by (deployment) (increase({Metric.EPOCHS_ENDED}{{$where}}[1h]))"},
            ),
        ),
    ),
    Dashboard(
        "deployment",
        "Bireme / Deployment",
        "One deployment from its router: answers, queue, groups, caches.",
        ("namespace", "deployment"),
        (
            Panel("Answers by code", {"{{code}}": _rate(Metric.ROUTER_REQUESTS, "code")}, "reqps"),
            Panel("Requests on each group", {"{{group}}": f"sum by (group) ({Metric.ROUTER_IN_FLIGHT}{{$where}})"}),
            Panel(
                "Tokens expected of each group",
                {"{{group}}": f"sum by (group) ({Metric.ROUTER_OUTSTANDING}{{$where}})"},
            ),
            *_LATENCY,
            Panel(
                "Waiting for a group",
                {"p95 {{priority}}": _quantile(0.95, Metric.ROUTER_QUEUE_SECONDS, "priority")},
                "s",
            ),
            Panel("Waiting requests", {"{{priority}}": f"sum by (priority) ({Metric.ROUTER_WAITING_CLASS}{{$where}})"}),
            Panel("Prompt tokens taken from the cache", {"{{deployment}}": _HIT}, "percentunit"),
            Panel(
                "Cached prompt tokens, believed and true",
                {
                    "believed": _rate(Metric.ROUTER_PREDICTED_CACHED, "deployment"),
                    "true": _rate(Metric.ROUTER_REPORTED_CACHED, "deployment"),
                },
            ),
            Panel(
                "Clients that left early", {"{{deployment}}": _rate(Metric.ROUTER_DISCONNECTS, "deployment")}, "reqps"
            ),
            Panel(
                "Attempts by checkpoint",
                {"{{model_revision}} {{outcome}}": _rate(Metric.ROUTER_ATTEMPTS, "model_revision, outcome")},
                "reqps",
            ),
        ),
    ),
    Dashboard(
        "group",
        "Bireme / Group",
        "One group from the inside: its stages, its engine.",
        ("namespace", "deployment", "group"),
        (
            Panel("Ready stages", {"stage {{stage}} on {{node}}": f"{Metric.READY}{{$where}}"}),
            Panel("Epoch", {"stage {{stage}}": f"{Metric.EPOCH}{{$where}}"}),
            Panel("Steps per second", {"group {{group}}": _rate(Metric.STEPS, "group")}),
            Panel(
                "Requests",
                {
                    "running": f"sum by (group) ({Metric.REQUESTS_RUNNING}{{$where}})",
                    "waiting": f"sum by (group) ({Metric.REQUESTS_WAITING}{{$where}})",
                },
            ),
            Panel(
                "Tokens per second",
                {"output": _rate(Metric.GENERATION_TOKENS, "group"), "prompt": _rate(Metric.PROMPT_TOKENS, "group")},
            ),
            Panel(
                "Used share of the KV cache",
                {"group {{group}}": f"max by (group) ({Metric.KV_USAGE}{{$where}})"},
                "percentunit",
            ),
            Panel("Ended requests", {"{{finish_reason}}": _rate(Metric.REQUESTS, "finish_reason")}, "reqps"),
            Panel(
                "Drafted tokens that were drawn",
                {"group {{group}}": f"{_rate(Metric.ACCEPTED, 'group')} / {_rate(Metric.DRAFTED, 'group')}"},
                "percentunit",
            ),
            Panel(
                "Requests with numbers that are not finite",
                {"group {{group}}": _rate(Metric.NONFINITE, "group")},
                "reqps",
            ),
        ),
    ),
    Dashboard(
        "recovery",
        "Bireme / Recovery",
        "What was lost, how it came back, and what clients saw of it.",
        ("namespace", "deployment"),
        (
            Panel("Groups that serve", {"group {{group}}": f"max by (group) ({Metric.ROUTER_GROUP_READY}{{$where}})"}),
            Panel(
                "Ended epochs by reason",
                {"{{reason}}": f"sum by (reason) (increase({Metric.EPOCHS_ENDED}{{$where}}[$__rate_interval]))"},
            ),
            Panel(
                "Restarted ranks",
                {
                    "group {{group}} stage {{stage}}": f"sum by (group, stage) (increase({Metric.RANK_RESTARTS}{{$where}}[$__rate_interval]))"
                },
            ),
            Panel(
                "Checkpoints read",
                {
                    "group {{group}} stage {{stage}}": f"sum by (group, stage) (increase({Metric.LOADS}{{$where}}[$__rate_interval]))"
                },
            ),
            Panel(
                "Streams continued on a group", {"{{deployment}}": _rate(Metric.ROUTER_RESUMES, "deployment")}, "reqps"
            ),
            Panel(
                "Requests sent again, unprocessed",
                {"{{deployment}}": _rate(Metric.ROUTER_RESENDS, "deployment")},
                "reqps",
            ),
            Panel("Requests sent to a second group", {"{{winner}}": _rate(Metric.ROUTER_HEDGES, "winner")}, "reqps"),
            Panel("Failed requests", {"{{deployment}}": _FAILED}, "percentunit"),
        ),
    ),
    Dashboard(
        "operator",
        "Bireme / Operator",
        "What the operator does: groups by state, recoveries, its queue, what it writes.",
        (),
        (
            Panel("Operators that act", {"acting": f"sum({Metric.OPERATOR_LEADING}{{$where}})"}),
            Panel("Groups by state", {"{{state}}": f"sum by (state) ({Metric.OPERATOR_GROUPS}{{$where}})"}),
            Panel(
                "Recoveries",
                {"{{reason}}": f"sum by (reason) (increase({Metric.OPERATOR_RECOVERIES}{{$where}}[$__rate_interval]))"},
            ),
            Panel(
                "From the loss to serving again",
                {"p95 {{reason}}": _quantile(0.95, Metric.OPERATOR_RECOVERY_SECONDS, "reason")},
                "s",
            ),
            Panel("Visits", {"{{result}}": _rate(Metric.OPERATOR_RECONCILES, "result")}, "ops"),
            Panel(
                "Time of a visit",
                {
                    "p95": f"histogram_quantile(0.95, sum by (le) (rate({Metric.OPERATOR_RECONCILE_SECONDS}_bucket{{$where}}[$__rate_interval])))"
                },
                "s",
            ),
            Panel(
                "Deployments that wait for a worker",
                {
                    "waiting": f"sum({Metric.OPERATOR_QUEUED}{{$where}})",
                    "visited": f"sum({Metric.OPERATOR_WORKING}{{$where}})",
                },
            ),
            Panel(
                "Writes to the API server",
                {"{{verb}} {{resource}}": _rate(Metric.OPERATOR_WRITES, "verb, resource")},
                "ops",
            ),
            Panel("What the API server did not grant", {"{{error}}": _rate(Metric.OPERATOR_ERRORS, "error")}, "ops"),
        ),
    ),
    Dashboard(
        "cost",
        "Bireme / Throughput, latency and utilisation per dollar",
        "What a GPU-hour buys. Set the price per GPU and hour above.",
        ("namespace", "deployment"),
        (
            Panel("Output tokens per dollar", {"{{deployment}}": f"{_TOKENS} * 3600 / ($price * {_DEVICES})"}),
            Panel(
                "Dollars per million output tokens",
                {"{{deployment}}": f"$price * {_DEVICES} / ({_TOKENS} * 3600) * 1e6"},
                "currencyUSD",
            ),
            Panel("Dollars per hour", {"{{deployment}}": f"$price * {_DEVICES}"}, "currencyUSD"),
            *_LATENCY,
            Panel("Devices", {"{{deployment}}": _DEVICES}),
            Panel("Output tokens per second and device", {"{{deployment}}": f"{_TOKENS} / {_DEVICES}"}),
            Panel(
                "Used share of the KV cache",
                {"{{deployment}}": f"avg by (deployment) ({Metric.KV_USAGE}{{$where}})"},
                "percentunit",
            ),
            Panel(
                "Running requests per device",
                {"{{deployment}}": f"sum by (deployment) ({Metric.REQUESTS_RUNNING}{{$where}}) / {_DEVICES}"},
            ),
        ),
        price=True,
    ),
)


def _variables(board: Dashboard) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if board.price:
        found.append({"name": "price", "label": "Price per GPU-hour", "type": "textbox", "query": "2.50"})
    for number, label in enumerate(board.filters):
        known = ",".join(f'{wider}=~"${wider}"' for wider in board.filters[:number])
        found.append(
            {
                "name": label,
                "label": label.capitalize(),
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({Metric.READY}{{{known}}}, {label})",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return found


def _panel(number: int, panel: Panel, where: str) -> dict[str, Any]:
    place = {"x": number % _COLUMNS * _WIDTH, "y": number // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(65 + at),
                "datasource": _SOURCE,
                "legendFormat": legend,
                "expr": query.replace("$where", where),
            }
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def dashboard(board: Dashboard) -> dict[str, Any]:
    """Return what Grafana loads."""
    where = ",".join(f'{label}=~"${label}"' for label in board.filters)
    return {
        "uid": f"bireme-{board.name}",
        "title": board.title,
        "description": board.about,
        "tags": ["bireme"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(board)},
        "panels": [_panel(number, panel, where) for number, panel in enumerate(board.panels)],
    }


def render() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {f"{board.name}.json": json.dumps(dashboard(board), indent=1) + "\n" for board in DASHBOARDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them."""
    parser = argparse.ArgumentParser(prog="python -m charts.dashboards", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    wanted = render()
    if parser.parse_args(arguments).check:
        found = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.json")}
        sys.stdout.write("" if found == wanted else f"{TARGET} is out of date: run `make chart`\n")
        return int(found != wanted)
    TARGET.mkdir(exist_ok=True)
    for name, text in wanted.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
