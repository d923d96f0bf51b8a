"""A deployment that `bireme up` runs on this machine, read and asked through its run directory."""

import json
import os
from collections.abc import Sequence

from bireme.api import InvalidDeployment
from bireme.cli.errors import NOT_RUNNING, Refused
from bireme.cli.recoveries import Recovery, recoveries
from bireme.cli.router_restarts import router_restarts
from bireme.cli.story import Told
from bireme.cli.target import Content, PastRevision, Process
from bireme.cli.timeline import read as read_events
from bireme_operator.local.past import with_checkpoint
from bireme_operator.local.rundir import RunDir, run_root
from bireme_operator.local.wish import SIGNAL, AnyWish, Pause, Restart, Resume, RollBack, Wish, write_wish


def is_known(name: str | None) -> bool:
    """Whether a deployment of that name, or any, has been up on this machine."""
    return bool(list(run_root().glob(f"{name or '*'}/status.json")))


def find(name: str | None, elsewhere: str = "") -> RunDir:
    """Return the run directory of that deployment, or of the only one. ``elsewhere`` is said when there is none.

    Raises:
        Refused: there is none, or more than one.
    """
    root = run_root()
    known = sorted(path.parent for path in root.glob("*/status.json"))
    running = [path for path in known if RunDir(path).holder()]
    chosen = [path for path in known if path.name == name] if name else running or known
    if len(chosen) > 1:
        raise Refused(f"name one of {', '.join(path.name for path in chosen)}")
    if not chosen:
        what = f"no deployment named {name}" if name else "no deployment"
        others = f", only {', '.join(path.name for path in known)}" if known else ""
        raise Refused(f"{what} has been up on this machine{others} (looked in {root}){elsewhere}", NOT_RUNNING)
    return RunDir(chosen[0])


class LocalTarget:
    """See `bireme.cli.target.Target`."""

    poll_s = 0.1

    def __init__(self, rundir: RunDir) -> None:
        self.rundir = rundir

    @property
    def where(self) -> str:
        """The deployment's name."""
        return self.rundir.path.name

    def read(self) -> Content:
        """The object with its status.

        Raises:
            Refused: `up` has not written it yet.
        """
        try:
            content: Content = json.loads(self.rundir.status.read_bytes())
        except FileNotFoundError:
            raise Refused(f"{self.rundir.status} is not there yet: try again in a moment", NOT_RUNNING) from None
        return content

    def check_alive(self) -> None:
        """Return while `up` runs."""
        if self.rundir.holder() is None:
            raise Refused(f"{self.where} is not up any more", NOT_RUNNING)

    def processes(self, content: Content) -> Sequence[Process]:
        """Supervisors and ranks: everything that can be killed."""
        router = content["local"]["router"]
        found = [Process(-1, -1, "router", router["phase"], "", router["pid"], router["restarts"], router["log"])]
        for pod in content["local"]["pods"]:
            place = (pod["group"], pod["stage"])
            found.append(
                Process(*place, "supervisor", pod["phase"], pod["address"], pod["pid"], pod["restarts"], pod["log"])
            )
            ranks = pod.get("ranks", ())
            found += [Process(*place, f"rank {one['rank']}", one["phase"], "", one["pid"]) for one in ranks]
        return found

    def endpoint(self, content: Content) -> str:
        """Where clients ask."""
        return str(content["local"]["endpoint"])

    def told(self) -> Sequence[Told]:
        """The news of this run."""
        return [
            Told(line.at, line.event, line.group, line.message)
            for line in read_events(self.rundir.events)
            if line.kind == "news"
        ]

    def details(self) -> Sequence[str]:
        """The steps of the newest recovery of each group."""
        events = read_events(self.rundir.events)
        newest = {recovery.group: recovery for recovery in recoveries(events)}
        lines = [steps_told(newest[group]) for group in sorted(newest)]
        lines += [_of_router(one) for one in router_restarts(events)[-1:]]
        return [*lines, f"Every moment of it: bireme timeline {self.rundir.events}"]

    def restart(self, value: str) -> None:
        """Ask `up` to make every group anew."""
        self._ask(Restart(value))

    def pause(self) -> None:
        """Ask `up` to leave everything as it is."""
        self._ask(Pause())

    def resume(self, value: str) -> None:
        """Ask `up` to go on."""
        self._ask(Resume(value))

    def reload(self, path: str, revision: str, mode: str) -> None:
        """Ask `up` for another checkpoint.

        Raises:
            Refused: it can't be written in a deployment, or the name belongs to other weights.
        """
        content = self.read()
        known = content["local"].get("names", {}).get(revision, path)
        if known != path:
            raise Refused(f"revision {revision} names the weights at {known}: give other weights another --revision")
        wish = Wish(path, revision, mode)
        try:
            with_checkpoint(content, wish)
        except InvalidDeployment as error:
            raise Refused(str(error)) from None
        self._ask(wish)

    def revisions(self) -> Sequence[PastRevision]:
        """What this run has wanted."""
        return [
            PastRevision(one["number"], one["revision"], one["modelRevision"], one["source"], wanted=one["wanted"])
            for one in self.read()["local"].get("revisions", ())
        ]

    def roll_back(self, number: int) -> None:
        """Ask `up` for an earlier one."""
        self._ask(RollBack(number))

    def _ask(self, wish: AnyWish) -> None:
        holder = self.rundir.holder()
        if holder is None:
            raise Refused(
                f"{self.where} is not up: start it with `bireme up`, or name a cluster by -n or --context", NOT_RUNNING
            )
        write_wish(self.rundir.wishes, wish)
        os.kill(holder, SIGNAL)


_TOLD = {
    "detect": "the loss was seen at {0} s",
    "abort": "the survivors had left the epoch by {1} s",
    "rejoin": "the lost process ran again at {1} s",
    "load": "all weights were in place by {1} s",
    "warm": "all ranks had formed and were warm at {1} s",
    "serve": "it served at {1} s",
}
_TOLD_OF_A_START = {"rejoin": "all its processes ran at {1} s"}


def steps_told(recovery: Recovery) -> str:
    """One sentence with the times of a start or recovery."""
    steps = recovery.steps()
    if "load" in steps:
        steps["load"] = (steps["load"][0], _loaded_by(recovery, steps["load"][1]))
    told = _TOLD | _TOLD_OF_A_START if recovery.first else _TOLD
    parts = [
        words.format(*(f"{moment:.2f}" for moment in steps[step])) for step, words in told.items() if step in steps
    ]
    what = "start" if recovery.first else "recovery"
    end = "" if recovery.took_s is not None else "; it does not serve yet"
    cause = f" ({recovery.cause})" if recovery.cause else ""
    return f"Group {recovery.group}, step by step, of its last {what}{cause}: {', '.join(parts)}{end}."


def _loaded_by(recovery: Recovery, last_told: float) -> float:
    """A rank that goes from loading to forming between two words of its leader had its weights when it formed."""
    formed = [moment.after_s for moment in recovery.moments if moment.text.endswith(": forming")]
    began = sum(moment.text.endswith(": loading") for moment in recovery.moments)
    ended = sum(moment.text.endswith(": weights are in place") for moment in recovery.moments)
    return max([last_told, *formed]) if ended < began else last_told


def _of_router(restart: Recovery) -> str:
    end = "does not run yet" if restart.took_s is None else f"ran again {restart.took_s:.2f} s later"
    return f"The router ended ({restart.cause}) and {end}."
