r"""Files: safetensors with a JSON header and a checksum over every byte, read without trusting any of them.

Layout: eight bytes with the length of the safetensors header, that header (JSON: metadata, then name, type, shape and
place of each array), the numbers. The metadata hold ``finitegp``, our own JSON header, and ``sha256``, the digest of
the whole file with zeros in place of the digest. The library reads files here, too, and makes its tensors of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .program import LiteError

Stored = TypeVar("Stored")
#: What the JSON of a file holds.
Header = dict[str, Any]
#: Bytes of a header at most.
MAX_HEADER_BYTES = 16_000_000
# Lists and objects in it, of which those of the widest tables have a quarter: each takes a hundred bytes of memory or
# more.
_MAX_HEADER_PARTS = 500_000
#: What stands in place of the digest while it is computed.
NO_DIGEST = "0" * 64
FORMAT = "finitegp-model"
FORMAT_VERSION = 2
_PACKAGE = __name__.partition(".")[0].replace("_", "-")  # these files are a package of their own as well
_TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"},
    **{"I8": "<i1", "U8": "<u1", "BOOL": "?"},
}
# With a type that torch has and NumPy has not: of checkpoints.
_ITEM_BYTES = {"BF16": 2, **{name: np.dtype(code).itemsize for name, code in _TYPES.items()}}

# How files begin that are taken for models by mistake.
_BEGINNINGS = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive, as torch.save writes it (nothing is ever unpickled here)",
    b"\x1f\x8b": "a gzip archive",
    b"PAR1": "a Parquet table",
    **{b"\x80" + bytes([version]): "a pickle (nothing is ever unpickled here)" for version in range(2, 6)},
    b"<": "a web page or XML",
    b"{": "JSON text",
    b"[": "JSON text",
}


class LayoutError(ValueError):
    """A file that is damaged, and how."""


class Layout(NamedTuple):
    """A file whose every byte was checked: our JSON header, entries of arrays by name, and the bytes.

    ``head`` is all that stands before the numbers, ``body`` the numbers.
    """

    header: Header
    entries: Header
    head: bytes
    body: bytes


class Contents(NamedTuple):
    """The contents of a file: the library's JSON header, and the arrays by name."""

    header: Header
    arrays: dict[str, npt.NDArray[np.generic]]


