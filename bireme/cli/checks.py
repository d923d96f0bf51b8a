"""What can be known to be wrong before anything is started: a refusal now is better than eight failed processes.

The worker checks all of it again; here only headers and config.json are read, and no torch is loaded.
"""

from pathlib import Path

from bireme.api import InferenceDeployment, refused_locally
from bireme.cli.errors import Refused
from bireme_operator.local.mounts import Mounts
from bireme_operator.plan.paths import model_path


def check(deployment: InferenceDeployment, mounts: Mounts) -> None:
    """Return when nothing is known to be wrong.

    Raises:
        Refused: with everything found, and the exit code that a worker would have had.
    """
    refusals = refused_locally(deployment)
    if refusals:
        listed = "\n".join(f"  {refusal}" for refusal in refusals)
        raise Refused(f"`bireme up` can't do what {deployment.name} asks for:\n{listed}")
    inside = model_path(deployment.spec)
    path = mounts.on_host(inside)
    if not path.exists():
        raise Refused(_missing(inside, path))
    from bireme.cli.room import check_room  # the worker's modules need numpy and gguf
    from bireme.cli.shape import check_shape

    check_shape(deployment, path)
    check_room(deployment, path)


def _missing(inside: str, path: Path) -> str:
    if str(path) == inside:
        return (
            f"spec.model.source.path is {inside}, which does not exist on this machine: "
            f"give the directory that holds it by --mount {Path(inside).parent}=DIRECTORY"
        )
    return (
        f"spec.model.source.path is {inside}, with --mount {path} on this machine, which does not exist: "
        "correct the --mount or the path"
    )
