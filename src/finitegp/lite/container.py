"""Model files without safetensors: a length, a JSON header and raw numbers, checked before anything is made of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .program import LiteError

FORMAT = "finitegp-model"
VERSIONS = (1, 2)
_MOST_HEADER_BYTES = 64_000_000
_NO_DIGEST = "0" * 64
_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"},
    **{"I8": "<i1", "U8": "<u1", "BOOL": "?"},
}


class Contents(NamedTuple):
    """What a file holds: the library's JSON header, and the arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]


def read_file(path: str | os.PathLike[str]) -> Contents:
    """Read a model file; anything else is a LiteError.

    Sizes, types and places of all arrays and the checksum of every byte are checked first, the arrays then are views of
    the bytes that were read: nothing is made that is larger than the file, and nothing is unpickled.
    """
    place = checked_path(path)
    if not place.is_file():
        raise LiteError(f"{place} is no file.")
    with open(place, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > _MOST_HEADER_BYTES or 8 + length > size:
            raise LiteError(f"{place} is not a model that finitegp saved, or it is truncated: copy or write it again.")
        head = start + opened.read(length)
        outer = _parse(place, head[8:])
        metadata = outer.pop("__metadata__", None)
        header = _check_header(place, metadata)
        expected = len(head) + _check_places(place, outer)
        if size != expected:
            what = "truncated" if size < expected else "damaged"
            raise LiteError(f"{place} is {what}: it has {size} bytes instead of {expected}. Copy or write it again.")
        body = opened.read()
    digest = metadata["sha256"]
    if len(digest) != 64 or head.count(digest.encode()) != 1:
        raise _damaged(place, "its checksum cannot be found")
    found = hashlib.sha256(head.replace(digest.encode(), _NO_DIGEST.encode()))
    found.update(body)
    if found.hexdigest() != digest:
        raise _damaged(place, "its contents do not match its checksum")
    arrays = {}
    for name, entry in outer.items():
        first = entry["data_offsets"][0]
        flat = np.frombuffer(body, _TYPES[entry["dtype"]], count=math.prod(entry["shape"]), offset=first)
        arrays[name] = flat.reshape(entry["shape"])
    return Contents(header, arrays)


def write_file(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a file that :func:`read_file` and the library read; an old one stays until the new one is complete."""
    names = {np.dtype(code).str: name for name, code in _TYPES.items()}
    # Large numbers first, so that each is at a multiple of its size.
    ordered = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"finitegp": json.dumps(header, allow_nan=False), "sha256": _NO_DIGEST}}
    end = 0
    for name in ordered:
        array = arrays[name]
        stop = end + array.nbytes
        kind = names[array.dtype.newbyteorder("<").str]
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [end, stop]}
        end = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    body = b"".join(
        np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<")).tobytes() for name in ordered
    )
    digest = hashlib.sha256(head + body).hexdigest()
    path = checked_path(path)
    temporary = Path(f"{path}.{os.getpid()}.part")
    try:
        temporary.write_bytes(head.replace(_NO_DIGEST.encode(), digest.encode(), 1) + body)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def checked_path(path: Any) -> Path:
    """The name of a file; anything else is a LiteError."""
    try:
        if b"\0" not in os.fsencode(path) and not isinstance(path, bytes):
            return Path(path)
    except (TypeError, UnicodeEncodeError):
        pass
    raise LiteError(f"path must be the name of a file, but is {path!r:.60}.")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise _damaged(path, "its header is not JSON")
    return parsed


def _check_header(path: Path, metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in ("finitegp", "sha256")):
        raise LiteError(f"{path} is a safetensors file, but not a model that finitegp saved.")
    header = _parse(path, metadata["finitegp"].encode(errors="replace"))
    if header.get("format") != FORMAT:
        raise LiteError(f"{path} is not a model that finitegp saved: its format is {str(header.get('format'))[:60]!r}.")
    if header.get("format_version") not in VERSIONS:
        raise LiteError(
            f"{path} has the file version {str(header.get('format_version'))[:60]!r}, but this release reads "
            f"{VERSIONS[0]} to {VERSIONS[-1]}: upgrade it."
        )
    return header


def _check_places(path: Path, entries: Mapping[str, Any]) -> int:
    """The bytes that the arrays take, after types, shapes and places of all of them."""
    places = []
    for name, entry in entries.items():
        try:
            kind, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            good = kind in _TYPES and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in (*shape, start, stop))
            good = good and stop - start == math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
        except (TypeError, KeyError, ValueError):
            good = False
        if not good:
            raise _damaged(path, f"the entry of array {name[:60]!r} makes no sense")
        places.append((start, stop))
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise _damaged(path, "its arrays overlap or leave gaps")
        end = stop
    return end


def _damaged(path: Path, what: str) -> LiteError:
    return LiteError(f"{path} is damaged ({what}). Copy or write it again.")
