"""The one way in which files are written: complete or not there, first beside their place, then moved into it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .errors import DataError, OutputExistsError

# The end of the names of temporary files, which distinguishes them from files of others.
SUFFIX = ".finitegp.part"
# What operating systems call a full disk, a quota that is used up, and a file that is too large.
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))

# Files that SIGTERM deletes before it ends the process.
_TEMPORARY: set[Path] = set()


@contextmanager
def complete_or_absent(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[Path]:
    """A temporary file to write; it takes the place of ``path`` if the block ends well, and is deleted if not.

    An old file at ``path`` stays whole until then. The new one has the permissions of any new file.

    Args:
        path: Where the file is to be.
        overwrite: Whether an old file may be replaced. If not, the first of several writers keeps the place.

    Raises:
        DataError: If ``path`` is a directory, or the directory that it is to be in does not exist.
        FileExistsError: If there is a file at the end of the block, and ``overwrite`` is False.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "numbers.txt"
        ...     with complete_or_absent(path) as temporary:
        ...         _ = temporary.write_text("1 2 3")
        ...     path.read_text(), [file.name for file in Path(directory).iterdir()]
        ('1 2 3', ['numbers.txt'])
    """
    final = check_place(path).resolve()  # a link keeps pointing at the file
    with temporary_file(final.parent, final.name) as temporary:
        try:
            yield temporary
            put_in_place(temporary, final, overwrite=overwrite)
        except OSError as error:
            if error.errno in _NO_ROOM and error.filename is None:
                raise OSError(error.errno, error.strerror, str(final)) from None  # which file there is no room for
            raise


@contextmanager
def temporary_file(folder: Path, name: str) -> Iterator[Path]:
    """A new, empty file in ``folder`` for its owner alone, deleted at the end of the block unless it was moved.

    It is deleted after KeyboardInterrupt and SIGTERM too; SIGKILL leaves it there.
    """
    temporary = folder / f"{name[:50]}.{secrets.token_hex(8)}{SUFFIX}"
    with _deleted_at_termination(temporary):
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, final: Path, *, overwrite: bool = True) -> None:
    """Move a finished temporary file to its place in the same folder, after it has reached the disk."""
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    # Temporary files are for their owner alone; the result is a file like any other.
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(temporary, 0o666 & ~mask)
    if not overwrite:
        try:
            _link(temporary, final)
        except FileExistsError:
            advice = "choose another name, or set overwrite=True to replace it."
            raise OutputExistsError(f"{final} exists already:", advice, code="output_exists") from None
    os.replace(temporary, final)
    _sync_folder(final.parent)


def check_place(path: str | os.PathLike[str]) -> Path:
    """``path``, or an error if no file can be there: found before hours of work, not after."""
    final = Path(path)
    if not can_be_name(final):
        raise DataError(f"{str(final)!r} cannot be the name of a file: choose another.")
    if final.is_dir():
        raise DataError(f"{final} is a directory: give the name of a file.")
    if not final.parent.is_dir():
        raise DataError(f"There is no directory {final.parent} to write {final.name} into: create it first.")
    if not os.access(final.parent, os.W_OK):
        raise DataError(f"Files in {final.parent} cannot be written: choose another place, or change its permissions.")
    return final


def can_be_name(path: Path) -> bool:
    """Whether a file can have this name on this system, apart from its length."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _sync_folder(folder: Path) -> None:
    """Let the new name reach the disk too; not all systems can open folders."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _link(temporary: Path, final: Path) -> None:
    """Take the place ``final`` only if no file is there, which ``os.replace`` does not check."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


@contextmanager
def _deleted_at_termination(temporary: Path) -> Iterator[None]:
    """Let SIGTERM delete the file before it ends the process, unless somebody else handles that signal.

    The handler deletes by itself: an exception could come from anywhere, also between this block and its end. It stays
    for good, with the default's effect when there is no file: Python drops a signal that arrives while its handler is
    being replaced, and the process would go on.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        handler = _delete_and_end
        signal.signal(signal.SIGTERM, handler)
    if handler is _delete_and_end:
        _TEMPORARY.add(temporary)
    try:
        yield
    finally:
        _TEMPORARY.discard(temporary)


def _delete_and_end(number: int, frame: FrameType | None) -> None:
    for path in list(_TEMPORARY):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _leave_files_to_the_parent() -> None:
    _TEMPORARY.clear()
    if signal.getsignal(signal.SIGTERM) is _delete_and_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_files_to_the_parent)
