"""A stream put together is the answer that a client without streaming gets."""

from typing import Any

from bireme_router.chunks import Aggregate


def _chunk(**choice: Any) -> dict[str, Any]:
    return {"id": "r", "object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **choice}]}


def test_token_ids_of_all_chunks_add_up_like_the_text() -> None:
    whole = Aggregate()
    for chunk in (
        _chunk(delta={"role": "assistant", "content": ""}),
        _chunk(delta={"content": "a"}, token_ids=[1, 2]),
        _chunk(delta={"content": "b"}, token_ids=[3]),
        _chunk(delta={}, finish_reason="length"),
    ):
        whole.add(chunk)
    (choice,) = whole.whole()["choices"]
    assert (choice["message"]["content"], choice["token_ids"]) == ("ab", [1, 2, 3])
    assert choice["finish_reason"] == "length"
