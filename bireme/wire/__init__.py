"""What worker, router and operator say to each other: typed records over length-prefixed MessagePack, JSON on HTTP.

One module per conversation: ``frames`` (framing and the mutual challenge that opens every connection), ``control``
(supervisors among themselves and with their ranks), ``plan`` (coordinator and ranks), ``requests`` (HTTP processes and
coordinator), ``journal`` (worker and router), ``state`` (worker and whoever watches it). Only ``frames`` does
I/O. Unknown fields are ignored, so that neighbouring versions can talk; unknown message kinds are refused.
"""

from typing import Final

WIRE_VERSION: Final = 1
"""Raised when an old peer could misread a new frame; who refuses another version names both numbers.

The processes of a group speak the same version: its pods are of one image. Whoever watches them from outside, operator
and router, understands the neighbouring versions too: what is new in what crosses there has a default, and what was
there stays.
"""
