"""What is rendered, as golden YAML: a change of a rendering is seen in review. BIREME_UPDATE_GOLDEN=1 writes it anew."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.api import InferenceDeployment
from bireme.api.document import load
from bireme.api.engine import EngineType
from bireme.wire.routes import Route, Routes
from bireme_operator.kube.resources import resource_of
from bireme_operator.plan.actions import CreatePod, CreateSpare
from bireme_operator.plan.desired import Desired
from bireme_operator.render.budgets import render_budget
from bireme_operator.render.endpoint import render_custom_endpoint
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.gang import render_pod_group
from bireme_operator.render.merge import merge
from bireme_operator.render.network import render_policy
from bireme_operator.render.owned import Owner
from bireme_operator.render.pods import render_pod
from bireme_operator.render.revisions import read_revision, render_revision
from bireme_operator.render.router import render_router, render_routes
from bireme_operator.render.services import render_stages_service
from bireme_operator.render.spares import render_spare, render_spare_secret
from bireme_operator.render.tokens import capacity, group_token, render_secret, secret_name
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.rights import granted

GOLDEN = Path(__file__).parent / "golden"
MASTER_KEY = b"m" * 32
IMAGE = "example.com/bireme:1"

PLAIN = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: demo, namespace: NAMESPACE}
spec:
  replicas: 2
  model: {source: {path: /models/smollm2}, revision: "2026-11-01"}
"""
RICH = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: llama, namespace: NAMESPACE}
spec:
  replicas: 3
  model:
    name: llama-3.1-70b
    aliases: [llama]
    source: {persistentVolumeClaim: {claimName: checkpoints, path: llama-3.1-70b}}
    revision: "2026-11-01"
    dtype: bfloat16
  parallelism: {tensor: 2, pipeline: 2, stageLayers: [41, 39]}
  engine: {maxModelLength: 8192, maxRunningRequests: 256, kvCache: {bytes: 20Gi}}
  rollout: {drainTimeoutSeconds: 120}
  spares: 1
  router: {port: 9090}
  template:
    metadata: {labels: {team: search}, annotations: {example.com/cost: high}}
    spec:
      nodeSelector: {gpu: h100}
      tolerations: [{key: nvidia.com/gpu, operator: Exists}]
      containers:
        - name: worker
          image: example.com/worker@sha256:0000000000000000000000000000000000000000000000000000000000000000
          resources: {limits: {nvidia.com/gpu: 2}}
          env: [{name: CUDA_DEVICE_MAX_CONNECTIONS, value: "1"}]
          volumeMounts: [{name: cache, mountPath: /cache}]
      volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}, {name: cache, emptyDir: {}}]
"""
NATIVE = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: other, namespace: NAMESPACE}
spec:
  model: {source: {path: /models/other}, revision: "1"}
  parallelism: {pipeline: 2}
  engine: {type: Custom, args: {max-batch: "8"}}
  placement: {scheduler: Native, topology: [{key: nvidia.com/gpu.clique}]}
  template:
    spec:
      containers: [{name: worker, image: example.com/engine:1, command: [engine]}]
"""
GATES = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: near, namespace: NAMESPACE}
spec:
  model: {source: {path: /models/near}, revision: "1"}
  placement: {topology: [{key: nvidia.com/gpu.clique}, {key: rack, mode: Preferred}], exclusive: Domain}
  template: {spec: {schedulingGates: [{name: example.com/mine}]}}
  router:
    template:
      metadata: {labels: {team: search}}
      spec: {nodeSelector: {disk: ssd}, containers: [{name: router, resources: {requests: {cpu: "2"}}}]}
"""
KUEUE = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: queued, namespace: NAMESPACE}
spec:
  model: {source: {image: {reference: "example.com/models/queued:1", path: queued}}, revision: "1"}
  placement: {queueName: team-a, topology: [{key: rack, mode: Preferred}]}
"""
EXAMPLES = {"plain": PLAIN, "rich": RICH, "native": NATIVE, "gates": GATES, "kueue": KUEUE}


