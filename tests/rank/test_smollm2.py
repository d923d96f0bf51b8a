"""The real model on real rank processes, judged by transformers in fp32."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from bireme.names import Env
from bireme.wire.plan import Sampling
from tests.support.generation import Request, generate
from tests.support.oracle import Oracle
from tests.support.rank_group import rank_group

TEXT = (
    "The harbour lay quiet in the morning, and the oars of the long ship were drawn in. Nobody on the quay had seen "
    "such a vessel before: two banks of rowers, one above the other, and a single drum that held them together. When "
    "an oar broke, the rower beside it shifted, the drum went on, and the ship lost hardly a stroke. What is the "
    "capital of France? def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)"
)
PROMPTS = 20
TOKENS = 64


def requests(source: Path) -> list[Request]:
    """Prompts of 1 to 110 tokens cut from the text; every fourth one samples; they arrive over the first forty steps."""
    ids = Tokenizer.from_file(str(source / "tokenizer.json")).encode(TEXT).ids
    assert len(ids) > 110
    lengths = [1 + (number * 37) % 110 for number in range(PROMPTS)]
    return [
        Request(
            ids[:length], TOKENS, Sampling(temperature=0.8, seed=n, top_p=0.95) if n % 4 == 3 else Sampling(), 2 * n
        )
        for n, length in enumerate(lengths)
    ]


@pytest.mark.system
@pytest.mark.parametrize(("tensor", "stages"), [(3, 2), (1, 2)])
def test_twenty_prompts_in_a_batch_with_late_arrivals_and_three_alone(
    smollm2_dir: Path, tmp_path: Path, tensor: int, stages: int
) -> None:
    batch, alone = requests(smollm2_dir), requests(smollm2_dir)[:3]
    with rank_group(smollm2_dir, tmp_path, tensor, stages, {Env.KV_BYTES: str(256 << 20)}) as group:
        group.load()
        group.form(1)
        generate(group, batch, chunk=128)
        for request in alone:
            generate(group, [request])
    torch.set_num_threads(1)
    oracle = Oracle(LlamaForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval())
    for number, request in enumerate([*batch, *alone]):
        oracle.judge(request.prompt, request.outputs, request.sampling, str(number))
    assert oracle.verdict.tokens == (PROMPTS + 3) * TOKENS
    oracle.verdict.check()
