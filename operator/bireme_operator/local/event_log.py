"""events.jsonl: every transition of a run, one JSON line each, for `bireme timeline` and `bireme why`.

kind   fields beside `at` (Unix seconds) and `group`
news   event, message                              what `bireme up` prints
group  state, reason, message, epoch               the group's state as status has it
pod    stage, pid, phase, restarts, message        a stage's process started or ended
rank   stage, rank, pid, phase, epoch              a rank went to another phase, by its leader's word
router pid, phase, restarts, message               the router's process started or ended; its group is -1

Only what changed is written, so an idle run writes nothing.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bireme.api.status import GroupStatus
from bireme_operator.local.kubelet import Pod
from bireme_operator.local.router import RouterKeeper
from bireme_operator.plan.observed import LeaderView
from bireme_operator.plan.plan import Plan

log = logging.getLogger(__name__)

_Key = tuple[str, int, int, int]
_Fields = dict[str, Any]
_NOBODY: Final = -1


class EventLog:
    """Compares each look with the last one and appends the differences."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._seen: dict[_Key, _Fields] = {}

    def look(
        self, result: Plan, pods: Sequence[Pod], leaders: Mapping[int, LeaderView], router: RouterKeeper, now: float
    ) -> None:
        """Write what has changed since the last look."""
        lines = self._changed(("router", _NOBODY, _NOBODY, _NOBODY), _of_router(router))
        for pod in pods:
            lines += self._changed(("pod", pod.made.group, pod.made.stage, _NOBODY), _of_pod(pod))
        for group, view in leaders.items():
            for stage, rank, fields in _of_ranks(view):
                lines += self._changed(("rank", group, stage, rank), fields)
        for news in result.news:
            group = _NOBODY if news.group is None else news.group
            lines.append({"kind": "news", "group": group, "event": news.event, "message": news.message})
        for status in result.status.groups:
            lines += self._changed(("group", status.index, _NOBODY, _NOBODY), _of_group(status))
        if lines:
            self._append(b"".join(msgspec.json.encode({"at": round(now, 3), **line}) + b"\n" for line in lines))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _append(self, text: bytes) -> None:
        try:
            self._file.write(text)
        except OSError as error:  # a full disk ends no group
            log.warning("the event log has a gap: %s", error)

    def _changed(self, key: _Key, fields: _Fields) -> list[_Fields]:
        if self._seen.get(key) == fields:
            return []
        self._seen[key] = fields
        kind, group, *place = key
        names = zip(("stage", "rank"), place, strict=True)
        return [{"kind": kind, "group": group, **{name: n for name, n in names if n != _NOBODY}, **fields}]


def _of_pod(pod: Pod) -> _Fields:
    phase = "Deleting" if pod.deleting.is_set() else pod.phase.value
    return {"pid": pod.pid, "phase": phase, "restarts": pod.restarts, "message": pod.message}


def _of_router(router: RouterKeeper) -> _Fields:
    return {"pid": router.pid, "phase": router.phase.value, "restarts": router.restarts, "message": router.message}


def _of_ranks(view: LeaderView) -> Iterator[tuple[int, int, _Fields]]:
    for stage in view.document.stages if view.connected else ():
        for rank in stage.ranks:
            epoch = view.document.epoch if rank.phase == "Serving" else 0
            yield stage.stage, rank.rank, {"pid": rank.pid, "phase": rank.phase, "epoch": epoch}


def _of_group(status: GroupStatus) -> _Fields:
    return {"state": status.state, "reason": status.reason, "message": status.message, "epoch": status.epoch}
