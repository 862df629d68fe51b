"""The errors this library raises: bad data, numbers that cannot be trusted, other processes that were lost."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType


class FiniteGPError(Exception):
    """Base of the errors that users can do something about: what is wrong, and what to do in Python.

    The text is both, one after the other. Other interfaces, such as the command line, look the ``code`` up and give
    advice of their own, so nobody has to read the text.

    Args:
        problem: What is wrong, and where.
        advice: What to do about it, for callers of the library.
        code: Name of the kind of error, the same in all versions; None if the advice is good for everyone.
        **fields: Values that other advice may need.

    Attributes:
        problem: As given.
        advice: As given.
        code: As given.
        fields: As given.

    Example:
        >>> error = DataError("Row 3 is missing:", "pass missing='impute'.", code="missing_values", row=3)
        >>> str(error), error.code, error.fields
        ("Row 3 is missing: pass missing='impute'.", 'missing_values', {'row': 3})
    """

    def __init__(self, problem: str = "", advice: str = "", *, code: str | None = None, **fields: object) -> None:
        super().__init__(f"{problem} {advice}" if advice else problem)
        self.problem = problem
        self.advice = advice
        self.code = code
        self.fields = fields


class DataError(FiniteGPError, ValueError):
    """The rows, columns or shapes that were passed in cannot be used; the message names them and the remedy."""


class FeatureMapError(DataError):
    """The feature map returned something that cannot be used: a wrong shape, NaN, infinity or an overflow."""


class ModelFileError(DataError):
    """A file of a model, of statistics or of a run cannot be read or written; the message has reason and remedy."""


class ArgumentError(FiniteGPError, TypeError, ValueError):
    """An argument is of another type than the one that its annotation names."""


class OutputExistsError(FiniteGPError, FileExistsError):
    """There is a file already where one is to be written."""


class NumericalError(FiniteGPError, ArithmeticError):
    """A result would not be reliable in floating point; the message has the reason and the remedy."""


class LostRankError(FiniteGPError, RuntimeError):
    """Another process of a distributed run was lost or failed; the message has the way to go on.

    Attributes:
        reported: Whether the other process failed and reports why: there is nothing to add.
    """

    def __init__(
        self, problem: str = "", advice: str = "", *, reported: bool = False, code: str | None = None, **fields: object
    ) -> None:
        super().__init__(problem, advice, code=code, **fields)
        self.reported = reported


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line that called this package from outside, however deep inside its reason was found."""
    package = os.path.dirname(__file__)
    frame: FrameType | None = sys._getframe(1)
    level, outermost = 2, 1
    while frame is not None:
        if frame.f_code.co_filename.startswith(package):
            outermost = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=outermost + 1)
