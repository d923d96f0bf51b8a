"""Embeddings as clients get them: the official client, a whole group of two stages, and a rank that dies meanwhile."""

import asyncio
import base64
import os
import signal
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
import torch
from hypothesis import HealthCheck, given, settings
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from torch.nn import functional

from bireme.names import Env, Port
from bireme_worker.llm.pods import Pods
from tests.models.random_models import VOCABULARY, written
from tests.models.test_encoders import MODELS, expected, write_modules
from tests.support.any_request import FIELDS, embedding

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = ("ship", "oar", "drum", "harbour", "row", "##er", "##ing", "the", "a", "two")
TEXTS = ["The rower rowing", "two ship", "a harbour", "drum " * 60]


def write_tokenizer(directory: Path) -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class Group:
    """A served encoder, the tokenizer, and the reference."""

    def __init__(self, model: Any, tokenizer: Tokenizer, pods: Pods) -> None:
        self.model, self.tokenizer, self.pods = model, tokenizer, pods
        self.base = f"http://{pods.leader}:{Port.HTTP.value}"

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def assert_vectors(self, ours: list[list[float]], prompts: list[list[int]]) -> None:
        theirs = expected(self.model, prompts, "cls_token")
        assert functional.cosine_similarity(torch.tensor(ours), theirs).min() > 1 - 1e-6


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    source = tmp_path_factory.mktemp("bert")
    model, tokenizer = written(source, MODELS["bert"]), write_tokenizer(source)
    write_modules(source, "cls_token")
    settings = {Env.MODEL_NAME: "tiny-bert", Env.MODEL_PATH: str(source), Env.MAX_RUNNING_REQUESTS: "8"}
    with Pods({key.value: value for key, value in settings.items()}, 2, logs=None) as pods:
        yield Group(model, tokenizer, pods)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(group: Group) -> AsyncIterator[openai.AsyncOpenAI]:
    await until(group, lambda answer: answer.status == 200)
    async with openai.AsyncOpenAI(base_url=f"{group.base}/v1", api_key="sk-unused", max_retries=0) as api:
        yield api


async def until(group: Group, holds: Callable[[aiohttp.ClientResponse], bool]) -> None:
    body = {"model": "tiny-bert", "input": "ship"}
    async with asyncio.timeout(100), aiohttp.ClientSession() as client:
        while True:
            try:
                async with client.post(f"{group.base}/v1/embeddings", json=body) as answer:
                    if holds(answer):
                        return
            except aiohttp.ClientConnectionError:
                group.pods.check()
            await asyncio.sleep(0.1)


async def test_the_official_client_gets_the_vectors_of_transformers(api: openai.AsyncOpenAI, group: Group) -> None:
    prompts = [group.ids(text) for text in TEXTS]
    answer = await api.embeddings.create(model="tiny-bert", input=TEXTS)  # the client asks for base64
    group.assert_vectors([one.embedding for one in answer.data], prompts)
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, prompts))
    written_out = await api.embeddings.create(model="tiny-bert", input=TEXTS, encoding_format="float")
    for plain, packed in zip(written_out.data, answer.data, strict=True):
        assert torch.equal(torch.tensor(plain.embedding), torch.tensor(packed.embedding)), "nine digits say it all"


async def test_a_text_its_ids_and_lists_of_them_are_the_same(api: openai.AsyncOpenAI, group: Group) -> None:
    ids = group.ids(TEXTS[0])
    for same in (TEXTS[0], [TEXTS[0]], ids, [ids]):
        answer = await api.embeddings.create(model="tiny-bert", input=same)
        group.assert_vectors([one.embedding for one in answer.data], [ids])


async def test_more_inputs_than_run_at_once_come_back_in_order(api: openai.AsyncOpenAI, group: Group) -> None:
    prompts = [[2, *(4 + (number + place) % 9 for place in range(number % 20)), 3] for number in range(50)]
    answer = await api.embeddings.create(model="tiny-bert", input=prompts)
    group.assert_vectors([one.embedding for one in answer.data], prompts)


