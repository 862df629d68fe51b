"""The spool: rows of any source, written once into a typed file from which any row can be read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import check_arguments, check_at_least_one
from ..atomic import SUFFIX, complete_or_absent, put_in_place, temporary_file
from ..errors import DataError
from .arrays import ArraySource
from .iterables import as_source
from .naming import column_label, listed, row_label
from .row_files import Array, Index, RecordField, RowFile
from .scaling import Moments
from .sources import Data, Measure, Rows, Source

_FORMAT = "finitegp-spool-1"
_MANIFEST = "manifest.json"
# The only names in the directory that are ever deleted: rows, and files that were not finished.
_ROWS = re.compile(r"rows-[0-9a-f]{16}\.bin")
_UNFINISHED = re.compile(rf"(rows|{re.escape(_MANIFEST)})\.[0-9a-f]{{16}}{re.escape(SUFFIX)}")
_READ_BYTES = 1 << 20
_MAX_COLUMNS = 1 << 20
# What the type of a row depends on.
_SHAPE = ("input_dim", "num_targets", "has_weights", "has_counts", "input_dtype")
# Rounding to float32 may move a value by at most this share of its column's standard deviation.
_MAX_ROUNDING = 1e-3

Progress = Callable[[int, int | None], object]


class SpooledSource(ArraySource):
    """Rows in a spool, one record of a file each; opened with :func:`open_spool` or made by :func:`spool`.

    Batches drawn from it are uniform over all rows, whatever their order in the files that they came from.

    Attributes:
        directory: The directory of the spool.
        manifest: The contents of its manifest.
        note: Why the spool was written anew, where there was an old one; otherwise empty.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any], *, chunk_size: int = 4096, note: str = "") -> None:
        check_at_least_one(chunk_size=chunk_size)
        self.directory = directory
        self.manifest = manifest
        self.note = note
        dtype = row_dtype(*(manifest[name] for name in _SHAPE))
        self._file = RowFile(directory / manifest["file"], dtype, manifest["num_data"])
        known = dtype.names or ()
        inputs, *fields = (RecordField(self._file, each) if each in known else None for each in Rows._fields)
        assert inputs is not None
        names = manifest["column_names"]
        super().__init__(inputs, *fields[:2], counts=fields[2], chunk_size=chunk_size, column_names=names)
        self._checked = True  # before they were written

    def _values(self, which: slice | Index) -> list[Any]:
        records = self._file[which]  # all fields at once
        return [None if part is None else part.of(records) for part in self._parts()]

    def measure(self) -> Measure:
        """The measure that was taken when the rows were written."""
        mean_count = None if self.counts is None else self.manifest["mean_count"]
        return Measure(self.num_data, self.num_targets, self.manifest["target_mean_square"], mean_count)

    def fingerprint(self) -> dict[str, object]:
        """The checksum of the rows."""
        return {"kind": "spool", "checksum": self.manifest["checksum"]}

    def verify(self) -> None:
        """Read the file and compare its checksum with that of the rows when they were written."""
        if _checksum_of(self._file.path) != self.manifest["checksum"]:
            raise DataError(
                f"{self._file.path} is damaged: its checksum is not the one that was written. Delete the directory "
                f"{self.directory} and spool the rows again."
            )

    def delete_when_unused(self) -> None:
        """Delete the directory of the spool as soon as no source reads the file any more."""
        # Sources of other chunks share the file.
        weakref.finalize(self._file, shutil.rmtree, self.directory, ignore_errors=True)


