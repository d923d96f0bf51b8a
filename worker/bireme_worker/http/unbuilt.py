"""Fields and routes of OpenAI's and vLLM's APIs that are known and not offered: refused by name, never ignored.

A value that asks for nothing (null, an empty list of functions, `modalities: ["text"]`) is let through, since many
clients send it.
"""

from collections.abc import Mapping
from typing import Any, Final

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "annotations": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "refusal": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Field → values that mean the same as leaving it out; null always does."""


ROUTES: Final[Mapping[str, str]] = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/messages": "use /v1/chat/completions",
    "/v1/conversations": "send the whole conversation to /v1/chat/completions",
    "/v1/assistants": "use /v1/chat/completions",
    "/v1/threads": "send the whole conversation to /v1/chat/completions",
    "/v1/realtime": "use /v1/chat/completions with stream: true",
    "/v1/audio": "only text is served",
    "/v1/images": "only text is served",
    "/v1/videos": "only text is served",
    "/v1/moderations": "models of the BERT family make vectors only, at /v1/embeddings",
    "/v1/rerank": "compare vectors of /v1/embeddings",
    "/v1/score": "compare vectors of /v1/embeddings",
    "/v1/batches": "send requests one by one, or use bireme_worker.LLM",
    "/v1/files": "nothing is stored here",
    "/v1/fine_tuning": "adapters are trained elsewhere and named in the deployment",
}
"""Beginning of a path → what to do instead."""


def instead_of(path: str) -> str:
    """What to do in place of a known route that is not offered; "" for a path that nobody knows."""
    return next((way for route, way in ROUTES.items() if path == route or path.startswith(f"{route}/")), "")


def without_neutral(body: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the unbuilt fields whose value asks for nothing."""
    return {name: value for name, value in body.items() if not _asks_for_nothing(name, value)}


def _asks_for_nothing(name: str, value: object) -> bool:
    if name not in NEUTRAL:
        return False
    return value is None or any(type(value) is type(known) and value == known for known in NEUTRAL[name])