def rendered(deployment: InferenceDeployment) -> list[dict[str, Any]]:
    """Every object of a deployment with the pods of its first group."""
    desired = Desired.of(deployment, "11111111-2222-3333-4444-555555555555")
    owner = Owner(deployment.name, deployment.metadata.namespace, desired.uid)
    secret = secret_name(owner, capacity(0))
    pods = [
        render_pod(made(desired, stage), owner, deployment.spec, token_secret=secret) for stage in range(desired.stages)
    ]
    route = Route("uid-0", 0, "demo-0-0", 1, "http://10.0.0.1:8000", "http://10.0.0.1:8001", "/bireme/tokens/0")
    custom = deployment.spec.engine.type is EngineType.CUSTOM
    router = render_router(owner, deployment.spec, image="example.com/bireme:1", token_secret=secret)
    pod_group = render_pod_group(made(desired, 0), owner, deployment.spec)
    return [
        *([pod_group] if pod_group else []),
        *pods,
        *spares(desired, owner, deployment),
        render_stages_service(owner),
        render_policy(owner, deployment.spec),
        render_budget(owner, 0, desired.stages),
        render_revision(owner, deployment, 1),
        *([render_custom_endpoint(owner, deployment.spec)] if custom else router),
        render_routes(owner, Routes(1, (deployment.model_name,), (route,))),
    ]


def spares(desired: Desired, owner: Owner, deployment: InferenceDeployment) -> list[dict[str, Any]]:
    if not desired.spares:
        return []
    name, environment = f"{owner.name}-spare-1", {**desired.environment}
    made = CreateSpare(name, 1, desired.revision, desired.model_revision, environment, IMAGE)
    return [render_spare(made, owner, deployment.spec)]


