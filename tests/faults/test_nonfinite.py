"""Logits that are not finite: the request fails alone and is counted; when most do, every rank reads its weights anew."""

import shutil
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from bireme.names import Metric
from tests.faults.parts import gauges, parts
from tests.faults.tiny import MODEL, tiny_deployment
from tests.support.deployment import Deployment, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

POISON, FINE = [100, 777, 101], [100, 200, 300]
"""Prompts with and without the one token whose embedding is broken."""
ENDED = 'bireme_epochs_ended_total{reason="NonFinite"} 1.0'


def _complete(deployment: Deployment, prompt: list[int]) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=60)


def _ranks(deployment: Deployment) -> set[int]:
    return {part.pid for part in parts(deployment) if part.role == "rank"}


def test_a_poisoned_request_fails_alone_and_four_of_them_make_every_rank_load_anew(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(tiny_checkpoint, tmp_path / MODEL))
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON[1]] = torch.nan
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with tiny_deployment(1, 2, checkpoint) as deployment:
        before, epoch = _ranks(deployment), deployment.state(0).epoch
        for number in range(1, 4):
            answer = _complete(deployment, POISON)
            assert answer.status_code == 500, answer.text
            assert "no finite numbers" in answer.json()["error"]["message"]
            # The leader hears of it a moment after the client.
            until(lambda wanted=number: gauges(deployment, 0)[Metric.NONFINITE] == wanted, 60, deployment.tail)
        assert deployment.state(0).epoch == epoch, "three are not enough"
        assert _complete(deployment, FINE).status_code == 200
        _complete(deployment, POISON)
        deployment.wait_later(0, epoch)
        assert ENDED in httpx.get(f"{deployment.route(0).admin}/metrics").text
        assert not before & _ranks(deployment)
        assert _complete(deployment, FINE).status_code == 200
