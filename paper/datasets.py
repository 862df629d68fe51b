"""The paper's datasets with its splits, from a directory or from a cache that is filled once."""

from __future__ import annotations

import csv
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from finitegp.atomic import complete_or_absent
from finitegp.errors import DataError

from .outcome import Array, DatasetSplit

#: The paper's nine; ``slice`` is not in the shared directory.
PAPER_DATASETS = (
    "bike",
    "elevators",
    "keggdirected",
    "keggundirected",
    "kin40k",
    "pol",
    "protein",
    "slice",
    "tamielectric",
)
SMALL_DATASETS = ("autompg", "concrete", "energy", "housing", "wine", "yacht")
NUM_SPLITS = 10
UPSTREAM = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets"

Masks = npt.NDArray[np.bool_]


class _Checksum(NamedTuple):
    """What a dataset's contents must be: hashes of the float64 values, of the masks, or of the file as published."""

    rows: int
    columns: int
    values: str
    masks: str
    file: str


@cache
def checksums() -> dict[str, _Checksum]:
    """The known datasets."""
    with Path(__file__).with_name("checksums.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["dataset"]: _Checksum(
                int(row["rows"]), int(row["columns"]), row["values_sha256"], row["masks_sha256"], row["file_sha256"]
            )
            for row in csv.DictReader(file)
        }


def default_directory() -> Path:
    """``../shared/data/uci`` seen from here if it is there, else the cache."""
    shared = Path("..") / "shared" / "data" / "uci"
    return shared if shared.is_dir() else cache_directory()


def cache_directory() -> Path:
    """Where downloads go: ``$FINITEGP_CACHE``, or ``finitegp`` in the user's cache directory."""
    base = os.environ.get("FINITEGP_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "finitegp" / "uci"


def is_available(name: str, directory: Path) -> bool:
    """Whether a dataset's files are in the directory."""
    return (directory / f"{name}.parquet").is_file() or (directory / name / "data.csv.gz").is_file()


def load_split(name: str, split: int, directory: Path | None = None) -> DatasetSplit:
    """One dataset with one of its ten splits (90 % training rows).

    The directory holds ``<name>.parquet`` (columns ``x0`` ..., ``y``, ``test0`` ... ``test9``) or the upstream files
    ``<name>/data.csv.gz`` and ``<name>/test_mask.csv.gz``. If it holds neither, the upstream files are fetched into
    the cache. Whatever is read must match the known checksums.

    Raises:
        DataError: If the dataset is unknown, damaged, or neither present nor reachable.
    """
    if name not in checksums():
        raise DataError(f"dataset {name!r} is not known; known are {', '.join(sorted(checksums()))}.")
    if not 0 <= split < NUM_SPLITS:
        raise DataError(f"split must lie between 0 and {NUM_SPLITS - 1}, but is {split}.")
    values, masks = _load(name, default_directory() if directory is None else directory)
    inputs, targets, test = values[:, :-1], values[:, -1], masks[:, split]
    return DatasetSplit(name, split, inputs[~test], targets[~test], inputs[test], targets[test])


def _load(name: str, directory: Path) -> tuple[Array, Masks]:
    parquet = directory / f"{name}.parquet"
    if parquet.is_file():
        values, masks = _read_parquet(parquet)
    else:
        folder = directory / name
        if not (folder / "data.csv.gz").is_file():
            folder = cache_directory() / name
            if not (folder / "data.csv.gz").is_file():
                _download(name, folder, directory)
        _check_file(name, folder / "data.csv.gz")
        values = _read_text(folder / "data.csv.gz", np.float64)
        shared_masks = directory / f"{name}_test_mask.parquet"  # the masks alone, where the table is not at hand
        if (folder / "test_mask.csv.gz").is_file():
            masks = _read_text(folder / "test_mask.csv.gz", np.float64) != 0
        elif shared_masks.is_file():
            masks = _masks_of(pq.read_table(shared_masks))
        else:
            raise DataError(f"{folder} has data.csv.gz but no test_mask.csv.gz: place both there.")
    _check_contents(name, values, masks)
    return values, masks


def _read_parquet(path: Path) -> tuple[Array, Masks]:
    try:
        table = pq.read_table(path)
        count = sum(1 for column in table.column_names if column[0] == "x" and column[1:].isdigit())
        columns = [f"x{index}" for index in range(count)] + ["y"]
        return np.column_stack([table[column].to_numpy() for column in columns]), _masks_of(table)
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a dataset: {error}") from error


def _masks_of(table: Any) -> Masks:
    return np.column_stack([table[f"test{index}"].to_numpy(zero_copy_only=False) for index in range(NUM_SPLITS)])


def _read_text(path: Path, dtype: type) -> Array:
    try:
        return np.loadtxt(path, delimiter=",", dtype=dtype, ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. Delete it to have it fetched again.") from error


def _check_file(name: str, path: Path) -> None:
    expected = checksums()[name].file
    if expected and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise DataError(f"{path} is not the published file of {name} (SHA-256 differs): delete it and try again.")


def _check_contents(name: str, values: Array, masks: Masks) -> None:
    known = checksums()[name]
    if values.shape != (known.rows, known.columns + 1):
        raise DataError(
            f"{name} must have {known.rows} rows, {known.columns} inputs and a target, but has shape {values.shape}."
        )
    found = hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).hexdigest()
    if known.values and found != known.values:
        raise DataError(f"The values of {name} are not the published ones (SHA-256 differs): replace the file.")
    if hashlib.sha256(np.ascontiguousarray(masks.astype(np.uint8)).tobytes()).hexdigest() != known.masks:
        raise DataError(f"The split masks of {name} are not the published ones (SHA-256 differs): replace the file.")


def _download(name: str, folder: Path, directory: Path, *, fetch: Callable[[str], bytes] | None = None) -> None:
    """Fetch the two upstream files of a dataset into the cache."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("test_mask.csv.gz", "data.csv.gz"):
        address = f"{UPSTREAM}/{name}/{file}"
        try:
            contents = (fetch or _fetch)(address)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise DataError(
                f"{name} is not in {directory} and cannot be fetched from {address} ({error}). Without a connection, "
                f"place {name}.parquet in {directory}, or the files data.csv.gz and test_mask.csv.gz of {name} from "
                f"https://github.com/treforevans/uci_datasets in {folder}."
            ) from error
        # Whole or not at all: a stopped download leaves no file under the final name.
        with complete_or_absent(folder / file) as temporary:
            temporary.write_bytes(contents)


def _fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:  # https only: the address is ours
        contents: bytes = response.read()
        return contents
