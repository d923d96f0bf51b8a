"""The committed CRD on a real API server: it is served, it refuses and completes as our emulation of it says."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from bireme.api import parse
from bireme.api.crd import COMMITTED, definition
from bireme.api.status import Condition, ConditionStatus, GroupStatus, GroupTimings, Status
from bireme.names import ConditionType, GroupState, Reason
from tests.api.api_server import refusals, root_schema
from tests.api.crd_linter import walk
from tests.api.objects import minimal, with_fields
from tests.api.strategies import documents
from tests.api.test_refusals import RIGHT, WRONG
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually

ROOT = Path(__file__).parents[2]
FILE = ROOT / COMMITTED
NAME = definition()["metadata"]["name"]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANNOTATION_LIMIT = 262_144
RULE_MESSAGES = {
    rule["message"] for _, _, node in walk(root_schema()) for rule in node.get("x-kubernetes-validations", [])
}
NOW = "2026-11-27T18:00:00Z"


def _conditions(plane: ControlPlane) -> dict[str, str]:
    found = plane.api.get(f"{CRDS}/{NAME}").raise_for_status().json()
    return {condition["type"]: condition["status"] for condition in found["status"].get("conditions", [])}


def _create(plane: ControlPlane, namespace: str, document: dict[str, Any], **parameters: str) -> httpx.Response:
    path = f"/apis/bireme.dev/v1alpha1/namespaces/{namespace}/inferencedeployments"
    return plane.api.post(path, json=document, params={"fieldValidation": "Strict", **parameters})


def _run(plane: ControlPlane, *words: str, stdin: str | None = None) -> str:
    result = plane.kubectl(*words, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_crd_is_established_and_structural(crd: ControlPlane) -> None:
    conditions = _conditions(crd)
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert conditions.get("KubernetesAPIApprovalPolicyConformant", "True") == "True"


def test_the_crd_draws_no_warning(crd: ControlPlane) -> None:
    written = _current(crd) | {"spec": definition()["spec"]}
    judged = crd.api.put(f"{CRDS}/{NAME}", json=written, params={"dryRun": "All", "fieldValidation": "Strict"})
    assert judged.status_code == 200, judged.text
    assert "warning" not in judged.headers


def _current(plane: ControlPlane) -> dict[str, Any]:
    found: dict[str, Any] = plane.api.get(f"{CRDS}/{NAME}").raise_for_status().json()
    return found


def test_client_side_apply_has_room_left_in_its_annotation(crd: ControlPlane) -> None:
    annotations = _current(crd)["metadata"]["annotations"]
    assert len(annotations["kubectl.kubernetes.io/last-applied-configuration"]) < ANNOTATION_LIMIT / 2
    assert "unchanged" in _run(crd, "apply", "-f", str(FILE))


def test_server_side_apply_takes_the_same_file(crd: ControlPlane) -> None:
    assert "serverside-applied" in _run(crd, "apply", "--server-side", "--force-conflicts", "-f", str(FILE))


def test_the_server_stores_the_schema_as_written(crd: ControlPlane) -> None:
    stored = _current(crd)["spec"]["versions"][0]
    assert stored["schema"]["openAPIV3Schema"] == root_schema()


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_deployment_is_refused_for_the_reasons_of_the_emulation(
    crd: ControlPlane, namespace: str, what: str
) -> None:
    document = WRONG[what][0]
    answer = _create(crd, namespace, document)
    assert answer.is_client_error
    said = _complaints(answer)
    for expected in refusals(document):
        path, _, words = expected.partition(": ")
        if words.startswith("unknown field"):
            field = words.split("'")[1]
            assert f'unknown field "{path}.{field}"' in answer.json()["message"]
        else:
            shown = [message for where, message in said if where == path]
            assert shown, f"{path} is not among {said}"
            assert words not in RULE_MESSAGES or any(words in message for message in shown)


def _complaints(answer: httpx.Response) -> list[tuple[str, str]]:
    """Return the field and message of each cause; the server writes `<nil>` for the object itself."""
    causes = answer.json().get("details", {}).get("causes", [])
    return [(_path(cause.get("field", "")), cause["message"]) for cause in causes]


def _path(field: str) -> str:
    return "" if field == "<nil>" else field


@pytest.mark.parametrize("what", RIGHT)
def test_a_right_deployment_is_stored(crd: ControlPlane, namespace: str, what: str) -> None:
    answer = _create(crd, namespace, RIGHT[what])
    assert answer.status_code == 201, answer.text
    assert "warning" not in answer.headers


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_can_be_applied(crd: ControlPlane, namespace: str, example: Path) -> None:
    assert "created" in _run(crd, "apply", "-n", namespace, "--validate=strict", "-f", str(example))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(document=documents())
def test_server_and_emulation_give_the_same_verdict(
    crd: ControlPlane, namespace: str, document: dict[str, Any]
) -> None:
    answer = _create(crd, namespace, document, dryRun="All")
    assert (answer.status_code == 201) == (refusals(document) == []), answer.text


def test_what_the_server_stores_is_what_we_read(crd: ControlPlane, namespace: str) -> None:
    stored = _create(crd, namespace, minimal()).json()
    assert parse(stored).spec == parse(minimal()).spec
    assert stored["spec"]["replicas"] == 1, "scalars at the top get their defaults"
    assert "parallelism" not in stored["spec"], "an absent object stays absent"


def test_defaults_are_filled_inside_an_object_that_is_there(crd: ControlPlane, namespace: str) -> None:
    stored = _create(crd, namespace, with_fields(spec__parallelism__tensor=4)).json()
    assert stored["spec"]["parallelism"] == {"tensor": 4, "pipeline": 1, "experts": "Inner"}


def test_an_unknown_field_is_refused_under_strict_validation_and_dropped_otherwise(
    crd: ControlPlane, namespace: str
) -> None:
    text = json.dumps(with_fields(spec__paralelism={"tensor": 2}))
    refused = crd.kubectl("apply", "-n", namespace, "--validate=strict", "-f", "-", stdin=text)
    assert refused.returncode != 0
    assert "spec.paralelism" in refused.stderr
    dropped = _create(crd, namespace, with_fields(spec__paralelism={"tensor": 2}), fieldValidation="Warn")
    assert "spec.paralelism" in dropped.headers["warning"]
    assert "paralelism" not in dropped.json()["spec"]


def test_kubectl_get_prints_the_columns(crd: ControlPlane, namespace: str) -> None:
    _create(crd, namespace, with_fields(spec__replicas=3)).raise_for_status()
    header, row = _run(crd, "get", "infd", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "READY", "GROUPS", "RESTARTS", "AGE"]
    # Two columns are of the status, which nobody has written yet.
    assert row.split()[:2] == ["llama", "3"]
    wide = _run(crd, "get", "infd", "-n", namespace, "-o", "wide").splitlines()[0]
    assert wide.split()[5:] == ["MODEL", "TOPOLOGY", "REVISION"]


def test_the_category_lists_deployments(crd: ControlPlane, namespace: str) -> None:
    _create(crd, namespace, minimal()).raise_for_status()
    assert _run(crd, "get", "bireme", "-n", namespace, "-o", "name") == "inferencedeployment.bireme.dev/llama\n"


def test_kubectl_explain_shows_the_documentation(crd: ControlPlane) -> None:
    def explained() -> str | None:
        result = crd.kubectl("explain", "infd.spec.parallelism")
        return result.stdout if result.returncode == 0 else None

    text = eventually(explained)  # the OpenAPI document is published after the CRD is established
    assert "How one copy of the model is split over devices and pods." in " ".join(text.split())
    assert "default: 1" in text or "Default 1" in text


def test_the_scale_subresource_sets_the_groups(crd: ControlPlane, namespace: str) -> None:
    _create(crd, namespace, minimal()).raise_for_status()
    _patch_status(crd, namespace, {"replicas": 2, "selector": "bireme.dev/deployment=llama"}).raise_for_status()
    assert "scaled" in _run(crd, "scale", "infd", "llama", "-n", namespace, "--replicas=3")
    scale = crd.api.get(_url(namespace) + "/scale").raise_for_status().json()
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "bireme.dev/deployment=llama"}
    assert crd.kubectl("scale", "infd", "llama", "-n", namespace, "--replicas=1001").returncode != 0


def _url(namespace: str, name: str = "llama") -> str:
    return f"/apis/bireme.dev/v1alpha1/namespaces/{namespace}/inferencedeployments/{name}"


def _patch_status(plane: ControlPlane, namespace: str, status: dict[str, Any]) -> httpx.Response:
    headers = {"content-type": "application/merge-patch+json"}
    parameters = {"fieldValidation": "Strict"}
    body = json.dumps({"status": status})
    return plane.api.patch(_url(namespace) + "/status", content=body, headers=headers, params=parameters)


def _full_status() -> Status:
    timings = GroupTimings(detect_milliseconds=30, load_milliseconds=4000, total_milliseconds=9000)
    group = GroupStatus(
        index=0, epoch=3, revision="abc", model_revision="1", state=GroupState.SERVING, reason=Reason.NONE,
        message="All ranks progress.", nodes=("a", "b"), restarts=2, since=NOW, timings=timings,
    )  # fmt: skip
    conditions = tuple(
        Condition(type=kind, status=ConditionStatus.TRUE, reason=Reason.ALL_GROUPS_SERVING, last_transition_time=NOW)
        for kind in ConditionType
    )
    return Status(
        observed_generation=1, replicas=1, ready_replicas=1, updated_replicas=1, available_replicas=1, restarts=2,
        selector="bireme.dev/role=leader", topology="1x2", current_revision="abc", update_revision="abc",
        model_revision="1", conditions=conditions, groups=(group,),
    )  # fmt: skip


def test_a_status_of_the_models_is_stored_whole_and_changes_no_spec(crd: ControlPlane, namespace: str) -> None:
    _create(crd, namespace, minimal()).raise_for_status()
    status = _full_status().model_dump(mode="json", by_alias=True, exclude_none=True)
    answer = _patch_status(crd, namespace, status)
    assert answer.status_code == 200, answer.text
    stored = parse(answer.json())
    assert stored.status == _full_status()
    assert stored.metadata.generation == 1, "a status is no change of what is wanted"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"groups": [{"index": 0, "state": "Serving", "reason": "None", "since": "yesterday"}]}, "groups[0].since"),
        ({"groups": [{"index": 0, "state": "Sleeping", "reason": "None", "since": NOW}]}, "groups[0].state"),
        ({"groups": [{"index": 0, "state": "Serving", "reason": "no", "since": NOW}]}, "groups[0].reason"),
        ({"readyReplicas": -1}, "readyReplicas"),
    ],
)
def test_a_wrong_status_is_refused(crd: ControlPlane, namespace: str, change: dict[str, Any], field: str) -> None:
    _create(crd, namespace, minimal()).raise_for_status()
    answer = _patch_status(crd, namespace, change)
    assert answer.status_code == 422
    assert f"status.{field}" in [where for where, _ in _complaints(answer)]


def test_a_status_is_written_by_its_subresource_only(crd: ControlPlane, namespace: str) -> None:
    created = _create(crd, namespace, minimal() | {"status": {"replicas": 7}})
    assert created.status_code == 201
    assert "status" not in created.json()


def test_the_longest_name_is_taken_and_one_more_character_refused(crd: ControlPlane, namespace: str) -> None:
    assert _create(crd, namespace, minimal("a" * 46)).status_code == 201
    refused = crd.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(minimal("a" * 47)))
    assert refused.returncode != 0
    assert "shorten metadata.name to 46 characters" in refused.stderr
