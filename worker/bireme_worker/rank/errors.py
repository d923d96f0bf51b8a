"""Errors of a step.

BadPlan  a plan asks for what this rank does not have: coordinator and rank disagree, the rank ends with code 70
"""


class BadPlan(Exception):
    """A plan names a slot, block or length that this rank does not have."""
