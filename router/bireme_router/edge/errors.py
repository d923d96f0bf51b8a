"""What keeps the edge from starting."""


class UnusableFile(Exception):
    """A file named on the command line can't be used as what it should be; the message says which and why."""
