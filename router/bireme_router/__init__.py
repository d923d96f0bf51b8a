"""The data path: spreads requests over groups, and continues a stream when the group under it is lost.

``policies/`` is pure (no clock, no I/O, no environment); ``discovery/`` learns groups; everything else moves bytes.
"""
