"""Wrong deployments are refused with an instruction, right ones pass: by pydantic and by the CRD alike."""

from typing import Any

import pytest

from bireme.api import InvalidDeployment, parse
from tests.api.api_server import refusals
from tests.api.objects import minimal, with_fields

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    # what: (document, words of pydantic's message, words of the API server's)
    "a misspelt field": (
        with_fields(spec__paralelism={"tensor": 2}),
        "spec.paralelism: unknown field; did you mean parallelism?",
        "spec: unknown field 'paralelism'",
    ),
    "a tensor of 0": (
        with_fields(spec__parallelism__tensor=0),
        "spec.parallelism.tensor: use 1 or more, found 0",
        "spec.parallelism.tensor: 0 is less than the minimum of 1",
    ),
    "two sources": (
        with_fields(spec__model__source__persistentVolumeClaim={"claimName": "models"}),
        "spec.model.source: set exactly one of path, persistentVolumeClaim",
        "spec.model.source: set exactly one of path, persistentVolumeClaim",
    ),
    "no source": (
        with_fields(spec__model__source={}),
        "spec.model.source: set exactly one of path",
        "spec.model.source: set exactly one of path",
    ),
    "a name too long for pods": (minimal("a" * 47), "shorten metadata.name to 46", "shorten metadata.name to 46"),
    "a name that is no host name": (
        minimal("4-you"),
        "write metadata.name in lower-case letters",
        "write metadata.name in lower-case letters",
    ),
    "negative seconds": (
        with_fields(spec__rollout__drainTimeoutSeconds=-1),
        "spec.rollout.drainTimeoutSeconds: use 0 or more, found -1",
        "spec.rollout.drainTimeoutSeconds: -1 is less than the minimum of 0",
    ),
    "neither surge nor unavailable": (
        with_fields(spec__rollout={"maxSurge": 0, "maxUnavailable": 0}),
        "spec.rollout: set maxSurge or maxUnavailable to 1 or more",
        "spec.rollout: set maxSurge or maxUnavailable to 1 or more",
    ),
    "spares of a group that is made anew whole": (
        with_fields(spec__spares=1, spec__recovery={"mode": "Recreate"}),
        "spec.spares: set spares to 0, or placement.scheduler to Gates, engine.type to Bireme and recovery.mode to InPlace",
        "spec.spares: set spares to 0, or placement.scheduler to Gates, engine.type to Bireme and recovery.mode to InPlace",
    ),
    "an autoscaler without a router to ask": (
        with_fields(spec__autoscaling={"maxReplicas": 3, "targetQueuedRequests": 4}, spec__router={"replicas": 0}),
        "spec.autoscaling: set engine.type to Bireme and router.replicas to 1 or more, or leave autoscaling out",
        "spec.autoscaling: set engine.type to Bireme and router.replicas to 1 or more, or leave autoscaling out",
    ),
    "an autoscaler with nothing to aim at": (
        with_fields(spec__autoscaling={"maxReplicas": 3}),
        "spec.autoscaling: set at least one of targetQueuedRequests, targetTTFTMilliseconds, idleToZeroSeconds",
        "spec.autoscaling: set at least one of targetQueuedRequests, targetTTFTMilliseconds, idleToZeroSeconds",
    ),
    "a canary before somebody else's engine": (
        with_fields(spec__rollout__canary={}, spec__engine={"type": "Custom"}),
        "spec.rollout: set engine.type to Bireme, or leave rollout.canary out",
        "spec.rollout: set engine.type to Bireme, or leave rollout.canary out",
    ),
    "stage layers for another pipeline": (
        with_fields(spec__parallelism={"pipeline": 3, "stageLayers": [15, 15]}),
        "spec.parallelism.stageLayers: list as many stageLayers as pipeline has stages",
        "spec.parallelism.stageLayers: list as many stageLayers as pipeline has stages",
    ),
    "two sizes of the cache": (
        with_fields(spec__engine__kvCache={"fraction": "90%", "bytes": "8Gi"}),
        "spec.engine.kvCache: set fraction or bytes, not both",
        "spec.engine.kvCache: set fraction or bytes, not both",
    ),
    "a first wait over the longest": (
        with_fields(spec__recovery__backoff={"initialSeconds": 9, "maxSeconds": 3}),
        "spec.recovery.backoff.initialSeconds: set initialSeconds to maxSeconds or less",
        "spec.recovery.backoff.initialSeconds: set initialSeconds to maxSeconds or less",
    ),
    "more replicas at least than at most": (
        with_fields(spec__autoscaling={"minReplicas": 4, "maxReplicas": 3, "targetQueuedRequests": 1}),
        "spec.autoscaling.minReplicas: set minReplicas to maxReplicas or less",
        "spec.autoscaling.minReplicas: set minReplicas to maxReplicas or less",
    ),
    "a number in quotes": (
        with_fields(spec__router__port="8080"),
        "spec.router.port: write a whole number, found '8080'",
        "spec.router.port: '8080' is not of type 'integer'",
    ),
    "an alias twice": (
        with_fields(spec__model__aliases=["a", "a"]),
        "spec.model.aliases: list every entry once",
        "spec.model.aliases[1]: duplicate value",
    ),
    "a Python name in YAML": (
        with_fields(spec__engine__max_model_length=2048),
        "spec.engine.max_model_length: unknown field; did you mean maxModelLength?",
        "spec.engine: unknown field 'max_model_length'",
    ),
    "arguments for our own engine": (
        with_fields(spec__engine__args={"max-batch": "8"}),
        "spec.engine.args: set type to Custom to give args",
        "set type to Custom to give args",
    ),
    "an exclusive domain of nothing": (
        with_fields(spec__placement__exclusive="Domain"),
        "spec.placement.exclusive: set a topology level to mode Required",
        "set a topology level to mode Required",
    ),
    "a queue of another scheduler": (
        with_fields(spec__placement={"scheduler": "Gates", "queueName": "q"}),
        "spec.placement.scheduler: set scheduler to Kueue, or leave queueName out",
        "set scheduler to Kueue, or leave queueName out",
    ),
    "Kueue without a queue": (
        with_fields(spec__placement__scheduler="Kueue"),
        "spec.placement.queueName: set queueName",
        "set queueName: Kueue admits a group by its LocalQueue",
    ),
    "two levels for the native scheduler": (
        with_fields(spec__placement={"scheduler": "Native", "topology": [{"key": "a"}, {"key": "b"}]}),
        "spec.placement.topology: set one topology level at most",
        "set one topology level at most",
    ),
    "a preferred level for the native scheduler": (
        with_fields(spec__placement={"scheduler": "Native", "topology": [{"key": "a", "mode": "Preferred"}]}),
        "spec.placement.topology: set mode to Required",
        "set mode to Required, or scheduler to Gates",
    ),
    "an exclusive domain of the native scheduler": (
        with_fields(spec__placement={"scheduler": "Native", "topology": [{"key": "a"}], "exclusive": "Domain"}),
        "spec.placement.scheduler: set scheduler to Gates",
        "set scheduler to Gates: only it keeps groups out of one another's domains",
    ),
}

