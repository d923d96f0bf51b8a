"""Errors of a field whose message is ours, word for word."""

from pydantic_core import PydanticCustomError


def wrong(message: str) -> PydanticCustomError:
    """An error whose message is ours (braces would be read as a template)."""
    return PydanticCustomError("bireme", "{text}", {"text": message})