async def test_fewer_dimensions_are_the_first_ones_with_length_one(api: openai.AsyncOpenAI) -> None:
    whole = (await api.embeddings.create(model="tiny-bert", input="ship")).data[0].embedding
    cut = (await api.embeddings.create(model="tiny-bert", input="ship", dimensions=5)).data[0].embedding
    first = functional.normalize(torch.tensor(whole[:5]), dim=0)
    assert cut == pytest.approx(first.tolist(), abs=1e-6)


REFUSED = [
    ({"input": []}, "has 0 inputs"),
    ({"input": ["ship", ""]}, "empty input at place 1"),
    ({"input": 5}, "must be a string, a list of strings"),
    ({"input": [[1, VOCABULARY]]}, f"the last one is {VOCABULARY - 1}"),
    ({"input": "ship", "dimensions": 49}, "this model has 48"),
    ({"input": "ship", "encoding_format": "hex"}, "Use float or base64"),
    ({"input": "ship " * 200}, "202 tokens and the model takes 130"),
    ({"input": "ship", "voice": "loud"}, "voice is an unknown field"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
async def test_what_cannot_be_is_refused(api: openai.AsyncOpenAI, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        await api.post("/embeddings", body={"model": "tiny-bert", **fields}, cast_to=object)


async def test_an_encoder_writes_no_text(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="tiny-bert makes embeddings and no text"):
        await api.chat.completions.create(model="tiny-bert", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.BadRequestError, match="tiny-bert makes embeddings and no text"):
        await api.completions.create(model="tiny-bert", prompt="Hello")


async def test_a_dead_rank_costs_no_request(api: openai.AsyncOpenAI, group: Group) -> None:
    prompts = [[2, *(4 + (number * place) % 9 for place in range(1, 100)), 3] for number in range(400)]
    answering = asyncio.create_task(api.embeddings.create(model="tiny-bert", input=prompts))
    os.kill(rank_of(group), signal.SIGKILL)
    (answer,) = await asyncio.gather(answering, return_exceptions=True)
    if isinstance(answer, openai.InternalServerError):  # an input that came while the group re-formed was refused
        assert answer.response.headers["x-bireme-unprocessed"] == "1"
        await until(group, lambda response: response.status == 200)
        answer = await api.embeddings.create(model="tiny-bert", input=prompts)
    assert isinstance(answer, openai.types.CreateEmbeddingResponse)
    group.assert_vectors([one.embedding for one in answer.data], prompts)


def rank_of(group: Group) -> int:
    """The pid of a rank of this group, by its environment."""
    for folder in Path("/proc").iterdir():
        try:
            line, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"bireme_worker.rank.main" in line and f"{Env.POD_IP}={group.pods.leader}".encode() in environment.split(
            b"\0"
        ):
            return int(folder.name)
    raise AssertionError("no rank of this group is running")


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(body=embedding("tiny-bert", VOCABULARY, 48))
async def test_t13_any_request_for_vectors_is_answered_rightly_or_refused_by_name(
    api: openai.AsyncOpenAI, group: Group, body: dict[str, Any]
) -> None:
    async with aiohttp.ClientSession() as client, client.post(f"{group.base}/v1/embeddings", json=body) as answer:
        data = await answer.json()
    if answer.status != 200:
        assert answer.status in (400, 401, 404), data
        assert (data["error"]["param"] or "input").partition(".")[0] in {*FIELDS["embeddings"], *body}
        return
    whole = isinstance(body["input"], str) or isinstance(body["input"][0], int)
    assert [one["index"] for one in data["data"]] == list(range(1 if whole else len(body["input"])))
    for one in data["data"]:
        told = one["embedding"]
        vector = array("f", base64.b64decode(told)) if isinstance(told, str) else array("f", told)
        assert isinstance(told, str) == (body.get("encoding_format") == "base64")
        assert len(vector) == (body.get("dimensions") or 48)
        assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-4)
