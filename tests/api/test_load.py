"""Reading a file: what is right becomes a deployment, what is wrong is named with its line and its remedy."""

from pathlib import Path

import pytest

from bireme.api import InferenceDeployment, InvalidDeployment, load, parse, refused_locally
from bireme.api.engine import KVCache, Switch
from bireme.api.local import worker_environment
from bireme.api.parallelism import Parallelism
from bireme.api.types import MAX_NAME_LENGTH, byte_count
from bireme.names import Port
from tests.api.api_server import refusals
from tests.api.objects import minimal, with_fields

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("smollm2*.yaml"))

TEXT = """\
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata:
  name: small
spec:
  model:
    source: {path: /models/small}
    revision: 2026-11-01
"""


def complaint(text: str) -> str:
    with pytest.raises(InvalidDeployment) as caught:
        load(text)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid_for_us_and_for_the_crd_and_runs_locally(path: Path) -> None:
    deployment = load(path)
    assert refusals(deployment.to_dict()) == []
    assert refused_locally(deployment) == []
    assert deployment.model_name == "smollm2-135m-instruct"
    assert deployment.spec.model.source.path == "/models/smollm2-135m-instruct"
    assert deployment.spec.model.revision == "1"
    assert deployment.spec.router.port == Port.ROUTER


def test_the_examples_are_two_groups_of_two_stages_and_one_of_six_ranks() -> None:
    shapes = {
        path.stem: (spec.replicas, spec.parallelism.tensor, spec.parallelism.pipeline)
        for path in EXAMPLES
        for spec in [load(path).spec]
    }
    assert shapes == {"smollm2": (2, 1, 2), "smollm2-tensor3": (1, 3, 2)}


def test_what_is_left_out_has_its_documented_default() -> None:
    deployment = load(TEXT)
    assert deployment.model_name == "small"
    assert deployment.spec.replicas == 1
    assert deployment.spec.parallelism == Parallelism(tensor=1, pipeline=1, stage_layers=None)
    assert deployment.spec.engine.prefix_caching is Switch.ENABLED
    assert deployment.spec.rollout.drain_timeout_seconds == 300
    assert deployment.status is None


def test_a_date_without_quotes_is_a_string_as_it_is_to_kubectl() -> None:
    assert load(TEXT).spec.model.revision == "2026-11-01"


def test_a_number_without_quotes_is_no_revision() -> None:
    assert "line 8: spec.model.revision: write a string, in quotes if it looks like a number, found 7" in complaint(
        TEXT.replace("2026-11-01", "7")
    )


def test_null_is_an_absent_field() -> None:
    assert load(TEXT + "  parallelism: {tensor: null, stageLayers: null}\n") == load(TEXT)


def test_every_problem_has_its_line() -> None:
    text = (
        TEXT
        + "  parallelism:\n    tensor: 0\n    pipline: 2\n  placement:\n    topology:\n    - key: a\n      mod: b\n"
    )
    message = complaint(text)
    assert "line 10: spec.parallelism.tensor: use 1 or more, found 0" in message
    assert "line 11: spec.parallelism.pipline: unknown field; did you mean pipeline?" in message
    assert "line 15: spec.placement.topology[0].mod: unknown field; did you mean mode?" in message


def test_a_missing_field_has_the_line_of_its_parent() -> None:
    assert "line 6: spec.model.source: add this field, it is required" in complaint(
        TEXT.replace("    source: {path: /models/small}\n", "")
    )


def test_a_field_in_the_wrong_place_is_sent_to_the_right_one() -> None:
    assert "line 9: spec.tensor: unknown field; it belongs to spec.parallelism.tensor" in complaint(
        TEXT + "  tensor: 2\n"
    )


def test_a_word_that_no_field_resembles_gets_the_list_of_fields() -> None:
    assert "spec.parallelism.zebra: unknown field; remove it or use one of tensor, pipeline, stageLayers" in complaint(
        TEXT + "  parallelism: {zebra: 1}\n"
    )


def test_a_close_enum_value_is_suggested() -> None:
    message = complaint(TEXT + "    dtype: bf16\n")
    assert "line 9: spec.model.dtype: use one of 'auto', 'float32', 'bfloat16' or 'float16', found 'bf16'" in message
    assert message.endswith("did you mean bfloat16?")


def test_a_pattern_is_explained_in_words() -> None:
    assert (
        "spec.engine.kvCache.fraction: write a whole percentage from 1% to 99%, such as 90%, found '0.9'"
        in complaint(TEXT + "  engine: {kvCache: {fraction: '0.9'}}\n")
    )


