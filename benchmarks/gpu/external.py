"""Peers: commands of a directory outside the project, and where in their output the figures are.

`peers.json` in that directory is a list of {"name", "gpus", "seconds", "command", "directory", "environment",
"values"}; ``values`` has a regular expression with one group for each key of ``benchmarks/gpu/lines.py`` that the
command measures. The last match counts. Nothing else is known of a peer.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.cases import Task


@dataclass(frozen=True)
class Peer:
    """One command."""

    task: Task
    command: list[str]
    directory: str
    environment: Mapping[str, str]
    values: Mapping[str, str]

    def figures(self, output: str) -> dict[str, float]:
        """What it measured."""
        found = {key: re.findall(pattern, output) for key, pattern in self.values.items()}
        return {key: float(matches[-1].replace(",", "")) for key, matches in found.items() if matches}


def read_peers(directory: Path, lines: Collection[str]) -> list[Peer]:
    """The peers that measure one of ``lines`` (A1, A2, …)."""
    peers = []
    for one in json.loads((directory / "peers.json").read_text()):
        if any(key.partition(".")[0] in lines for key in one["values"]):
            task = Task(f"peer {one['name']}", one["gpus"], one["seconds"])
            peers.append(
                Peer(
                    task,
                    one["command"],
                    one.get("directory", str(directory)),
                    one.get("environment", {}),
                    one["values"],
                )
            )
    return peers
