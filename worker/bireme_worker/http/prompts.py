"""Text of a request to token ids, without holding up the other streams of this process."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bireme_worker.http.errors import InvalidRequest
from bireme_worker.http.schema import Message
from bireme_worker.http.tools import Tool
from bireme_worker.text.errors import InvalidChat
from bireme_worker.text.tokenizer import TextModel

NO_VARIABLES: Final[Mapping[str, Any]] = {}
LONG_TEXT: Final = 16_384
"""Characters; below this encoding takes under 10 ms, above it a thread does it (the tokenizer releases the GIL)."""


async def encode_text(text: TextModel, prompt: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text."""
    if len(prompt) < LONG_TEXT:
        return text.encode(prompt, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(text.encode, prompt, add_special_tokens=add_special_tokens)


async def encode_chat(
    text: TextModel,
    messages: list[Message],
    tools: Sequence[Tool] = (),
    variables: Mapping[str, Any] = NO_VARIABLES,
) -> list[int]:
    """The ids of a chat, up to where the assistant speaks next; ``variables`` are for the model's template.

    Raises:
        InvalidRequest: the model's template can't render these messages.
    """
    described = [tool.for_template() for tool in tools] or None
    spoken = [_for_template(message) for message in messages]
    try:
        prompt = text.render_chat(spoken, now=datetime.now(), tools=described, variables=variables)
    except InvalidChat as error:
        raise InvalidRequest(f"messages: {error}", param="messages") from error
    return await encode_text(text, prompt, add_special_tokens=False)


def _for_template(message: Message) -> dict[str, Any]:
    """OpenAI renamed `system` to `developer`; no template of an open model knows the new name."""
    return {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content,
        "name": message.name,
        "tool_calls": [call.for_template() for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content,
    }
