"""The public API `bireme.dev/v1alpha1`: what a user writes, what the operator answers.

Each field's docstring is its documentation; the CRD and `kubectl explain` are made of them.
"""

from bireme.api.deployment import InferenceDeployment, refused_locally
from bireme.api.document import load, parse
from bireme.api.errors import InvalidDeployment, Problem

__all__ = ["InferenceDeployment", "InvalidDeployment", "Problem", "load", "parse", "refused_locally"]
