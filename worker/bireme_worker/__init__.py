"""The worker of Bireme. ``from bireme_worker import LLM, SamplingParams`` runs a model without any server.

The two names are looked up when they are asked for, so that the processes of a pod do not pay for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bireme_worker.llm.engine import LLM as LLM
    from bireme_worker.llm.params import SamplingParams as SamplingParams

_HOMES = {"LLM": "bireme_worker.llm.engine", "SamplingParams": "bireme_worker.llm.params"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
