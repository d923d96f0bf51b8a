"""Whose time a recovery was is read off the API server's audit log: only what the operator waits for is the server's."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operator_scale_meter import replaced
from bireme.names import Label

_PODS = "/api/v1/namespaces/n/pods"
_LOOK = f"{_PODS}?labelSelector={Label.DEPLOYMENT}%3Dscale,{Label.GROUP_INDEX}+in+(0)"
_STATUS = "/apis/bireme.dev/v1alpha1/namespaces/n/inferencedeployments/scale/status"


def line(verb: str, uri: str, began: float, ended: float, **ref: str) -> dict[str, Any]:
    moments = {"requestReceivedTimestamp": _moment(began), "stageTimestamp": _moment(ended)}
    return {"stage": "ResponseComplete", "verb": verb, "requestURI": uri, "objectRef": ref, **moments}


def _moment(seconds: float) -> str:
    return f"2026-01-01T00:00:{seconds:09.6f}Z"


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return path


DELETED = line("delete", f"{_PODS}/old", 0.0, 1.0, resource="pods", name="old")
LOOKED = line("list", _LOOK, 1.5, 2.0, resource="pods")
KEPT = line("patch", _STATUS, 2.25, 2.5, resource="inferencedeployments", name="scale", subresource="status")
MADE = line("create", _PODS, 2.75, 3.0, resource="pods", name="new")


def test_the_server_has_the_time_of_the_requests_and_the_operator_the_rest(tmp_path: Path) -> None:
    whose = replaced(written(tmp_path / "audit.log", [DELETED, LOOKED, KEPT, MADE]), 0, "old", "new", "0")
    assert whose == pytest.approx((1.0, 1.0))


def test_requests_for_others_and_those_that_overlap_count_nothing_more(tmp_path: Path) -> None:
    other = line("create", _PODS, 1.0, 2.75, resource="pods", name="another")
    beside = line("patch", _STATUS, 1.75, 2.25, resource="inferencedeployments", name="scale", subresource="status")
    whose = replaced(
        written(tmp_path / "audit.log", [DELETED, other, LOOKED, beside, KEPT, MADE]), 0, "old", "new", "0"
    )
    assert whose == pytest.approx((0.75, 1.25))


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    log = written(tmp_path / "audit.log", [DELETED, MADE])
    log.write_bytes(log.read_bytes() + b'{"stage": "Resp')
    assert replaced(log, 0, "old", "new", "0").server_s == pytest.approx(0.25)
