"""What can go wrong offline; the message says what to do."""


class EngineError(Exception):
    """Base of these errors."""


class EngineFailed(EngineError):
    """The engine can't start or has ended for good."""


class InvalidInput(EngineError):
    """A prompt or a parameter that can't be served; nothing was computed."""
