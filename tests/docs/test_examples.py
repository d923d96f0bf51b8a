"""Every InferenceDeployment that a page shows, whole or in part, is one that the API takes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bireme.api import parse
from bireme.names import GROUP, KIND, VERSION
from docsite.commands import DOCS

FENCE = re.compile(r"^( *)```yaml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
API = f"{GROUP}/{VERSION}"
NEEDED: dict[str, Any] = {"model": {"source": {"path": "/m"}, "revision": "1"}}


def shown() -> Iterator[Any]:
    pages = set(DOCS.rglob("*.md")) - {DOCS / "design.md"}  # that one writes types where values stand
    for page in sorted(pages):
        for number, (indent, text) in enumerate(FENCE.findall(page.read_text())):
            plain = "".join(line[len(indent) :] for line in text.splitlines(keepends=True))
            for body in yaml.safe_load_all(plain):
                if body.get("kind", KIND) == KIND and "spec" in body:
                    yield pytest.param(body, id=f"{page.relative_to(DOCS)}-{number}")


EXAMPLES = list(shown())


@pytest.mark.parametrize("body", EXAMPLES)
def test_an_example_is_taken(body: dict[str, Any]) -> None:
    spec = {**NEEDED, **body["spec"]}
    # `…` is what another example of the page has.
    spec["model"] = {**NEEDED["model"], **{name: value for name, value in spec["model"].items() if name != "…"}}
    parse({"apiVersion": API, "kind": KIND, "metadata": {"name": "demo"}, **body, "spec": spec})


def test_the_pages_have_examples() -> None:
    assert len(EXAMPLES) > 10
