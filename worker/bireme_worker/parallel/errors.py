"""Errors of an epoch. All of them mean: this epoch is over here, weights and KV allocation stay, wait for the next.

EpochEnded        somebody ended the epoch while this rank was in it
├── PeerLost      a connection of the epoch broke, or never came to be; names the peer
└── FrameMismatch a peer sent another epoch, step or size than this rank waits for; names both
"""


class EpochEnded(Exception):
    """The epoch is over on this rank."""


class PeerLost(EpochEnded):
    """A connection of the epoch broke or did not come to be in time."""


class FrameMismatch(EpochEnded):
    """Two ranks disagree about what they exchange."""
