"""Layers over one rank's shard: linear, vocabulary, norm, rotary, attention.

Plain objects with tensors: a call costs what its operators cost. The layers take what changes per step as arguments and
know no epoch.
"""
