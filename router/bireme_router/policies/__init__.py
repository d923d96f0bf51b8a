"""Decisions, one per file, named by the policy. Pure: time and randomness come in as arguments."""