def test_a_key_that_stands_twice_is_refused() -> None:
    assert "line 10: spec.replicas: remove one of the two" in complaint(TEXT + "  replicas: 1\n  replicas: 2\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text is empty; begin with apiVersion and kind"),
        ("spec: [", "line 1: the document: correct the YAML"),
        ("spec: \x00", "the document: correct the YAML"),
        (TEXT + "---\n" + TEXT, "line 9: the document: correct the YAML: but found another document"),
        ("[1]", "write a mapping with apiVersion, kind, metadata and spec"),
        ("spec: &a {model: *a}", "remove the alias that contains itself"),
        (TEXT.replace("kind: InferenceDeployment\n", ""), "kind: add `kind: InferenceDeployment`"),
        (TEXT.replace("InferenceDeployment", "Deployment"), "line 2: kind: write 'InferenceDeployment'"),
        (TEXT.replace("v1alpha1", "v1"), "line 1: apiVersion: write 'bireme.dev/v1alpha1', found 'bireme.dev/v1'"),
        (TEXT + "? {a: b}\n: c\n", "correct the YAML: found unhashable key"),
        (TEXT + "status: !!binary aGVsbG8=\n", "status: write a mapping of fields"),
    ],
)
def test_a_text_that_is_no_deployment_gets_a_clear_answer(text: str, words: str) -> None:
    assert words in complaint(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidDeployment, match=r"absent\.yaml can't be read \(No such file or directory\): name a UTF-8"
    ):
        load(tmp_path / "absent.yaml")


def test_an_object_as_the_api_server_gives_it_is_read() -> None:
    document = minimal()
    document["metadata"] |= {"uid": "u", "generation": 3, "managedFields": [{"manager": "kubectl"}]}
    del document["kind"], document["apiVersion"]
    assert parse(document).metadata.generation == 3


def test_a_deployment_can_be_written_in_python() -> None:
    deployment = InferenceDeployment.model_validate(parse(minimal()).to_dict())
    assert deployment.model_copy(update={"status": None}) == parse(minimal())


def test_quantities_are_bytes() -> None:
    assert [byte_count(quantity) for quantity in (5, "5", "2k", "2Ki", "3M", "8Gi")] == [
        5,
        5,
        2000,
        2048,
        3_000_000,
        2**33,
    ]
    assert KVCache(bytes="64Mi").byte_count() == 2**26


def test_the_longest_name_leaves_room_for_a_pods_name() -> None:
    pod = f"{'a' * MAX_NAME_LENGTH}-9999-63-01234567"
    assert len(pod) == 63


def test_a_local_stage_takes_the_environment_of_its_container() -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "EMPTY"}]
    deployment = parse(with_fields(spec__template={"spec": {"containers": [{"name": "worker", "env": env}]}}))
    assert refused_locally(deployment) == []
    assert worker_environment(deployment.spec.template) == {"OMP_NUM_THREADS": "1", "EMPTY": ""}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeSelector": {"gpu": "h100"}}, "spec.template.spec.nodeSelector: remove it"),
        ({"containers": "worker"}, "spec.template.spec.containers: write a list"),
        ({"containers": [{"name": "worker", "image": "x"}]}, "spec.template.spec.containers[0].image: remove it"),
        ({"containers": [{"name": "worker"}, {"name": "sidecar"}]}, "containers[1]: a local stage has one container"),
        ({"containers": [{"name": "worker", "env": "A"}]}, "containers[0].env: write a list of name and value"),
        ({"containers": [{"name": "worker", "env": [{"name": "A", "valueFrom": {}}]}]}, "env[0]: write only name and"),
        ({"containers": [{"name": "worker", "env": [{"name": "A", "value": 1}]}]}, "env[0].value: write a string"),
        ({"containers": [{"name": "worker", "env": [{"name": "BIREME_STAGE"}]}]}, "env[0]: remove BIREME_STAGE"),
    ],
)
def test_what_means_nothing_to_a_local_process_is_refused(spec: dict[str, object], words: str) -> None:
    [refusal] = refused_locally(parse(with_fields(spec__template__spec=spec)))
    assert words in refusal


@pytest.mark.parametrize(
    ("kind", "volume"), [("persistentVolumeClaim", {"claimName": "models"}), ("image", {"reference": "models/llama:1"})]
)
def test_a_volume_and_template_labels_are_refused_locally(kind: str, volume: dict[str, str]) -> None:
    deployment = parse(with_fields(spec__model__source={kind: volume}, spec__template__metadata={"labels": {"a": "b"}}))
    assert [refusal.partition(":")[0] for refusal in refused_locally(deployment)] == [
        f"spec.model.source.{kind}",
        "spec.template.metadata.labels",
    ]


def test_what_is_about_nodes_is_refused_locally() -> None:
    deployment = parse(with_fields(spec__recovery={"nodeLostAfterSeconds": 5}, spec__disruption={"onCordon": "Ignore"}))
    blamed = [refusal.partition(":")[0] for refusal in refused_locally(deployment)]
    assert blamed == ["spec.recovery.nodeLostAfterSeconds", "spec.disruption.onCordon"]


def test_a_canary_and_a_budget_for_drains_are_refused_locally() -> None:
    deployment = parse(with_fields(spec__rollout__canary={}, spec__disruption__maxUnavailableGroups=2))
    blamed = [refusal.partition(":")[0] for refusal in refused_locally(deployment)]
    assert blamed == ["spec.disruption.maxUnavailableGroups", "spec.rollout.canary"]
