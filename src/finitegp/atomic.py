"""Files that are complete or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import DataError


@contextmanager
def complete_or_absent(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to write; it takes the place of ``path`` if the block ends well, and vanishes if not.

    An old file at ``path`` stays whole until then. The new one has the permissions of any new file.

    Raises:
        DataError: If ``path`` is a directory, or the directory that it is to be in does not exist.

    Example:
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "numbers.txt"
        ...     with complete_or_absent(path) as temporary:
        ...         _ = temporary.write_text("1 2 3")
        ...     path.read_text(), [file.name for file in Path(directory).iterdir()]
        ('1 2 3', ['numbers.txt'])
    """
    final = check_place(path).resolve()  # a link keeps pointing at the file
    handle, name = tempfile.mkstemp(dir=final.parent, prefix=final.name + ".", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        # Temporary files are for their owner alone; the result is a file like any other.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_place(path: str | os.PathLike[str]) -> Path:
    """``path``, or an error if no file can be there: found before hours of work, not after."""
    final = Path(path)
    if final.is_dir():
        raise DataError(f"{final} is a directory: give the name of a file.")
    if not final.parent.is_dir():
        raise DataError(f"There is no directory {final.parent} to write {final.name} into: create it first.")
    if not os.access(final.parent, os.W_OK):
        raise DataError(f"Files in {final.parent} cannot be written: choose another place, or change its permissions.")
    return final
