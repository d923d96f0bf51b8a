"""From the object to the planner's words: environment, names, and a revision that only a pod could tell."""

from typing import Any

import pytest
import yaml

from bireme.api import load
from bireme.names import Env
from bireme_operator.plan.desired import Desired

BASE: dict[str, Any] = {
    "apiVersion": "bireme.dev/v1alpha1",
    "kind": "InferenceDeployment",
    "metadata": {"name": "smollm2"},
    "spec": {"model": {"source": {"path": "/models/smollm2"}, "revision": "1"}, "parallelism": {"pipeline": 2}},
}


def desired(*path: str, value: Any = None) -> Desired:
    document = yaml.safe_load(yaml.safe_dump(BASE))
    if path:
        inner = document
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return Desired.of(load(yaml.safe_dump(document)), uid="uid")


def test_the_environment_of_a_stage_is_its_starting_identity() -> None:
    environment = desired().pod_environment(1, 0, 3)
    assert environment == {
        Env.GROUP_UID: "uid-1",
        Env.GROUP_INDEX: "1",
        Env.STAGE: "0",
        Env.STAGES: "2",
        Env.TENSOR: "1",
        Env.STAGE_LAYERS: "",
        Env.INCARNATION: "3",
        Env.REVISION: desired().revision,
        Env.MODEL_NAME: "smollm2",
        Env.MODEL_ALIASES: "",
        Env.MODEL_PATH: "/models/smollm2",
        Env.MODEL_REVISION: "1",
        Env.MODEL_DTYPE: "auto",
        Env.MAX_MODEL_LENGTH: "0",
        Env.MAX_RUNNING_REQUESTS: "64",
        Env.MAX_BATCHED_TOKENS: "2048",
        Env.KV_BYTES: "0",
        Env.PREFIX_CACHING: "1",
        Env.DRAIN_TIMEOUT: "300",
    }


def test_a_pod_s_name_tells_its_place_and_never_comes_twice() -> None:
    names = {desired().pod_name(0, 1, incarnation) for incarnation in range(100)}
    assert len(names) == 100
    assert all(name.startswith("smollm2-0-1-") for name in names)


# Golden: these hashes must never change, or an upgrade of the operator would roll every pod there is.
@pytest.mark.parametrize(
    ("path", "value", "revision"),
    [
        ((), None, "cd92987625"),
        (("spec", "parallelism", "tensor"), 3, "987988237d"),
        (("spec", "engine", "maxModelLength"), 512, "8e5a458a1f"),
        (("spec", "template", "metadata"), {"labels": {"team": "a"}}, "02c02f23d8"),
    ],
)
def test_the_revision_of_a_rendering_is_golden(path: tuple[str, ...], value: Any, revision: str) -> None:
    assert desired(*path, value=value).revision == revision


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 5),
        (("spec", "model", "revision"), "2"),
        (("spec", "model", "source", "path"), "/models/other"),
        (("spec", "model", "aliases"), ["small"]),
        (("spec", "model", "name"), "smollm2"),
        (("spec", "engine", "maxBatchedTokens"), 2048),
        (("spec", "rollout", "drainTimeoutSeconds"), 7),
        (("spec", "recovery", "backoff"), {"initialSeconds": 5}),
        (("spec", "router", "port"), 9000),
    ],
)
def test_what_a_running_pod_could_not_tell_changes_no_revision(path: tuple[str, ...], value: Any) -> None:
    assert desired(*path, value=value).revision == desired().revision


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "model", "name"), "another"),
        (("spec", "model", "dtype"), "bfloat16"),
        (("spec", "parallelism", "stageLayers"), [20, 10]),
        (("spec", "engine", "kvCache"), {"bytes": "1Gi"}),
        (("spec", "engine", "prefixCaching"), "Disabled"),
        (("spec", "template", "spec"), {"containers": [{"name": "worker", "env": [{"name": "A", "value": "1"}]}]}),
        (("spec", "model", "source"), {"persistentVolumeClaim": {"claimName": "weights"}}),
        (("spec", "model", "source"), {"image": {"reference": "models/llama:1"}}),
    ],
)
def test_what_a_running_pod_could_tell_changes_the_revision(path: tuple[str, ...], value: Any) -> None:
    assert desired(*path, value=value).revision != desired().revision


def test_bytes_written_in_two_ways_are_one_revision() -> None:
    written = desired("spec", "engine", "kvCache", value={"bytes": "1Gi"})
    counted = desired("spec", "engine", "kvCache", value={"bytes": 1 << 30})
    assert written.revision == counted.revision
    assert written.environment[Env.KV_BYTES] == str(1 << 30)
