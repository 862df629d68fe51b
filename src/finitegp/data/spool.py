"""The spool: rows of any source, written once into a typed file from which any row can be read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..atomic import SUFFIX, put_in_place, temporary_file
from ..errors import DataError
from .any_source import as_source
from .manifests import FORMAT, MANIFEST, changed_file, checksum_of, file_state, read_manifest, replace_manifest
from .moments import Moments
from .naming import listed, row_label
from .row_files import Array, RowFile
from .shares import WHOLE, Share
from .sources import IndexedSource, Rows, Source

# Rounding to float32 may move a value by at most this share of its column's standard deviation.
_MAX_ROUNDING = 1e-3

Progress = Callable[[int, int | None], object]


class SpooledSource(IndexedSource):
    """Rows in a spool; opened with :func:`open_spool` or made by :func:`spool`.

    Batches drawn from it are uniform over all rows, whatever their order in the files that they came from.

    Attributes:
        directory: Where the spool is.
        manifest: What it says about itself.
        chunk_size: Rows per chunk of a pass; may be set.
        note: Why the spool was written anew, where there was an old one; otherwise empty.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any], *, chunk_size: int = 4096, note: str = "") -> None:
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, but is {chunk_size}.")
        self.directory = directory
        self.manifest = manifest
        self.chunk_size = chunk_size
        self.note = note
        self.num_data = int(manifest["num_data"])
        self.input_dim = int(manifest["input_dim"])
        self.num_targets = int(manifest["num_targets"])
        self.column_names = manifest["column_names"]
        self.target_mean_square = float(manifest["target_mean_square"])
        self.has_weights = bool(manifest["has_weights"])
        self.has_counts = bool(manifest["has_counts"])
        self.mean_count = float(manifest["mean_count"]) if self.has_counts else None
        dtype = row_dtype(
            self.input_dim, self.num_targets, self.has_weights, manifest["input_dtype"], has_counts=self.has_counts
        )
        self._file = RowFile(directory / manifest["file"], dtype, self.num_data)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the file."""
        return self._file.dtype.itemsize

    def __len__(self) -> int:
        return self.num_data

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, which are neighbours."""
        own = share.cut(self.num_data)
        for start in range(own.start, own.stop, self.chunk_size):
            yield self._rows(self._file.read(start, min(start + self.chunk_size, own.stop)))

    def gather(self, indices: npt.NDArray[np.int64]) -> Rows:
        """The rows of these numbers, in this order."""
        return self._rows(self._file.gather(indices))

    def fingerprint(self) -> dict[str, Any]:
        """The checksum of the rows."""
        return {"kind": "spool", "checksum": self.manifest["checksum"]}

    def verify(self) -> None:
        """Read the file and compare its checksum with that of the rows when they were written."""
        if checksum_of(self._file.path) != self.manifest["checksum"]:
            raise DataError(
                f"{self._file.path} is damaged: its checksum is not the one that was written. Delete the directory "
                f"{self.directory} and spool the rows again."
            )

    def _rows(self, records: Array) -> Rows:
        # Fields of records are not contiguous: these copies are what the tensors keep.
        return Rows(
            torch.from_numpy(np.array(records["inputs"], dtype=records.dtype["inputs"].base.newbyteorder("="))),
            torch.from_numpy(np.array(records["targets"], dtype=np.float64)),
            torch.from_numpy(np.array(records["weight"], dtype=np.float64)) if self.has_weights else None,
            torch.from_numpy(np.array(records["count"], dtype=np.float64)) if self.has_counts else None,
        )