RIGHT: dict[str, dict[str, Any]] = {
    "the smallest": minimal(),
    "the longest name": minimal("a" * 46),
    "scaled to zero and paused": with_fields(spec__replicas=0, spec__paused=True),
    "a claim": with_fields(
        spec__model__source={"persistentVolumeClaim": {"claimName": "models", "path": "llama"}}, spec__replicas=1000
    ),
    "an image": with_fields(
        spec__model__source={"image": {"reference": "models/llama:1", "pullPolicy": "Always", "path": "llama"}}
    ),
    "names and dtype": with_fields(
        spec__model__name="org/llama-3.1", spec__model__aliases=["a", "b"], spec__model__dtype="bfloat16"
    ),
    "tensor, pipeline and layers": with_fields(
        spec__parallelism={"tensor": 8, "pipeline": 3, "stageLayers": [26, 27, 27]}
    ),
    "the engine's limits": with_fields(
        spec__engine={
            "type": "Bireme",
            "maxModelLength": 4096,
            "maxRunningRequests": 8,
            "maxBatchedTokens": 512,
            "kvCache": {"bytes": "8Gi"},
            "prefixCaching": "Disabled",
        }
    ),
    "a cache in bytes": with_fields(spec__engine__kvCache__bytes=1073741824),
    "a canary and a budget for drains": with_fields(
        spec__rollout__canary={"groups": 2, "analysisSeconds": 60, "minRequests": 1, "maxErrorPercent": 0},
        spec__disruption={"maxUnavailableGroups": 0, "onCordon": "Ignore"},
    ),
    "an open template": with_fields(
        spec__template={
            "metadata": {"labels": {"team": "a"}},
            "spec": {"nodeSelector": {"gpu": "h100"}, "fieldOfTheFuture": [{"x": 1}]},
        }
    ),
    "drain, budget and backoff": with_fields(
        spec__rollout__drainTimeoutSeconds=0,
        spec__recovery={
            "mode": "InPlace",
            "restartBudget": {"limit": 0, "windowSeconds": 60},
            "backoff": {"initialSeconds": 1, "maxSeconds": 1},
        },
    ),
    "the router's limits": with_fields(
        spec__router={
            "replicas": 1,
            "port": 9000,
            "limits": {"maxBodyBytes": 1024, "maxQueuedRequests": 0, "totalTimeoutSeconds": 60},
            "retry": {"attempts": 1, "crossRevision": "Deny"},
        }
    ),
    "every unbuilt field at its default": with_fields(
        spec__model__quantization="none",
        spec__engine={"args": {}, "kvCache": {"dtype": "auto"}},
        spec__placement={"topology": [], "exclusive": "None", "scheduler": "Auto", "queueName": None},
        spec__rollout={"maxSurge": 1, "maxUnavailable": 0, "partition": 0, "onFailure": "Rollback", "canary": None},
        spec__spares=0,
        spec__autoscaling=None,
        spec__disruption={"maxUnavailableGroups": 1, "onCordon": "Move"},
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_deployment_is_refused_by_us_with_an_instruction(what: str) -> None:
    document, words, _ = WRONG[what]
    with pytest.raises(InvalidDeployment) as caught:
        parse(document)
    assert words in str(caught.value)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_deployment_is_refused_by_the_crd_with_an_instruction(what: str) -> None:
    document, _, words = WRONG[what]
    assert words in "\n".join(refusals(document))


@pytest.mark.parametrize("what", RIGHT)
def test_a_right_deployment_passes_both(what: str) -> None:
    assert parse(RIGHT[what]).name == RIGHT[what]["metadata"]["name"]
    assert refusals(RIGHT[what]) == []


def test_all_problems_are_listed_together() -> None:
    document = with_fields(
        spec__parallelism__tensor=0, spec__model__source={}, spec__model__dtype="bf16", spec__router__port=0
    )
    with pytest.raises(InvalidDeployment) as caught:
        parse(document)
    assert {problem.location[-1] for problem in caught.value.problems} == {"tensor", "source", "dtype", "port"}