def made(desired: Desired, stage: int) -> CreatePod:
    name, environment = desired.pod_name(0, stage, 1), desired.pod_environment(0, stage, 1)
    return CreatePod(name, 0, stage, 1, desired.revision, desired.model_revision, environment, IMAGE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_objects_are_rendered_as_reviewed(example: str) -> None:
    # A revision has every field of the API in it; that it can be read back is what counts of it.
    reviewed = [one for one in rendered(load(EXAMPLES[example])) if one["kind"] != "ControllerRevision"]
    text = yaml.safe_dump_all(reviewed, sort_keys=False, width=120)
    golden = GOLDEN / f"{example}.yaml"
    if os.environ.get("BIREME_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_server_takes_every_object_at_the_restricted_level(
    example: str, api_server: ControlPlane, namespace: str
) -> None:
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    labels = {"metadata": {"labels": level}}
    merge_patch = {"content-type": "application/merge-patch+json"}
    api_server.api.patch(f"/api/v1/namespaces/{namespace}", json=labels, headers=merge_patch).raise_for_status()
    deployment = load(EXAMPLES[example].replace("NAMESPACE", namespace))
    owner = Owner(deployment.name, namespace, "1")
    objects = [*rendered(deployment), *tokens(owner)]
    eventually(lambda: refuses_the_privileged(api_server, namespace))  # who judges pods hears of the level later
    strict = ("--dry-run=server", "--validate=strict", "-f", "-")
    applied = api_server.kubectl("apply", *strict, stdin=yaml.safe_dump_all(objects))
    assert applied.returncode == 0, applied.stderr
    assert "Warning" not in applied.stderr, "a router outside the restricted level is only warned of"


def tokens(owner: Owner) -> list[dict[str, Any]]:
    return [render_secret(owner, capacity(0), MASTER_KEY), render_spare_secret(owner, MASTER_KEY)]


def refuses_the_privileged(plane: ControlPlane, namespace: str) -> bool:
    container = {"name": "c", "image": "none", "securityContext": {"privileged": True}}
    body = {"metadata": {"name": "root"}, "spec": {"containers": [container]}}
    url = f"/api/v1/namespaces/{namespace}/pods"
    return plane.api.post(url, json=body, params={"dryRun": "All"}).status_code == 403


def test_the_examples_have_every_kind_that_the_operator_may_make() -> None:
    documents = [load(example) for example in EXAMPLES.values()]
    objects = [one for document in documents for one in rendered(document)] + tokens(Owner("demo", "default", "1"))
    made = {right[1] for scope in ("namespace", "cluster") for right in granted(scope) if right[2] == "create"}
    assert {resource_of(one).plural for one in objects} == made - {"events"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_revision_that_is_read_back_makes_the_same_pods(example: str) -> None:
    deployment = load(EXAMPLES[example])
    desired = Desired.of(deployment, "uid")
    owner = Owner(deployment.name, deployment.metadata.namespace, "uid")
    body = yaml.safe_load(yaml.safe_dump(render_revision(owner, deployment, 1)))
    read = read_revision(owner, body)
    assert Desired.of(read, "uid").rendering == desired.rendering
    pods = [render_pod(made(desired, 0), owner, spec, token_secret="t") for spec in (deployment.spec, read.spec)]
    assert pods[0] == pods[1]


@pytest.mark.parametrize(
    ("template", "blamed"),
    [
        ({"spec": {"serviceAccountName": "mine"}}, "spec.router.template.spec.serviceAccountName"),
        ({"metadata": {"labels": {"bireme.dev/role": "x"}}}, "labels[bireme.dev/role]"),
        ({"spec": {"containers": [{"name": "router", "args": ["--port=1"]}]}}, "args of container router"),
    ],
)
def test_a_router_template_that_takes_what_is_ours_is_refused_by_name(template: dict[str, Any], blamed: str) -> None:
    content = yaml.safe_load(PLAIN)
    content["spec"]["router"] = {"template": template}
    with pytest.raises(InvalidTemplate, match="remove") as refusal:
        rendered(load(yaml.safe_dump(content)))
    assert blamed in str(refusal.value)


@pytest.mark.parametrize(
    ("template", "blamed"),
    [
        ({"spec": {"restartPolicy": "Never"}}, "spec.template.spec.restartPolicy"),
        ({"metadata": {"name": "mine"}}, "spec.template.metadata.name"),
        ({"metadata": {"labels": {"bireme.dev/group": "7"}}}, "labels[bireme.dev/group]"),
        ({"metadata": {"labels": {"app.kubernetes.io/component": "x"}}}, "labels[app.kubernetes.io/component]"),
        (
            {"spec": {"containers": [{"name": "worker", "env": [{"name": "BIREME_STAGE", "value": "1"}]}]}},
            "BIREME_STAGE",
        ),
    ],
)
def test_a_template_that_takes_what_is_ours_is_refused_by_name(template: dict[str, Any], blamed: str) -> None:
    content = yaml.safe_load(PLAIN)
    content["spec"]["template"] = template
    with pytest.raises(InvalidTemplate, match="remove") as refusal:
        rendered(load(yaml.safe_dump(content)))
    assert blamed in str(refusal.value)


ODD: list[Any] = ["odd", 70707, ["odd"], [70707], [{"name": {"odd": "name"}}]]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_what_has_not_the_shape_of_a_pod_is_left_for_the_server_to_refuse(odd: Any) -> None:
    content = yaml.safe_load(PLAIN)
    env = [{"name": name, "env": odd} for name in ("worker", "router")]
    for template in ({"metadata": {"labels": odd}}, {"spec": {"containers": odd}}, {"spec": {"containers": env}}):
        content["spec"] |= {"template": template, "router": {"template": template}}
        pods = [one for one in rendered(load(yaml.safe_dump(content))) if one["kind"] in {"Pod", "Deployment"}]
        assert len(pods) > 1
        assert all(json.dumps(odd) in json.dumps(pod) for pod in pods)


def test_a_stage_keeps_away_from_its_predecessor_whatever_else_the_template_keeps_it_away_from() -> None:
    other = {"labelSelector": {"matchLabels": {"app": "training"}}, "topologyKey": "kubernetes.io/hostname"}
    content = yaml.safe_load(PLAIN)
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [other]}
    content["spec"]["template"] = {"spec": {"affinity": {"podAntiAffinity": apart}}}
    pod = next(one for one in rendered(load(yaml.safe_dump(content))) if one["kind"] == "Pod")
    own, added = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert added == other
    assert own["labelSelector"]["matchLabels"].keys() == {
        "bireme.dev/deployment",
        "bireme.dev/group",
        "bireme.dev/stage",
    }


def test_named_entries_are_merged_and_others_replaced() -> None:
    base = {"containers": [{"name": "worker", "image": "a", "args": ["x"]}], "volumes": [{"name": "v", "emptyDir": {}}]}
    over = {
        "containers": [{"name": "worker", "args": ["y"]}, {"name": "sidecar"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    }
    assert merge(base, over) == {
        "containers": [{"name": "worker", "image": "a", "args": ["y"]}, {"name": "sidecar"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    }


def test_another_source_of_a_variable_takes_the_first_one_away() -> None:
    base = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    over = {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]}
    assert merge(base, over)["env"] == [*over["env"], base["env"][1]]


def test_each_group_has_a_token_of_its_own_and_a_larger_secret_keeps_them() -> None:
    owner = Owner("demo", "default", "uid")
    small, large = (render_secret(owner, capacity(highest), MASTER_KEY) for highest in (63, 64))
    assert (len(small["stringData"]), len(large["stringData"])) == (64, 128)
    assert small["stringData"].items() <= large["stringData"].items()
    assert small["metadata"]["name"] != large["metadata"]["name"]
    assert len(set(large["stringData"].values())) == 128
    assert small["stringData"]["5"] == group_token(MASTER_KEY, "uid-5")


def test_a_deployment_of_the_same_name_has_another_secret() -> None:
    assert secret_name(Owner("demo", "default", "one"), 64) != secret_name(Owner("demo", "default", "two"), 64)