@check_arguments
def spool(
    data: Data,
    directory: str | os.PathLike[str],
    *,
    input_dtype: str = "float32",
    chunk_size: int = 4096,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> SpooledSource:
    """Write the rows of any source into ``directory``, or open the spool that is there if it holds the same rows.

    The file holds one record per row: inputs as float32 (or float64), targets, weights and counts as float64. A
    manifest with a checksum, and with size, time and hash of the files that the rows came from, is written last and in
    one piece: an interrupted spool leaves nothing that could be taken for a whole one. A spool is used again if its
    source has the same fingerprint and its files have the same size and time, or at least the same contents; if they
    changed, it is written anew, and ``note`` holds the reason.

    Args:
        data: Data source; a stream that can be read only once is fine.
        directory: Created if it does not exist. One spool per directory.
        input_dtype: ``"float32"`` or ``"float64"``. Standardise columns (:class:`ScaledSource`) before they are rounded
            to float32; a column for which the rounding would matter is an error.
        chunk_size: Rows per chunk of later passes.
        progress: Called as ``progress(rows_done, rows_in_all)`` after every chunk; the second is None if unknown.
        overwrite: Replace a spool of other rows, or of a source without a fingerprint (arrays, streams).

    Example:
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     data = spool((np.arange(6.0)[:, None], np.arange(6)), directory)
        ...     data.num_data, data.take(np.array([4, 1])).targets.tolist()
        (6, [[4.0], [1.0]])
    """
    if input_dtype not in ("float32", "float64"):
        raise ValueError(f"input_dtype must be 'float32' or 'float64', but is {input_dtype!r}.")
    source = as_source(data)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint, files = source.fingerprint(), source.files()
    with _locked(folder):
        note = ""
        if (folder / _MANIFEST).exists():
            old = _read_manifest(folder)
            same = fingerprint is not None and old.get("fingerprint") == json.loads(json.dumps(fingerprint))
            if same and old["input_dtype"] == input_dtype:
                note = _changed_file(old["files"], files)
                if not note:
                    return open_spool(folder, chunk_size=chunk_size)
            elif not overwrite:
                raise DataError(
                    f"{folder} holds the spool of other rows, or of rows that cannot be compared: use another "
                    "directory, or pass overwrite=True."
                )
        states = [_file_state(path) for path in files]
        manifest = _write(source, folder, input_dtype, progress)
        if changed := _changed_file(states, files):
            raise DataError(f"The rows changed while they were spooled. {changed}")
        manifest |= {"fingerprint": fingerprint, "files": states}
        with complete_or_absent(folder / _MANIFEST) as temporary:
            temporary.write_text(json.dumps(manifest, indent=1), encoding="utf8")
        _delete_own(folder, _ROWS, keep=str(manifest["file"]))  # of the spool that this one replaces, or was killed
    return SpooledSource(folder, manifest, chunk_size=chunk_size, note=note)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time; a lock that cannot be taken, such as a link to another file, is an error."""
    from filelock import FileLock  # takes as long to import as half of this package

    lock = FileLock(str(folder / "lock"))
    try:
        lock.acquire()
    except OSError as error:
        raise DataError(
            f"{folder / 'lock'} cannot be used as a lock ({error.strerror or error}): use another directory."
        ) from None
    try:
        yield
    finally:
        lock.release()


@check_arguments
def open_spool(directory: str | os.PathLike[str], *, chunk_size: int = 4096, verify: bool = True) -> SpooledSource:
    """A spool that was written before.

    Args:
        directory: Where it is.
        chunk_size: Rows per chunk of a pass.
        verify: Read the whole file once and compare its checksum; without, only its size is compared.
    """
    folder = Path(directory)
    if not (folder / _MANIFEST).exists():
        raise DataError(f"{folder} holds no whole spool: there is no {_MANIFEST}; spool the rows (again).")
    source = SpooledSource(folder, _read_manifest(folder), chunk_size=chunk_size)
    if verify:
        source.verify()
    return source


def spool_temporarily(
    data: Data, *, input_dtype: str = "float32", chunk_size: int = 4096, progress: Progress | None = None
) -> SpooledSource:
    """A spool that is deleted as soon as no source reads it any more."""
    directory = tempfile.mkdtemp(prefix="finitegp-spool-")
    try:
        source = spool(data, directory, input_dtype=input_dtype, chunk_size=chunk_size, progress=progress)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    source.delete_when_unused()
    return source


def row_dtype(
    input_dim: int, num_targets: int, has_weights: bool, has_counts: bool, input_dtype: str = "float32"
) -> np.dtype[np.void]:
    """The record of one row, little-endian.

    Example:
        >>> row_dtype(16, 1, False, False).itemsize
        72
    """
    fields: list[Any] = [("inputs", np.dtype(input_dtype).newbyteorder("<"), (input_dim,))]
    if num_targets:
        fields.append(("targets", "<f8", (num_targets,)))
    if has_weights:
        fields.append(("weights", "<f8"))
    if has_counts:
        fields.append(("counts", "<f8"))
    return np.dtype(fields)


def _write(source: Source, folder: Path, input_dtype: str, progress: Progress | None) -> dict[str, object]:
    """Write all rows under a temporary name, then under the name of their checksum."""
    _delete_own(folder, _UNFINISHED)  # of a spool that was killed: under the lock nobody else writes
    digest = hashlib.sha256()
    shape: tuple[int, int, bool, bool] | None = None
    inputs: Moments | int = 0
    targets: Moments | int = 0
    sum_of_counts = 0.0
    with temporary_file(folder, "rows") as temporary:
        with open(temporary, "wb", buffering=0) as opened:
            done = 0
            for rows in source:
                num_targets = 0 if rows.targets is None else rows.targets.shape[1]
                found = (rows.inputs.shape[1], num_targets, rows.weights is not None, rows.counts is not None)
                if shape not in (None, found):
                    raise DataError(
                        f"The chunk from {row_label(done, source)} on has {found[0]} inputs, {num_targets} targets, "
                        f"{'' if found[2] else 'no '}weights and {'' if found[3] else 'no '}counts, unlike the rows "
                        "before."
                    )
                shape, dtype = found, row_dtype(*found, input_dtype)
                records = _records(rows, dtype, done, source)
                inputs += Moments.of(rows.inputs.numpy())
                if rows.targets is not None:
                    targets += Moments.of(rows.targets.numpy())
                sum_of_counts += len(records) if rows.counts is None else float(rows.counts.sum())
                view = records.view(np.uint8).data
                digest.update(view)
                _write_all(opened, view, folder, done)
                done += len(records)
                if progress is not None:
                    progress(done, source.num_data)
            if shape is None or not isinstance(inputs, Moments):
                raise DataError("There are no rows to spool.")
            if input_dtype == "float32":
                _refuse_coarse(inputs, source.column_names)
        name = f"rows-{digest.hexdigest()[:16]}.bin"
        put_in_place(temporary, folder / name)
    return {
        "format": _FORMAT,
        "file": name,
        "checksum": digest.hexdigest(),
        "num_data": done,
        **dict(zip(_SHAPE, (*shape, input_dtype), strict=True)),
        "column_names": source.column_names,
        "target_mean_square": float(targets.mean_square.mean()) if isinstance(targets, Moments) else 0.0,
        "mean_count": sum_of_counts / done,
    }


def _write_all(opened: FileIO, view: memoryview, folder: Path, rows_done: int) -> None:
    try:
        while view:
            view = view[opened.write(view) :]
    except OSError as error:
        raise DataError(
            f"The rows cannot be written to {folder} ({error.strerror}, after {rows_done} rows): make room there, or "
            "choose a larger disk, for temporary files with the environment variable TMPDIR."
        ) from None


def _records(rows: Rows, dtype: np.dtype[np.void], first_row: int, source: Source) -> Array:
    records = np.empty(len(rows.inputs), dtype=dtype)
    with np.errstate(over="ignore"):
        for name, part in zip(Rows._fields, rows, strict=True):
            if part is not None:
                records[name] = part.numpy()
    # The rows are finite: what is not finite now was too large.
    too_large = np.argwhere(~np.isfinite(records["inputs"]))
    if len(too_large):
        row, column = (int(number) for number in too_large[0])
        where = f"{row_label(first_row + row, source)}, {column_label(column, source.column_names)}"
        raise DataError(
            f"{where} is {float(rows.inputs[row, column]):.6g}, too large for float32: standardise the columns first, "
            "or use input_dtype='float64'."
        )
    return records


def _refuse_coarse(inputs: Moments, names: list[str] | None) -> None:
    """An error if rounding to float32 takes away what distinguishes the rows."""
    rounding = np.maximum(np.abs(inputs.smallest), np.abs(inputs.largest)) * (0.5 * np.finfo(np.float32).eps)
    coarse = np.flatnonzero((rounding > _MAX_ROUNDING * np.sqrt(inputs.variance)) & (inputs.smallest < inputs.largest))
    if len(coarse):
        labels = [str(number) if names is None else names[number] for number in coarse]
        raise DataError(
            f"float32 is too coarse for the columns {listed(labels)}, whose values vary little against their size: "
            "standardise the columns before they are spooled (ScaledSource), or use input_dtype='float64'."
        )


def _delete_own(folder: Path, names: re.Pattern[str], keep: str = "") -> None:
    """Delete the files with names that only this module gives; others in the directory are not ours."""
    for path in folder.iterdir():
        if names.fullmatch(path.name) and path.name != keep and path.is_file() and not path.is_symlink():
            path.unlink()


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, with everything checked that is used of it."""
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): delete the directory and spool the rows again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DataError(f"{path} is not the manifest of a spool of this version ({_FORMAT}): use another directory.")
    checks: dict[str, tuple[type, Callable[[Any], bool]]] = {
        "num_data": (int, lambda value: value >= 1),
        "input_dim": (int, lambda value: 1 <= value <= _MAX_COLUMNS),
        "num_targets": (int, lambda value: 0 <= value <= _MAX_COLUMNS),
        "has_weights": (bool, lambda value: True),
        "has_counts": (bool, lambda value: True),
        "input_dtype": (str, lambda value: value in ("float32", "float64")),
        "file": (str, lambda value: _ROWS.fullmatch(value) is not None),
        "checksum": (str, lambda value: True),
        "target_mean_square": (float, lambda value: 0.0 <= value < math.inf),
        "mean_count": (float, lambda value: 0.0 < value < math.inf),
        "files": (list, lambda value: all(map(_is_state, value))),
    }
    for name, (kind, _) in checks.items():
        if not isinstance(manifest.get(name), kind):
            raise DataError(f"{path} is damaged: {name!r} is not there; delete the directory and spool the rows again.")
    names = manifest.get("column_names", 0)
    is_named = (
        isinstance(names, list) and len(names) == manifest["input_dim"] and all(isinstance(n, str) for n in names)
    )
    if not (all(good(manifest[name]) for name, (_, good) in checks.items()) and (names is None or is_named)):
        raise DataError(f"{path} is damaged; delete the directory and spool the rows again.")
    return manifest


