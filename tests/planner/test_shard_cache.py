"""What a deployment says about the shard cache reaches every stage, as a volume and in its environment."""

from pathlib import Path
from typing import Any

import pytest

from bireme.api import InferenceDeployment, InvalidDeployment, parse
from bireme.api.deployment import refused_locally
from bireme.names import Env
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.rendering import Rendering
from bireme_operator.render.owned import Owner
from bireme_operator.render.pods import render_pod
from bireme_worker.identity import read_identity

NODE: dict[str, Any] = {"nodePath": "/var/cache/bireme", "size": "200Gi"}
CLAIM: dict[str, Any] = {"claimName": "shards"}


def deployment(engine: dict[str, Any]) -> InferenceDeployment:
    return parse(
        {
            "apiVersion": "bireme.dev/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": "tiny"},
            "spec": {
                "model": {"source": {"path": "/models/tiny"}, "revision": "1"},
                "parallelism": {"pipeline": 2},
                "engine": engine,
            },
        }
    )


def pod(engine: dict[str, Any], stage: int = 1) -> dict[str, Any]:
    one = deployment(engine)
    desired = Desired.of(one, "uid")
    environment = desired.pod_environment(0, stage, 1)
    made = CreatePod(desired.pod_name(0, stage, 1), 0, stage, 1, desired.revision, desired.model_revision, environment)
    return render_pod(made, Owner("tiny", "default", "uid"), one.spec, token_secret="t")


def parts(manifest: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Volumes by name, mount paths by volume, environment."""
    (worker,) = manifest["spec"]["containers"]
    volumes = {one["name"]: one for one in manifest["spec"]["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in worker["volumeMounts"]}
    return volumes, mounts, {one["name"]: one.get("value", "") for one in worker["env"]}


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    ("cache", "source"),
    [
        (NODE, {"hostPath": {"path": "/var/cache/bireme", "type": "DirectoryOrCreate"}}),
        (CLAIM, {"persistentVolumeClaim": {"claimName": "shards"}}),
    ],
)
def test_every_stage_mounts_it_and_keeps_its_shards_there(
    cache: dict[str, Any], source: dict[str, Any], stage: int, tmp_path: Path
) -> None:
    volumes, mounts, environment = parts(pod({"shardCache": cache}, stage))
    assert volumes["shards"] == {"name": "shards", **source}
    (tmp_path / "token").write_text("00" * 32)
    own = {Env.TOKEN_FILE.value: str(tmp_path / "token"), Env.POD_IP.value: "127.0.0.1"}
    own[Env.STATE_DIR.value] = str(tmp_path)
    identity = read_identity({**environment, **own})
    assert identity.shard_cache == Path(mounts["shards"])
    assert identity.shard_cache_bytes == (200 << 30 if cache is NODE else 0)


def test_without_it_nothing_is_mounted_and_no_pod_is_rolled() -> None:
    volumes, mounts, environment = parts(pod({}))
    assert "shards" not in {*volumes, *mounts}
    assert Env.SHARD_CACHE not in environment
    revisions = {Rendering.of(deployment(engine).spec, "tiny").revision for engine in ({}, {"speculation": 0})}
    assert len(revisions) == 1


def test_another_place_or_bound_rolls_the_pods() -> None:
    caches = [None, NODE, CLAIM, {**NODE, "size": "100Gi"}, {**NODE, "nodePath": "/mnt/cache"}]
    revisions = {Rendering.of(deployment({"shardCache": cache}).spec, "tiny").revision for cache in caches}
    assert len(revisions) == len(caches)


def test_on_this_machine_the_directory_is_used_as_it_is_and_a_claim_is_refused() -> None:
    assert Rendering.of(deployment({"shardCache": NODE}).spec, "tiny").environment[Env.SHARD_CACHE] == NODE["nodePath"]
    assert not refused_locally(deployment({"shardCache": NODE}))
    (refusal,) = refused_locally(deployment({"shardCache": CLAIM}))
    assert refusal.startswith("spec.engine.shardCache.claimName: ")


@pytest.mark.parametrize("engine", [{"shardCache": {}}, {"shardCache": {**NODE, **CLAIM}}])
def test_exactly_one_place_is_asked_for(engine: dict[str, Any]) -> None:
    with pytest.raises(InvalidDeployment, match="exactly one"):
        deployment(engine)


def test_another_engine_has_none() -> None:
    with pytest.raises(InvalidDeployment, match="set type to Bireme"):
        deployment({"type": "Custom", "shardCache": NODE})
