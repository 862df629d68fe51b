"""Names of columns, rows and values in error messages: near names for a mistyped one, and which row of which file."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..errors import DataError

_SHOWN = 8
# Of one table.
MOST_COLUMNS = 10_000


def unknown_column(name: str, names: Sequence[str], where: str = "the table") -> str:
    """The message for a column that is not there, with the names that come close.

    Example:
        >>> unknown_column("prise", ["price", "carat"])
        "There is no column 'prise' in the table; did you mean 'price'? Its columns are 'price', 'carat'."
    """
    # Capitals and blanks are what people get wrong most, and difflib weighs them like any other letter.
    folded = {other.strip().casefold(): other for other in reversed(names)}
    wanted = name.strip().casefold()
    matches = [wanted] if wanted in folded else difflib.get_close_matches(wanted, list(folded), n=3)
    near = [folded[match] for match in matches]
    guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"There is no column {name!r} in {where}{guess} Its columns are {listed(names)}."


def check_columns(names: Iterable[str], columns: Sequence[str], where: str = "the table") -> None:
    """An error if one of some columns is not among those of a table."""
    absent = [name for name in names if name not in columns]
    if absent:
        more = f" Also absent: {listed(absent[1:])}." if len(absent) > 1 else ""
        raise DataError(unknown_column(absent[0], columns, where) + more)


def listed(names: Iterable[str]) -> str:
    """Names in quotes, the first few of many.

    Example:
        >>> listed(str(number) for number in range(10))
        "'0', '1', '2', '3', '4', '5', '6', '7' and 2 more"
    """
    quoted = [repr(name) for name in names]
    if len(quoted) > _SHOWN:
        return f"{', '.join(quoted[:_SHOWN])} and {len(quoted) - _SHOWN} more"
    return ", ".join(quoted) or "none"


def column_label(column: int, names: Sequence[str] | None) -> str:
    """``column 3``, with its name where columns have names."""
    return f"column {column}" if names is None else f"column {column} ({names[column]!r})"


def shortened(value: object, length: int = 40) -> str:
    """A value as it appears in a message: quoted if text, cut if long.

    Example:
        >>> shortened("x" * 100, length=6)
        "'xxxxx…'"
    """
    if isinstance(value, str) and len(value) > length:
        value = value[: length - 1] + "…"
    return repr(value) if isinstance(value, str) else str(value)


def check_number_of_columns(count: int, where: str) -> None:
    """An error if a table has more columns than can be worked with: each takes time and memory of its own."""
    if count > MOST_COLUMNS:
        raise DataError(
            f"{where} has {count} columns, but at most {MOST_COLUMNS} can be read: most tables of that kind have rows "
            "and columns exchanged; otherwise leave out columns of little use."
        )


def check_unique(names: Sequence[str], where: str) -> None:
    """An error if a name occurs twice, because columns are found by their names."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(
            f"{where} has more than one column named {listed(twice)}: rename or remove all but one of each."
        )


@runtime_checkable
class Locator(Protocol):
    """Anything that finds a row in files: sources, readers of tables, files of rows."""

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file and the number of the row in it; None if the rows are in no file."""


@runtime_checkable
class LineLocator(Protocol):
    """Anything that also knows on which line of a text file a row stands."""

    def line_of(self, row: int) -> int | None:
        """The line, counted from 1; None if the row is in no text file."""


class Renumbered(ABC):
    """Rows out of a larger table, which are found by their numbers there.

    Attributes:
        source: What finds the rows of the larger table in files, if they come from files.
    """

    source: Locator | None

    @abstractmethod
    def number(self, row: int) -> int:
        """The number that a row has in the larger table."""

    def locate(self, row: int) -> tuple[Path, int] | None:
        """The file of a row and its number there; None if the rows are in no file."""
        return None if self.source is None else self.source.locate(self.number(row))

    def line_of(self, row: int) -> int | None:
        """The line of its file on which a row stands; None if it is in no text file."""
        return self.source.line_of(self.number(row)) if isinstance(self.source, LineLocator) else None


def locator_of(data: object) -> Locator | None:
    """The data themselves, if they find rows in files, as readers of tables do; None for others."""
    return data if isinstance(data, Locator) else None


def row_label(row: int, source: Locator | None = None) -> str:
    """``row 12``, with the file and the row in it, or its line in a text file, where the rows come from files.

    Example:
        >>> row_label(12)
        'row 12'
    """
    found = None if source is None else source.locate(row)
    line = source.line_of(row) if isinstance(source, LineLocator) else None
    if found is not None and line is not None:
        return f"line {line} of {found[0]}"
    number = source.number(row) if isinstance(source, Renumbered) else row
    return f"row {number}" if found is None else f"row {found[1]} of {found[0]}"
