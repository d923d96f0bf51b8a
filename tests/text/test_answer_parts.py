"""Thoughts, text and calls are told apart alike, however the text was cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_worker.text.answer_parts import AnswerParts, Part, Said, Thought, ToolFormat, _merged
from bireme_worker.text.tool_scanner import Arguments, Begun

HERMES = (
    'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": "x}\\"é東"}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {"q": 1} , "name": "g"}\n</tool_call>'
)
CASES: list[tuple[ToolFormat, bool | None, str, list[Part]]] = [
    (ToolFormat.HERMES, None, "Hello  world\n", [Said("Hello  world\n")]),
    (
        ToolFormat.HERMES, None, HERMES,
        [Said("Let me see."), Begun(0, "f"), Arguments(0, '{"a": "x}\\"é東"}'), Begun(1, "g"), Arguments(1, '{"q": 1}')],
    ),
    (ToolFormat.HERMES, None, "<tool_call> is no call", [Said("<tool_call> is no call")]),
    (ToolFormat.HERMES, None, '<tool_call>{"name": "f"}</tool_call>', [Begun(0, "f"), Arguments(0, "{}")]),
    (ToolFormat.HERMES, None, '<tool_call>{"name": "f", "arguments": {"a', [Begun(0, "f"), Arguments(0, '{"a')]),
    (
        ToolFormat.LLAMA3, None, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        [Begun(0, "f"), Arguments(0, '{"a": 1}'), Begun(1, "g"), Arguments(1, "{}")],
    ),
    (ToolFormat.LLAMA3, None, '{"x": 1} it is', [Said('{"x": 1} it is')]),
    (ToolFormat.LIST, None, '[{"name": "f", "arguments": {"a": []}}]', [Begun(0, "f"), Arguments(0, '{"a": []}')]),
    (ToolFormat.NAMED, None, '{"a": "é"}', [Begun(0, "tool"), Arguments(0, '{"a": "é"}')]),
    (ToolFormat.NONE, False, "<think>\nI am\n</think>\n\nHello", [Thought("I am"), Said("Hello")]),
    (ToolFormat.NONE, True, "I am\n</think>\n\nHello", [Thought("I am"), Said("Hello")]),
    (ToolFormat.NONE, False, "Hello", [Said("Hello")]),
    (
        ToolFormat.HERMES, False, '<think>\nI\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        [Thought("I"), Begun(0, "f"), Arguments(0, "{}")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("form", "thinking", "text", "expected"), CASES)
@given(data=st.data())
def test_an_output_is_taken_apart_alike_however_it_is_cut(
    form: ToolFormat, thinking: bool | None, text: str, expected: list[Part], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(text) - 1, 1)))))
    parts = AnswerParts(form, thinking=thinking, name="tool")
    got: list[Part] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        got += parts.push(text[start:end])
    assert _merged([*got, *parts.finish()]) == expected
