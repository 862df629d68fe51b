"""The errors this library raises: bad data, numbers that cannot be trusted, other processes that were lost."""

from __future__ import annotations


class DataError(ValueError):
    """The rows, columns or shapes that were passed in cannot be used; the message says which and what to do."""


class FeatureMapError(DataError):
    """The feature map returned something that cannot be used: a wrong shape, NaN, infinity or an overflow."""


class ModelFileError(DataError):
    """A file of a model, of statistics or of a run cannot be read or written; the message says why and what to do."""


class NumericalError(ArithmeticError):
    """A result would not be reliable in floating point; the message says why and what to change."""


class LostRankError(RuntimeError):
    """Another process of a distributed run was lost or failed; the message says how to go on.

    Attributes:
        reported: Whether the other process failed and reports why: there is nothing to add.
    """

    def __init__(self, message: str = "", *, reported: bool = False) -> None:
        super().__init__(message)
        self.reported = reported
