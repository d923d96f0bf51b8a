"""What a user runs by kind is whole: the cluster that kind-config.yaml describes, the example that is made for it."""

from collections import Counter
from pathlib import Path

import yaml

from bireme.api.document import parse
from tests.e2e.leftovers import undone
from tests.e2e.trimmed_runc import trim

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "kind-config.yaml").read_text())
EXAMPLE = list(yaml.safe_load_all((ROOT / "examples/kind/smollm2.yaml").read_text()))


def test_the_cluster_has_four_workers_in_two_racks_that_see_the_models() -> None:
    roles = Counter(node["role"] for node in CONFIG["nodes"])
    assert roles == {"control-plane": 1, "worker": 4}
    workers = [node for node in CONFIG["nodes"] if node["role"] == "worker"]
    assert sorted(Counter(node["labels"]["topology.bireme.dev/rack"] for node in workers).values()) == [2, 2]
    assert {mount["containerPath"] for node in workers for mount in node["extraMounts"]} == {"/models"}


def test_the_cluster_places_gangs_itself() -> None:
    assert CONFIG["featureGates"] == {"GenericWorkload": True}
    assert CONFIG["runtimeConfig"] == {"scheduling.k8s.io/v1beta1": "true"}


def test_the_example_is_the_demo_with_its_weights_in_the_volume_of_those_nodes() -> None:
    volume, claim, body = EXAMPLE
    deployment = parse(body)
    wanted = deployment.spec.model.source.persistent_volume_claim
    assert wanted is not None
    assert wanted.claim_name == claim["metadata"]["name"] == volume["spec"]["claimRef"]["name"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["hostPath"]["path"] == "/models"
    demo = parse(yaml.safe_load((ROOT / "examples/smollm2.yaml").read_text()))
    assert deployment.spec.parallelism == demo.spec.parallelism
    assert deployment.model_name == demo.model_name
    assert deployment.spec.replicas == demo.spec.replicas


def test_a_container_is_not_promised_what_its_maker_lacks() -> None:
    process = {
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "effective": ["CAP_SYS_RESOURCE"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1048576, "soft": 1048576}],
        "oomScoreAdj": -999,
    }
    trim(process)
    assert process == {"capabilities": {"bounding": ["CAP_CHOWN"], "effective": []}}


def test_a_score_that_anybody_may_have_stays() -> None:
    process = {"oomScoreAdj": 1000}
    trim(process)
    assert process == {"oomScoreAdj": 1000}


def test_a_dockerd_that_has_ended_leaves_no_rule_and_takes_none_of_others() -> None:
    before = {"filter": ["-P FORWARD ACCEPT", "-N OWN", "-A FORWARD -j OWN"], "nat": ["-P OUTPUT ACCEPT"]}
    now = {
        "filter": [
            "-P FORWARD DROP",
            "-N OWN",
            "-N DOCKER",
            "-A FORWARD -j OWN",
            "-A FORWARD -j DOCKER",
            "-A OWN -j LOG",
        ],
        "nat": ["-P OUTPUT ACCEPT", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"],
    }
    assert undone(before, now) == [
        ["-t", "filter", "-D", "FORWARD", "-j", "DOCKER"],
        ["-t", "filter", "-X", "DOCKER"],
        ["-t", "nat", "-D", "POSTROUTING", "-s", "172.17.0.0/16", "!", "-o", "docker0", "-j", "MASQUERADE"],
        ["-P", "FORWARD", "ACCEPT"],
    ]
