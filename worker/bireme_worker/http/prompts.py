"""Text of a request to token ids, without holding up the other streams of this process."""

import asyncio
from datetime import datetime
from typing import Final

from bireme_worker.http.errors import InvalidRequest
from bireme_worker.http.schema import Message
from bireme_worker.text.errors import InvalidChat
from bireme_worker.text.tokenizer import TextModel

LONG_TEXT: Final = 16_384
"""Characters; below this encoding takes under 10 ms, above it a thread does it (the tokenizer releases the GIL)."""


async def encode_text(text: TextModel, prompt: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text."""
    if len(prompt) < LONG_TEXT:
        return text.encode(prompt, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(text.encode, prompt, add_special_tokens=add_special_tokens)


async def encode_chat(text: TextModel, messages: list[Message]) -> list[int]:
    """The ids of a chat, up to where the assistant speaks next.

    Raises:
        InvalidRequest: the model's template can't render these messages.
    """
    try:
        prompt = text.render_chat([_for_template(message) for message in messages], now=datetime.now())
    except InvalidChat as error:
        raise InvalidRequest(str(error), param="messages") from error
    return await encode_text(text, prompt, add_special_tokens=False)


def _for_template(message: Message) -> dict[str, str | None]:
    """OpenAI renamed `system` to `developer`; no template of an open model knows the new name."""
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": message.content, "name": message.name}
