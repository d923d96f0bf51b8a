"""Where the paths of a deployment lie on this machine: `bireme up --mount POD_PATH=HOST_PATH`.

A deployment names the checkpoint as a stage pod sees it; on a laptop there is no volume, so the longest mount whose pod
path is a parent stands in for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bireme_operator.local.errors import LocalError


class BadMount(LocalError):
    """A `--mount` can't be right, or the checkpoint's path needs one."""


@dataclass(frozen=True)
class Mounts:
    """Pairs of pod path and host path."""

    pairs: tuple[tuple[PurePosixPath, Path], ...] = ()

    def on_host(self, pod_path: str) -> Path:
        """Return where ``pod_path`` lies on this machine."""
        path = PurePosixPath(pod_path)
        covering = [pair for pair in self.pairs if path.is_relative_to(pair[0])]
        if not covering:
            return Path(path)
        inside, outside = max(covering, key=lambda pair: len(pair[0].parts))
        return outside / path.relative_to(inside)


def read_mounts(arguments: Sequence[str]) -> Mounts:
    """Parse `POD_PATH=HOST_PATH` arguments.

    Raises:
        BadMount: names the argument and what it should look like.
    """
    return Mounts(tuple(_read(argument) for argument in arguments))


def _read(argument: str) -> tuple[PurePosixPath, Path]:
    inside, separator, outside = argument.partition("=")
    if not separator or not inside.startswith("/") or not outside:
        raise BadMount(
            f"--mount {argument}: write POD_PATH=HOST_PATH with an absolute POD_PATH, such as /models=./models"
        )
    host = Path(outside).expanduser().absolute()
    if not host.exists():
        raise BadMount(f"--mount {argument}: {host} does not exist on this machine")
    return PurePosixPath(inside), host
