"""Helm as a user runs it, away from the user's own settings; what it renders comes as plain objects."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "bireme"
CI_VALUES: Final = sorted((CHART / "ci").glob("*.yaml"))
Object = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """``home`` is where it may keep things; ``kubeconfig`` is for what speaks with a cluster."""

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run it and return how it ended."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Begin to run it."""
        own = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        own["KUBECONFIG"] = str(self.kubeconfig or self.home / "no-kubeconfig")
        pipe = subprocess.PIPE
        return subprocess.Popen([self.program, *words], env={**os.environ, **own}, stdout=pipe, stderr=pipe, text=True)

    def succeed(self, *words: str | Path) -> str:
        """Run it and return what it prints; it must end well."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def text(self, *words: str | Path, release: str = "bireme", namespace: str = "bireme-system") -> str:
        """Render the chart."""
        return self.succeed("template", release, CHART, "--namespace", namespace, *words)

    def render(self, *words: str | Path, release: str = "bireme", namespace: str = "bireme-system") -> list[Object]:
        """Render the chart as objects."""
        documents = yaml.safe_load_all(self.text(*words, release=release, namespace=namespace))
        return [document for document in documents if document]


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only object of this kind, and of this name if one is given."""
    found = [body for body in objects if body["kind"] == kind and name in {"", body["metadata"]["name"]}]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]
