"""Chat templates render as transformers renders them, and whatever a client sends is at worst a refusal."""

from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.text.chat_template import ChatTemplate
from bireme_worker.text.errors import InvalidChat

NOW = datetime(2026, 1, 2)
HELLO = [{"role": "user", "content": "Héllo <b> & 'you'"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"ä": {}}}}}]


def render(template: str | list[dict[str, str]], messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    return ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, now=NOW, **options)


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{% for m in messages %}\n    {%- if m.role == 'user' %}\n  [{{ m['content'] }}]\n    {% endif %}\n{% endfor %}",
        "{% for m in messages %}\n  {% if loop.first %}\n{{ m.content | trim }}\n  {% endif %}\n{% endfor %}\nend",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
        "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{{ messages[0].content }}{% if add_generation_prompt %}<assistant>{% endif %}",
    ],
)
@pytest.mark.parametrize("prompt", [True, False])
def test_a_template_renders_as_in_transformers(template: str, prompt: bool) -> None:
    reference: Any = render_jinja_template
    (theirs,), _ = reference(
        [HELLO], tools=TOOLS, chat_template=template, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )
    assert render(template, tools=TOOLS, add_generation_prompt=prompt) == theirs


def test_the_date_is_the_one_given() -> None:
    assert render("{{ strftime_now('%d %B %Y') }}") == "02 January 2026"


def test_a_refusal_by_the_template_reaches_the_client_with_its_words() -> None:
    with pytest.raises(InvalidChat, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image"}]}],
        [{"role": "user", "content": 7}],
    ],
)
def test_messages_that_the_template_cannot_cope_with_are_the_clients_fault(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidChat, match="cannot render these messages"):
        render("{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}", messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) | list }}",
        "{{ 1 // 0 }}",
        "{% include 'other' %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(InvalidChat):
        render(template)


def test_a_template_that_does_not_compile_is_the_checkpoints_fault() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="chat template of the checkpoint is not valid"):
        render("{% for m in messages %}")


def test_tools_choose_the_template_made_for_them() -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    assert render(named) == "plain"
    assert render(named, tools=TOOLS) == "tools"
    with pytest.raises(UnsupportedCheckpoint, match="no default"):
        render([{"name": "rag", "template": ""}])


def test_a_client_can_set_variables_but_not_replace_messages() -> None:
    variables = {"enable_thinking": False, "messages": [], "add_generation_prompt": False, "bos_token": "!"}
    template = "{{ enable_thinking }} {{ messages | length }} {{ add_generation_prompt }} {{ bos_token }}"
    assert render(template, variables=variables) == "False 1 True <s>"


def test_rendering_changes_no_message() -> None:
    messages = [{"role": "user", "content": "x", "name": None}]
    assert render("{{ messages[0] | tojson }}", messages) == '{"role": "user", "content": "x"}'
    assert messages == [{"role": "user", "content": "x", "name": None}]
