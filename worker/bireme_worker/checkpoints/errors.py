"""Errors of checkpoints. A retry of the same files cannot help: a worker that sees one exits with code 65.

CheckpointError
├── MissingFile            a file or directory that must be there is not
├── TruncatedFile          a file is shorter than its own header says; names both numbers
├── CorruptFile            a file contradicts itself or is not of its kind at all
├── MissingTensor          a tensor that the model or the index needs is in no file
├── UnexpectedTensor       a tensor that the model or the index does not know
├── WrongShape             a tensor of another shape than the model's
├── DuplicateTensor        one tensor in two files
├── UnsupportedCheckpoint  well formed, but of a kind that we do not run; names what we do run
└── TargetExists           a conversion would overwrite something
"""


class CheckpointError(Exception):
    """Base of all checkpoint errors."""


class MissingFile(CheckpointError):
    """A file or directory that must be there is not."""


class TruncatedFile(CheckpointError):
    """A file is shorter than its own header says."""


class CorruptFile(CheckpointError):
    """A file contradicts itself, or is not of the kind that its name says."""


class MissingTensor(CheckpointError):
    """A tensor that the model or the index needs is in no file."""


class UnexpectedTensor(CheckpointError):
    """A tensor that neither the model nor the index knows."""


class WrongShape(CheckpointError):
    """A tensor has another shape than the model's."""


class DuplicateTensor(CheckpointError):
    """One tensor is in two files, so that nobody can say which is meant."""


class UnsupportedCheckpoint(CheckpointError):
    """The checkpoint is well formed, but of a kind that Bireme does not run."""


class TargetExists(CheckpointError):
    """A conversion would overwrite something that it did not write."""
