"""Errors of a configuration that can't be run. Starting again can't help: a rank that sees one exits with code 64.

ConfigurationError
├── CannotShard      a size does not divide by the number of tensor-parallel ranks; names both
├── CannotQuantize   a matrix can't be cut or grouped as its quantization needs; names the numbers
├── CannotSplit      the layers can't be spread over the pipeline stages; names both
├── WrongLayout      pre-sharded files are for another number of ranks or stages
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


class CannotQuantize(ConfigurationError):
    """A matrix can't be cut or grouped as its quantization needs."""


class WrongLayout(ConfigurationError):
    """Pre-sharded files are for another number of ranks or stages."""
