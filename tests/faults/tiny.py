"""A deployment of a tiny random model with SmolLM2's tokenizer: every shape of a group starts in seconds.

Four heads and two KV heads, so tensor may be 2; the weights are wide, so that the best token is far from the second.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bireme_worker.checkpoints.packaged import ensure_smollm2
from tests.checkpoints.tiny import save_tiny
from tests.faults import formed
from tests.support.deployment import Deployment, running
from tests.support.ports import free_port

MODEL = "tiny"
SHAPES = ((2, 1), (1, 2), (2, 2))
"""(tensor, pipeline): TP=2, PP=2, 2 × 2."""

_YAML = """\
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata:
  name: {name}
spec:
  replicas: {replicas}
  model:
    name: {model}
    source: {{path: /models/{directory}}}
    revision: "1"
  parallelism: {{tensor: {tensor}, pipeline: {pipeline}}}
  engine: {{maxModelLength: {length}, maxRunningRequests: {running}, maxBatchedTokens: {batched}}}
  recovery:
    restartBudget: {{limit: 1000, windowSeconds: 60}}
    backoff: {{initialSeconds: 1, maxSeconds: 2}}
  router: {{port: 8080}}
"""


def cache_dir() -> Path:
    """Where the real model lies on this machine."""
    return Path.home() / ".cache" / "bireme"


def make_tiny(directory: Path, **overrides: int) -> Path:
    """Write the checkpoint to ``directory`` and return it."""
    real = ensure_smollm2(cache_dir())
    own: dict[str, Any] = {"vocab_size": 49152, "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2}
    save_tiny(directory, initializer_range=0.35, **{**own, **overrides})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(real / name, directory / name)
    formed.teach_tools(directory)
    return directory


def deployment_file(
    folder: Path,
    *,
    tensor: int,
    pipeline: int,
    replicas: int = 1,
    model: str = MODEL,
    directory: str = MODEL,
    length: int = 2048,
    batched: int = 256,
    running: int = 32,
) -> Path:
    """Write an InferenceDeployment."""
    name = f"t{tensor}p{pipeline}"
    file = folder / f"{name}.yaml"
    file.write_text(
        _YAML.format(
            name=name,
            replicas=replicas,
            model=model,
            directory=directory,
            tensor=tensor,
            pipeline=pipeline,
            length=length,
            batched=batched,
            running=running,
        )
    )
    return file


@contextlib.contextmanager
def tiny_deployment(tensor: int, pipeline: int, checkpoint: Path, replicas: int = 1) -> Iterator[Deployment]:
    """A served tiny model; a short run directory, because sockets live below it."""
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        file = deployment_file(
            Path(path), tensor=tensor, pipeline=pipeline, replicas=replicas, directory=checkpoint.name
        )
        with running(file, Path(path), free_port(), {"/models": checkpoint.parent}) as deployment:
            deployment.wait_serving(replicas)
            yield deployment
