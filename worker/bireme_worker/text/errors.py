"""Errors of the text side that are the client's, not the checkpoint's: HTTP answers them with 400.

TextError
└── InvalidChat   the messages cannot be rendered by this model's chat template
"""


class TextError(Exception):
    """Base of the errors that a client's text can cause."""


class InvalidChat(TextError):
    """The messages do not fit this model's chat template; the message says why."""
