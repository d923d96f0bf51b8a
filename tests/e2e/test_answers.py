"""The first things that a user does: install, apply, ask; from outside, from inside, and why it is as it is."""

import json
import time

import httpx
from openai import OpenAI

from tests.e2e.commands import run
from tests.e2e.ground import DEPLOYMENT, URL, Cluster, Forward
from tests.e2e.times import Times

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
INSIDE = f"http://{DEPLOYMENT}-router:8080/v1/chat/completions"


def test_the_official_client_is_answered_through_a_port_forward(demo: Cluster, times: Times) -> None:
    with Forward(f"service/{DEPLOYMENT}-router", 8080) as forward:
        client = OpenAI(base_url=f"{forward.url}/v1", api_key="none", max_retries=0, timeout=120)
        assert [model.id for model in client.models.list()] == [MODEL]
        began = time.monotonic()
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16
        )
        times.note("16 tokens after", time.monotonic() - began)
    assert "Paris" in str(answer.choices[0].message.content)


def test_a_pod_is_answered_by_the_service_of_the_router(demo: Cluster) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16}
    code = (
        "import urllib.request as u, sys;"
        f"q = u.Request({INSIDE!r}, data=sys.argv[1].encode(), headers={{'content-type': 'application/json'}});"
        "print(u.urlopen(q, timeout=120).read().decode())"
    )
    pod = next(pod["metadata"]["name"] for (_, stage), pod in demo.stages().items() if stage == 1)
    said = demo.kubectl("exec", pod, "--", "python3", "-c", code, json.dumps(body))
    assert "Paris" in json.loads(said)["choices"][0]["message"]["content"]


def test_every_node_carries_one_stage(demo: Cluster) -> None:
    nodes = [pod["spec"]["nodeName"] for pod in demo.stages().values()]
    assert len(set(nodes)) == 4, nodes


def test_why_says_that_both_groups_serve(demo: Cluster) -> None:
    words = f"{DEPLOYMENT}: 2 of 2 groups serve."
    demo.eventually(lambda: words in run("kubectl", "bireme", "why", DEPLOYMENT), within=30)


def test_the_stages_are_closed_to_strangers(demo: Cluster) -> None:
    policy = demo.get("networkpolicy", f"{DEPLOYMENT}-stages")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["podSelector"]["matchLabels"]["bireme.dev/deployment"] == DEPLOYMENT


def test_a_wrong_field_is_refused_with_an_instruction(demo: Cluster) -> None:
    answer = httpx.post(f"{URL}/v1/chat/completions", json={"model": "nobody", "messages": []}, timeout=30)
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["message"]