def _is_state(state: object) -> bool:
    kinds = {"path": str, "size": int, "modified": int, "checksum": str}
    return isinstance(state, dict) and all(isinstance(state.get(name), kind) for name, kind in kinds.items())


def _changed_file(states: list[dict[str, Any]], files: list[Path]) -> str:
    """Which file is not what it was when the spool was written, or nothing."""
    if len(states) != len(files):
        return f"There were {len(states)} files, and now there are {len(files)}."
    for state, path in zip(states, files, strict=True):
        status = path.stat()
        if status.st_size != state["size"]:
            return f"{path} had {state['size']} bytes and now has {status.st_size}."
        # A copy has another time and the same contents.
        if status.st_mtime_ns != state["modified"] and _checksum_of(path) != state["checksum"]:
            return f"{path} has other contents than when it was spooled."
    return ""


def _file_state(path: Path) -> dict[str, object]:
    """Size, time and checksum of a file."""
    size, modified = path.stat().st_size, path.stat().st_mtime_ns
    return {"path": str(path), "size": size, "modified": modified, "checksum": _checksum_of(path)}


def _checksum_of(path: Path) -> str:
    """The SHA-256 of a file's contents."""
    digest = hashlib.sha256()
    with open(path, "rb") as opened:
        while block := opened.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
