"""What a deployment says about quantization reaches every rank, and changes the pods."""

from typing import Any

import pytest

from bireme.api import parse
from bireme.names import Env
from bireme_operator.plan.rendering import Rendering
from bireme_worker.identity import read_identity


def rendering(model: dict[str, Any], cache: dict[str, Any]) -> Rendering:
    deployment = parse(
        {
            "apiVersion": "bireme.dev/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": "tiny"},
            "spec": {
                "model": {"source": {"path": "/models/tiny"}, "revision": "1", **model},
                "engine": {"kvCache": cache},
            },
        }
    )
    return Rendering.of(deployment.spec, "tiny")


def test_quantization_and_cache_reach_the_rank(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("00" * 32)
    shared = rendering({"quantization": "int4"}, {"dtype": "fp8", "fraction": "70%"}).environment
    own = {
        Env.GROUP_UID: "g",
        Env.STAGE: "0",
        Env.LEADER_ADDRESS: "127.0.0.1",
        Env.POD_IP: "127.0.0.1",
        Env.TOKEN_FILE: str(tmp_path / "token"),
        Env.STATE_DIR: str(tmp_path),
        Env.SHARD_CACHE: str(tmp_path / "cache"),
        Env.SHARD_CACHE_BYTES: "1000",
    }
    identity = read_identity({**shared, **{str(name): value for name, value in own.items()}})
    assert (identity.quantization, identity.kv_dtype, identity.kv_fraction) == ("int4", "fp8", 70)
    assert (identity.shard_cache, identity.shard_cache_bytes) == (tmp_path / "cache", 1000)


@pytest.mark.parametrize(
    ("model", "cache"), [({"quantization": "int8"}, {}), ({}, {"dtype": "int8"}), ({}, {"fraction": "50%"})]
)
def test_a_change_of_either_rolls_the_pods_and_the_default_does_not(
    model: dict[str, Any], cache: dict[str, Any]
) -> None:
    plain = rendering({}, {})
    assert rendering(model, cache).revision != plain.revision
    assert not {Env.QUANTIZATION, Env.KV_DTYPE, Env.KV_FRACTION} & set(plain.environment)
    assert rendering({"quantization": "none"}, {"dtype": "auto"}).revision == plain.revision
