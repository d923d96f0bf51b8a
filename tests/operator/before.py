"""The operator of the release before, out of this checkout's history, and the CRD that belongs to it."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from bireme.api.crd import COMMITTED
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.process import OperatorProcess

ROOT: Final = Path(__file__).parents[2]
RELEASE: Final = "64c872bbc83695ad851c610e033ea888c5ae420e"
"""Until there is a tag: the last state that was given to others."""
NEW: Final[dict[str, Any]] = {"rollout": {"canary": {}}}
"""What this release takes and the one before refuses."""


@contextmanager
def operator_before(
    plane: ControlPlane, folder: Path, start: Callable[[], OperatorProcess]
) -> Iterator[OperatorProcess]:
    """Run the operator of the release before, whose CRD is in the cluster until the block or its end changes that."""
    path = folder / "before"
    with tarfile.open(fileobj=io.BytesIO(_git("archive", RELEASE, "bireme", "operator", "crds"))) as content:
        content.extractall(path, filter="data")
    replace_crd(plane, path, takes_new=False)
    try:
        yield _started(path, start)
    finally:
        replace_crd(plane, ROOT, takes_new=True)


def replace_crd(plane: ControlPlane, source: Path, *, takes_new: bool) -> None:
    """Replace the CRD and wait until the server goes by it."""
    assert plane.kubectl("replace", "-f", str(source / COMMITTED)).returncode == 0
    body = {
        "apiVersion": "bireme.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "probe"},
        "spec": {"model": {"source": {"path": "/m"}, "revision": "1"}, **NEW},
    }
    url = "/apis/bireme.dev/v1alpha1/namespaces/default/inferencedeployments?dryRun=All"
    eventually(lambda: (plane.api.post(url, json=body).status_code == 201) == takes_new)


def _started(path: Path, start: Callable[[], OperatorProcess]) -> OperatorProcess:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONSAFEPATH", "1")  # this checkout is the working directory
        patched.setenv("PYTHONPATH", f"{path / 'operator'}:{path}")
        asked = [sys.executable, "-c", "import bireme_operator; print(bireme_operator.__file__)"]
        assert Path(subprocess.check_output(asked).decode().strip()).is_relative_to(path)
        return start()


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the release before is not in this checkout: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