def spool(
    data: Any,
    directory: str | os.PathLike[str],
    *,
    input_dtype: str = "float32",
    chunk_size: int = 4096,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> SpooledSource:
    """Write the rows of any source into ``directory``, or take what is there if it holds the same rows.

    The file holds one record per row: inputs as float32 (or float64), targets, weights and counts as float64. A
    manifest with a checksum, and with size, time and hash of the files that the rows came from, is written last and in
    one piece: an interrupted spool leaves nothing that could be taken for a whole one. A spool is taken again if its
    source says the same of itself and its files have the same size and time, or at least the same contents; if they
    changed, it is written anew, and ``note`` says why.

    Args:
        data: Any source; a stream that can be read only once is fine.
        directory: Made if need be. One spool per directory.
        input_dtype: ``"float32"`` or ``"float64"``. Standardise columns (:class:`ScaledSource`) before they are rounded
            to float32; a column for which the rounding would matter is an error.
        chunk_size: Rows per chunk of later passes.
        progress: Called as ``progress(rows_done, rows_in_all)`` after every chunk; the second is None if unknown.
        overwrite: Replace a spool of other rows, or of a source that cannot tell what it holds (arrays, streams).

    Example:
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     data = spool((torch.arange(6.0)[:, None], torch.arange(6)), directory)
        ...     data.num_data, data.gather(np.array([4, 1])).targets.tolist()
        (6, [[4.0], [1.0]])
    """
    if input_dtype not in ("float32", "float64"):
        raise ValueError(f"input_dtype must be 'float32' or 'float64', but is {input_dtype!r}.")
    from filelock import FileLock  # takes as long to import as half of this package

    source = as_source(data)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = source.fingerprint() if isinstance(source, Source) else None
    files = source.files() if isinstance(source, Source) else []
    with FileLock(str(folder / "lock")):
        note = ""
        if (folder / MANIFEST).exists():
            old = read_manifest(folder)
            same = fingerprint is not None and old.get("fingerprint") == json.loads(json.dumps(fingerprint))
            if same and old["input_dtype"] == input_dtype:
                note = changed_file(old["files"], files)
                if not note:
                    return open_spool(folder, chunk_size=chunk_size)
            elif not overwrite:
                raise DataError(
                    f"{folder} holds the spool of other rows, or of rows that cannot be compared: use another "
                    "directory, or pass overwrite=True."
                )
        states = [file_state(path) for path in files]
        manifest = _write(source, folder, input_dtype, progress)
        if changed := changed_file(states, files):
            raise DataError(f"The rows changed while they were spooled. {changed}")
        manifest |= {"fingerprint": fingerprint, "files": states}
        replace_manifest(folder, manifest)
    return SpooledSource(folder, manifest, chunk_size=chunk_size, note=note)


def open_spool(directory: str | os.PathLike[str], *, chunk_size: int = 4096, verify: bool = True) -> SpooledSource:
    """A spool that was written before.

    Args:
        directory: Where it is.
        chunk_size: Rows per chunk of a pass.
        verify: Read the whole file once and compare its checksum; without, only its size is compared.
    """
    folder = Path(directory)
    if not (folder / MANIFEST).exists():
        raise DataError(f"{folder} holds no whole spool: there is no {MANIFEST}; spool the rows (again).")
    source = SpooledSource(folder, read_manifest(folder), chunk_size=chunk_size)
    if verify:
        source.verify()
    return source


def spool_temporarily(
    data: Any, *, input_dtype: str = "float32", chunk_size: int = 4096, progress: Progress | None = None
) -> SpooledSource:
    """A spool that is deleted together with the source that is returned."""
    directory = tempfile.mkdtemp(prefix="finitegp-spool-")
    try:
        source = spool(data, directory, input_dtype=input_dtype, chunk_size=chunk_size, progress=progress)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    weakref.finalize(source, shutil.rmtree, directory, ignore_errors=True)
    return source


def row_dtype(
    input_dim: int, num_targets: int, has_weights: bool, input_dtype: str = "float32", *, has_counts: bool = False
) -> np.dtype[Any]:
    """The record of one row, little-endian.

    Example:
        >>> row_dtype(16, 1, False).itemsize
        72
    """
    fields: list[Any] = [("inputs", np.dtype(input_dtype).newbyteorder("<"), (input_dim,))]
    fields.append(("targets", "<f8", (num_targets,)))
    if has_weights:
        fields.append(("weight", "<f8"))
    if has_counts:
        fields.append(("count", "<f8"))
    return np.dtype(fields)


def _write(source: Any, folder: Path, input_dtype: str, progress: Progress | None) -> dict[str, Any]:
    """Write all rows under a temporary name, then under the name of their checksum."""
    for left_over in folder.glob("*" + SUFFIX):
        left_over.unlink()  # of a spool that was killed; the lock says that nobody is writing
    digest = hashlib.sha256()
    dtype: np.dtype[Any] | None = None
    inputs = targets = None
    sum_of_counts = 0.0
    with temporary_file(folder, "rows") as temporary:
        with open(temporary, "wb", buffering=0) as opened:
            done = 0
            for rows in source:
                found = row_dtype(
                    rows.inputs.shape[1],
                    rows.targets.shape[1],
                    rows.weights is not None,
                    input_dtype,
                    has_counts=rows.counts is not None,
                )
                if dtype is not None and found != dtype:
                    raise DataError(
                        f"The chunk from {row_label(done, source)} on has {rows.inputs.shape[1]} inputs, "
                        f"{rows.targets.shape[1]} targets, {'no ' if rows.weights is None else ''}weights and "
                        f"{'no ' if rows.counts is None else ''}counts, unlike the rows before."
                    )
                dtype = found
                records = _records(rows, dtype, done, source)
                more_inputs, more_targets = Moments.of(rows.inputs.numpy()), Moments.of(rows.targets.numpy())
                inputs = more_inputs if inputs is None else inputs + more_inputs
                targets = more_targets if targets is None else targets + more_targets
                sum_of_counts += len(records) if rows.counts is None else float(rows.counts.sum())
                view = records.view(np.uint8).data
                digest.update(view)
                _write_all(opened, view, folder, done)
                done += len(records)
                if progress is not None:
                    progress(done, getattr(source, "num_data", None))
            if dtype is None or inputs is None or targets is None:
                raise DataError("There are no rows to spool.")
            names = getattr(source, "column_names", None)
            if input_dtype == "float32":
                _refuse_coarse(inputs, names)
        name = f"rows-{digest.hexdigest()[:16]}.bin"
        put_in_place(temporary, folder / name)
    return {
        "format": FORMAT,
        "file": name,
        "checksum": digest.hexdigest(),
        "num_data": done,
        "input_dim": int(dtype["inputs"].shape[0]),
        "num_targets": int(dtype["targets"].shape[0]),
        "has_weights": "weight" in (dtype.names or ()),
        "has_counts": "count" in (dtype.names or ()),
        "input_dtype": input_dtype,
        "column_names": names,
        "target_mean_square": float(targets.mean_square.mean()),
        "mean_count": sum_of_counts / done,
    }


def _write_all(opened: Any, view: memoryview, folder: Path, rows_done: int) -> None:
    try:
        while view:
            view = view[opened.write(view) :]
    except OSError as error:
        raise DataError(
            f"The rows cannot be written to {folder} ({error.strerror}, after {rows_done} rows): make room there, or "
            "choose a larger disk, for temporary files with the environment variable TMPDIR."
        ) from None


def _records(rows: Rows, dtype: np.dtype[Any], first_row: int, source: Any) -> Array:
    records = np.empty(len(rows.inputs), dtype=dtype)
    with np.errstate(over="ignore"):
        records["inputs"] = rows.inputs.numpy()
    records["targets"] = rows.targets.numpy()
    if rows.weights is not None:
        records["weight"] = rows.weights.numpy()
    if rows.counts is not None:
        records["count"] = rows.counts.numpy()
    # The rows are finite: what is not finite now was too large.
    too_large = np.argwhere(~np.isfinite(records["inputs"]))
    if len(too_large):
        row, column = (int(number) for number in too_large[0])
        names = getattr(source, "column_names", None)
        label = f"column {column}" if names is None else f"column {column} ({names[column]!r})"
        raise DataError(
            f"{row_label(first_row + row, source)}, {label} is {float(rows.inputs[row, column]):.6g}, too large for "
            "float32: standardise the columns first, or use input_dtype='float64'."
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
