"""Errors of a configuration that can't be run. Starting again can't help: a rank that sees one exits with code 64.

ConfigurationError
├── CannotShard      a size does not divide by the number of tensor-parallel ranks; names both
├── CannotSplit      the layers can't be spread over the pipeline stages; names both
└── ContextTooLong   maxModelLength is more than the model was made for
"""


class ConfigurationError(Exception):
    """Base of these errors."""


class CannotShard(ConfigurationError):
    """A size does not divide by the number of tensor-parallel ranks."""


class CannotSplit(ConfigurationError):
    """The layers can't be spread over the pipeline stages."""


class ContextTooLong(ConfigurationError):
    """The wanted context is longer than the model's."""