def inside(arrays: Mapping[str, Stored], prefix: str) -> dict[str, Stored]:
    """The arrays whose names begin so, under the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def read_file(path: str | os.PathLike[str]) -> Contents:
    """Read a model file; anything else is a LiteError.

    The arrays are views of the bytes that were read: nothing is made that is larger than the file, and nothing is
    unpickled.
    """
    header, entries, _, body = read_layout(checked_path(path))
    arrays = {}
    for name, entry in entries.items():
        kind, shape = _TYPES.get(entry["dtype"]), entry["shape"]
        if kind is None:
            raise LiteError(f"{path} has numbers of the type {entry['dtype']}, which NumPy does not have.")
        flat = np.frombuffer(body, kind, count=math.prod(shape), offset=entry["data_offsets"][0])
        arrays[name] = flat.reshape(shape)
    return Contents(header, arrays)


def read_layout(path: Path, expected: str = "a model", form: str = FORMAT) -> Layout:
    """Read a file after checks of sizes, types and places of all arrays, and of every byte; else a LiteError.

    Args:
        path: The file.
        expected: What errors call the file that should be there.
        form: The format that its header must name.
    """
    if path.exists() and not path.is_file():
        raise LiteError(f"{path} is a {'directory' if path.is_dir() else 'device or pipe'}, not {expected}.")
    try:
        with open(path, "rb") as opened:
            return _read(path, opened, expected, form)
    except LayoutError as error:
        raise LiteError(f"{path} is damaged ({error}). Copy or write it again.") from None
    except FileNotFoundError:
        raise LiteError(f"There is no file {path}.") from None
    except OSError as error:
        raise LiteError(f"{path} cannot be read: {error.strerror}.") from None


def _read(path: Path, opened: BinaryIO, expected: str, form: str) -> Layout:
    size = os.fstat(opened.fileno()).st_size
    head = _read_head(path, opened, size, expected)
    entries = _parse_header(head[8:])
    metadata = entries.pop("__metadata__", None)
    header = _check_header(path, metadata, expected, form)
    whole = len(head) + _check_places(entries)
    if whole > size:
        raise LiteError(f"{path} is truncated: {size} of {whole} bytes are there. Copy or write it again.")
    if whole < size:
        raise LayoutError(f"there are {size - whole} bytes after its end")
    body = opened.read()
    _check_digest(head, body, metadata["sha256"])
    return Layout(header, entries, head, body)


def _read_head(path: Path, opened: BinaryIO, size: int, expected: str) -> bytes:
    if size == 0:
        raise LiteError(f"{path} is empty (0 bytes), not {expected}. Copy or write it again.")
    start = opened.read(8)
    length = int.from_bytes(start, "little")
    for beginning, what in _BEGINNINGS.items():
        # The length of our header might begin so too, but it is a multiple of eight and never that large.
        if start.startswith(beginning) and (length % 8 or length > MAX_HEADER_BYTES):
            raise LiteError(f"{path} is {what}, not {expected} that finitegp saved. Give the right file.")
    if len(start) < 8:
        raise LiteError(f"{path} has only {size} bytes, so it is not the whole of {expected}. Copy or write it again.")
    if length > MAX_HEADER_BYTES:
        raise LiteError(
            f"{path} is not {expected} that finitegp saved, or its first bytes are damaged. Give the right file, or "
            "copy or write it again."
        )
    if 8 + length > size:
        raise LiteError(
            f"{path} is truncated, or not {expected}: its header alone should have {length} bytes, but the file has "
            f"{size}. Copy or write it again."
        )
    return start + opened.read(length)


def _parse_header(text: bytes) -> Header:
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


def _check_header(path: Path, metadata: object, expected: str, form: str) -> Header:
    """Our own header out of the metadata, after its format and version."""
    if not isinstance(metadata, dict) or not isinstance(metadata.get("finitegp"), str):
        raise LiteError(f"{path} is a safetensors file, but not {expected} that finitegp saved.")
    header = _parse_header(metadata["finitegp"].encode(errors="replace"))
    found = header.get("format")
    if found != form and isinstance(found, str) and found.startswith("finitegp-checkpoint"):
        if form.startswith("finitegp-checkpoint"):
            raise LiteError(
                f"{path} was written by an earlier release of finitegp, without a checksum: only that release can go "
                "on from it."
            )
        raise LiteError(
            f"{path} is a checkpoint of a training run, not {expected}: resume the training from it, and save the "
            "model."
        )
    if found != form and found == "finitegp-fit-checkpoint":
        raise LiteError(
            f"{path} is what an interrupted fit has finished, not {expected}: go on with `finitegp fit --resume`, or "
            "with `resumable` in Python."
        )
    if found != form:
        raise LiteError(f"{path} is not {expected} that finitegp saved: its format is {str(found)[:60]!r}.")
    version = header.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LayoutError(f"its version is {str(version)[:60]!r}")
    if version > FORMAT_VERSION:
        versions = header.get("versions")
        writer = versions.get("finitegp") if isinstance(versions, dict) else None
        raise LiteError(
            f"{path} was written by a newer finitegp ({str(writer)[:60]}, file version {version}; this release reads "
            f"up to {FORMAT_VERSION}): upgrade with pip install --upgrade {_PACKAGE}."
        )
    if not isinstance(metadata.get("sha256"), str):
        raise LayoutError("it has no checksum")
    return header


def _check_places(entries: Header) -> int:
    """The bytes that all arrays take, after types, shapes and places of each."""
    places = []
    for name, entry in entries.items():
        try:
            item, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            good = item in _ITEM_BYTES and all(type(each) is int and each >= 0 for each in (*shape, start, stop))
            good = good and len(shape) <= 8 and stop - start == math.prod(shape) * _ITEM_BYTES[item]
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


def _check_digest(head: bytes, body: bytes, digest: str) -> None:
    if len(digest) != 64 or not digest.isascii() or head.count(digest.encode()) != 1:
        raise LayoutError("its checksum cannot be found")
    if _digest(head.replace(digest.encode(), NO_DIGEST.encode()), body) != digest:
        raise LayoutError("its contents do not match its checksum")


def _digest(head: bytes, body: bytes | memoryview) -> str:
    found = hashlib.sha256(head)
    found.update(body)
    return found.hexdigest()


def sealed(head: bytes, body: bytes | memoryview) -> bytes:
    """All that stands before the numbers, with the digest of the file in the place that was kept for it."""
    key = b'"sha256":"'
    place = head.find(key + NO_DIGEST.encode()) + len(key)
    return head[:place] + _digest(head, body).encode() + head[place + len(NO_DIGEST) :]


def write_file(
    path: str | os.PathLike[str], header: Mapping[str, object], arrays: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    """Write a file that :func:`read_file` and the library read; an old one stays until the new one is complete."""
    names = {np.dtype(code).str: name for name, code in _TYPES.items()}
    # Large numbers first, so that each is at a multiple of its size.
    ordered = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    entries: Header = {"__metadata__": {"finitegp": json.dumps(header, allow_nan=False), "sha256": NO_DIGEST}}
    parts, end = [], 0
    for name in ordered:
        array = np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<"))
        start, end = end, end + array.nbytes
        entries[name] = {
            "dtype": names[array.dtype.str],
            "shape": list(arrays[name].shape),
            "data_offsets": [start, end],
        }
        parts.append(array.tobytes())
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path, body = checked_path(path), b"".join(parts)
    if path.is_dir() or not path.parent.is_dir():
        raise LiteError(f"path must be a file in a directory that is there, but is {str(path)!r}.")
    temporary = Path(f"{path}.{os.getpid()}.part")
    try:
        temporary.write_bytes(sealed(len(text).to_bytes(8, "little") + text, body) + body)
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
