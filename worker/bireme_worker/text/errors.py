"""Errors of the text side that are the client's, not the checkpoint's: HTTP answers them with 400.

TextError
├── InvalidChat      the messages cannot be rendered by this model's chat template
└── InvalidGrammar   the form that an output must have is none
"""


class TextError(Exception):
    """Base of the errors that a client's text can cause."""


class InvalidChat(TextError):
    """The messages do not fit this model's chat template; the message says why."""


class InvalidGrammar(TextError):
    """The form that an output must have is none, or can't be enforced; the message says why."""
