"""Model files without safetensors: a length, a JSON header and raw numbers, checked before anything is made of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .program import LiteError

_Stored = TypeVar("_Stored")
#: What the JSON of a file holds.
Header = dict[str, Any]
# Bytes of a header; and lists and objects in it, of which those of the widest tables have a quarter: each takes a
# hundred bytes of memory or more.
MAX_HEADER_BYTES, _MAX_HEADER_PARTS = 16_000_000, 500_000
# What stands in place of the digest while it is computed.
NO_DIGEST = "0" * 64
FORMAT = "finitegp-model"
VERSIONS = (1, 2)
_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"},
    **{"I8": "<i1", "U8": "<u1", "BOOL": "?"},
}
_ITEM_BYTES = {name: np.dtype(code).itemsize for name, code in _TYPES.items()}


class LayoutError(ValueError):
    """A file that is damaged, and how."""


def parse_header(text: bytes) -> Header:
    """The object that JSON text describes."""
    if text.count(b"[") + text.count(b"{") > _MAX_HEADER_PARTS:
        raise LayoutError(f"its header has more than {_MAX_HEADER_PARTS} parts")
    try:
        parsed = json.loads(text)
        json.dumps(parsed, ensure_ascii=False).encode()  # escapes may stand for half a character, which is no text
    except (ValueError, RecursionError):  # ValueError: no JSON, no UTF-8, numbers of too many digits
        parsed = None
    if not isinstance(parsed, dict):
        raise LayoutError("its header is not JSON")
    return parsed


def check_places(entries: Header, item_bytes: Mapping[str, int]) -> int:
    """The bytes that all arrays take, after types, shapes and places of each; ``item_bytes`` are those of a number."""
    places = []
    for name, entry in entries.items():
        try:
            item, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            good = item in item_bytes and all(type(each) is int and each >= 0 for each in (*shape, start, stop))
            good = good and len(shape) <= 8 and stop - start == math.prod(shape) * item_bytes[item]
        except (TypeError, KeyError, ValueError):
            good = False
        if not good:
            raise LayoutError(f"the entry of array {name[:60]!r} makes no sense")
        places.append((start, stop))
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise LayoutError("its arrays overlap or leave gaps")
        end = stop
    return end


def check_digest(head: bytes, body: bytes, digest: str) -> None:
    """Compare a file with its digest, which is that of the whole file with zeros in place of the digest."""
    if len(digest) != 64 or not digest.isascii() or head.count(digest.encode()) != 1:
        raise LayoutError("its checksum cannot be found")
    found = hashlib.sha256(head.replace(digest.encode(), NO_DIGEST.encode()))
    found.update(body)
    if found.hexdigest() != digest:
        raise LayoutError("its contents do not match its checksum")


def inside(arrays: Mapping[str, _Stored], prefix: str) -> dict[str, _Stored]:
    """The arrays whose names begin so, under the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


class Contents(NamedTuple):
    """The contents of a file: the library's JSON header, and the arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[np.generic]]


def read_file(path: str | os.PathLike[str]) -> Contents:
    """Read a model file; anything else is a LiteError.

    Sizes, types and places of all arrays and the checksum of every byte are checked first, the arrays then are views of
    the bytes that were read: nothing is made that is larger than the file, and nothing is unpickled.
    """
    place = checked_path(path)
    if not place.is_file():
        raise LiteError(f"{place} is no file.")
    try:
        return _read(place)
    except LayoutError as error:
        raise LiteError(f"{place} is damaged ({error}). Copy or write it again.") from None


def _read(place: Path) -> Contents:
    with open(place, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > MAX_HEADER_BYTES or 8 + length > size:
            raise LiteError(f"{place} is not a model that finitegp saved, or it is truncated: copy or write it again.")
        head = start + opened.read(length)
        outer = parse_header(head[8:])
        metadata = outer.pop("__metadata__", None)
        header = _check_header(place, metadata)
        expected = len(head) + check_places(outer, _ITEM_BYTES)
        if size != expected:
            what = "truncated" if size < expected else "damaged"
            raise LiteError(f"{place} is {what}: it has {size} bytes instead of {expected}. Copy or write it again.")
        body = opened.read()
    check_digest(head, body, metadata["sha256"])
    arrays = {}
    for name, entry in outer.items():
        first = entry["data_offsets"][0]
        flat = np.frombuffer(body, _TYPES[entry["dtype"]], count=math.prod(entry["shape"]), offset=first)
        arrays[name] = flat.reshape(entry["shape"])
    return Contents(header, arrays)


def write_file(
    path: str | os.PathLike[str], header: Mapping[str, object], arrays: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    """Write a file that :func:`read_file` and the library read; an old one stays until the new one is complete."""
    names = {np.dtype(code).str: name for name, code in _TYPES.items()}
    # Large numbers first, so that each is at a multiple of its size.
    ordered = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"finitegp": json.dumps(header, allow_nan=False), "sha256": NO_DIGEST}}
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
    if path.is_dir() or not path.parent.is_dir():
        raise LiteError(f"path must be a file in a directory that is there, but is {str(path)!r}.")
    temporary = Path(f"{path}.{os.getpid()}.part")
    try:
        temporary.write_bytes(head.replace(NO_DIGEST.encode(), digest.encode(), 1) + body)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The name of a file; anything else is a LiteError."""
    try:
        if b"\0" not in os.fsencode(path) and not isinstance(path, bytes):
            return Path(path)
    except (TypeError, UnicodeEncodeError):
        pass
    raise LiteError(f"path must be the name of a file, but is {path!r:.60}.")


def _check_header(path: Path, metadata: object) -> Header:
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in ("finitegp", "sha256")):
        raise LiteError(f"{path} is a safetensors file, but not a model that finitegp saved.")
    header = parse_header(metadata["finitegp"].encode(errors="replace"))
    if header.get("format") != FORMAT:
        raise LiteError(f"{path} is not a model that finitegp saved: its format is {str(header.get('format'))[:60]!r}.")
    if header.get("format_version") not in VERSIONS:
        raise LiteError(
            f"{path} has the file version {str(header.get('format_version'))[:60]!r}, but this release reads "
            f"{VERSIONS[0]} to {VERSIONS[-1]}: upgrade it."
        )
    return header
