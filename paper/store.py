"""Results as JSON lines: appended by any number of processes, read back whole, never edited."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from finitegp.errors import DataError

from .cells import Cell

#: The file of one kind of results inside the directory of results.
CELLS = "cells.jsonl"


class ResultStore:
    """The finished cells in ``directory/cells.jsonl``.

    Args:
        directory: Made when the first cell is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / CELLS

    def rows(self) -> list[dict[str, Any]]:
        """All finished cells, in the order in which they were written.

        A last line that a killed process left unfinished is passed over; a broken line anywhere else is an error.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        found = []
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                if number == len(lines):
                    continue
                raise DataError(
                    f"{self.path} line {number} is not JSON ({error}): remove that line, its cell will be run again."
                ) from error
        return found

    def finished(self) -> set[str]:
        """The keys of all finished cells."""
        return {Cell.from_row(row).key for row in self.rows()}

    def append(self, row: dict[str, Any]) -> None:
        """Add one finished cell: one line, whole, on disk when this returns."""
        line = json.dumps(row, allow_nan=False) + "\n"
        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock")), self.path.open("ab+") as file:
            file.write(_mend_end(file) + line.encode())
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Hold a cell while it is run; yields False if another process holds it or it is finished.

        The claim is a lock of the operating system: it ends with the process, however that ends.
        """
        claims = self.directory / ".claims"
        claims.mkdir(parents=True, exist_ok=True)
        lock = FileLock(claims / f"{cell.digest}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield cell.key not in self.finished()
        finally:
            lock.release()


def _mend_end(file: IO[bytes]) -> bytes:
    """Cut off what a killed process left of a line; returns what is missing if only the line's end is."""
    if file.tell() == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return b""
    file.seek(0)
    contents = file.read()
    start = contents.rfind(b"\n") + 1
    try:
        json.loads(contents[start:])
    except ValueError:
        file.truncate(start)
        return b""
    return b"\n"  # a whole result, which readers have counted as finished: it stays
