r"""The file itself: safetensors with a JSON header and a checksum over every byte, read without trusting any of them.

Layout: eight bytes with the length of the safetensors header, that header (JSON: metadata, then name, type, shape and
place of each tensor), the tensors. The metadata hold ``finitegp``, our own JSON header, and ``sha256``, the digest of
the whole file with zeros in place of the digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..atomic import can_be_name, complete_or_absent
from ..errors import ModelFileError
from ..lite.container import (
    FORMAT,
    MAX_HEADER_BYTES,
    NO_DIGEST,
    VERSIONS,
    LayoutError,
    check_digest,
    check_places,
    parse_header,
)

FORMAT_VERSION = VERSIONS[-1]
# What tensors may be: safetensors' names and torch's.
_NAMED_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_TYPES = set(_NAMED_TYPES.values())
_ITEM_BYTES = {name: kind.itemsize for name, kind in _NAMED_TYPES.items()}

# How files begin that are taken for models by mistake.
_BEGINNINGS = (
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive, as torch.save writes it (nothing is ever unpickled here)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"PAR1", "a Parquet table"),
    (b"\x80\x02", "a pickle (nothing is ever unpickled here)"),
    (b"\x80\x03", "a pickle (nothing is ever unpickled here)"),
    (b"\x80\x04", "a pickle (nothing is ever unpickled here)"),
    (b"\x80\x05", "a pickle (nothing is ever unpickled here)"),
    (b"<", "a web page or XML"),
    (b"{", "JSON text"),
    (b"[", "JSON text"),
)


class Contents(NamedTuple):
    """The contents of a file: our JSON header, and the tensors by name."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]


def write_container(
    path: str | os.PathLike[str], header: Mapping[str, object], tensors: Mapping[str, Tensor], *, overwrite: bool = True
) -> None:
    """Write header and tensors into one file; an old file stays whole until the new one is complete, or for good."""
    stamped = {"format": FORMAT, "format_version": FORMAT_VERSION, **header}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _TYPES:
            what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ModelFileError(f"The model cannot be saved: {name!r} is {what}, which a file cannot hold.")
    # Tensors that share memory would be refused.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(stamped, allow_nan=False, ensure_ascii=True)
    data = save(copies, {"finitegp": text, "sha256": NO_DIGEST})
    length = 8 + int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"The model cannot be saved: its description takes {length} bytes of at most {MAX_HEADER_BYTES}, because "
            "of columns with very many categories. Leave these columns out."
        )
    head, body = data[:length], memoryview(data)[length:]
    key = b'"sha256":"'
    place = head.find(key + NO_DIGEST.encode()) + len(key)
    digest = hashlib.sha256(head)
    digest.update(body)
    head = head[:place] + digest.hexdigest().encode() + head[place + len(NO_DIGEST) :]
    with complete_or_absent(path, overwrite=overwrite) as temporary, open(temporary, "wb") as opened:
        opened.write(head)
        opened.write(body)


def read_container(path: str | os.PathLike[str], expected: str = "a model", form: str = FORMAT) -> Contents:
    """Read a file that :func:`write_container` wrote; anything else is a ModelFileError that names what it is.

    Nothing is allocated that is larger than the file. ``expected`` is what errors call the file that should be there,
    and ``form`` the format that its header must name.
    """
    place = Path(path)
    if not can_be_name(place):
        raise ModelFileError(f"{str(place)!r} cannot be the name of a file.")
    if place.exists() and not place.is_file():
        what = "directory" if place.is_dir() else "device or pipe"
        raise ModelFileError(f"{place} is a {what}, not {expected}.")
    try:
        with open(place, "rb") as opened:
            return _read(place, opened, expected, form)
    except LayoutError as error:
        raise ModelFileError(f"{place} is damaged ({error}). Copy or write it again.") from None
    except FileNotFoundError:
        raise ModelFileError(f"There is no file {place}.") from None
    except OSError as error:
        raise ModelFileError(f"{place} cannot be read: {error.strerror}.") from None


def _read(path: Path, opened: BinaryIO, expected: str, form: str) -> Contents:
    size = os.fstat(opened.fileno()).st_size
    head = _read_head(path, opened, size, expected)
    outer = parse_header(head[8:])
    metadata = outer.pop("__metadata__", None)
    header = _check_header(path, metadata, expected, form)
    body_bytes = check_places(outer, _ITEM_BYTES)
    missing = len(head) + body_bytes - size
    if missing > 0:
        raise ModelFileError(
            f"{path} is truncated: {size} of {len(head) + body_bytes} bytes are there. Copy or write it again."
        )
    if missing < 0:
        raise LayoutError(f"there are {-missing} bytes after its end")
    body = opened.read()
    check_digest(head, body, metadata["sha256"])
    try:
        tensors = load(head + body)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise LayoutError(str(error)) from None
    return Contents(header, tensors)


def _read_head(path: Path, opened: BinaryIO, size: int, expected: str) -> bytes:
    if size == 0:
        raise ModelFileError(f"{path} is empty (0 bytes), not {expected}. Copy or write it again.")
    start = opened.read(8)
    length = int.from_bytes(start, "little")
    for beginning, what in _BEGINNINGS:
        # The length of our header might begin so too, but it is a multiple of eight and never that large.
        if start.startswith(beginning) and (length % 8 or length > MAX_HEADER_BYTES):
            raise ModelFileError(f"{path} is {what}, not {expected} that finitegp saved. Give the right file.")
    if len(start) < 8:
        raise ModelFileError(
            f"{path} has only {size} bytes, so it is not the whole of {expected}. Copy or write it again."
        )
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"{path} is not {expected} that finitegp saved, or its first bytes are damaged. Give the right file, or "
            "copy or write it again."
        )
    if 8 + length > size:
        raise ModelFileError(
            f"{path} is truncated, or not {expected}: its header alone should have {length} bytes, but the file has "
            f"{size}. Copy or write it again."
        )
    return start + opened.read(length)


def _check_header(path: Path, metadata: object, expected: str, form: str) -> dict[str, Any]:
    """Our own header out of the metadata, after its format and version."""
    if not isinstance(metadata, dict) or not isinstance(metadata.get("finitegp"), str):
        raise ModelFileError(f"{path} is a safetensors file, but not {expected} that finitegp saved.")
    header = parse_header(metadata["finitegp"].encode(errors="replace"))
    found = header.get("format")
    if found != form and isinstance(found, str) and found.startswith("finitegp-checkpoint"):
        if form.startswith("finitegp-checkpoint"):
            raise ModelFileError(
                f"{path} was written by an earlier release of finitegp, without a checksum: only that release can go "
                "on from it."
            )
        raise ModelFileError(
            f"{path} is a checkpoint of a training run, not {expected}: resume the training from it, and save the "
            "model."
        )
    if found != form and found == "finitegp-fit-checkpoint":
        raise ModelFileError(
            f"{path} is what an interrupted fit has finished, not {expected}: go on with `finitegp fit --resume`, or "
            "with `resumable` in Python."
        )
    if found != form:
        raise ModelFileError(f"{path} is not {expected} that finitegp saved: its format is {str(found)[:60]!r}.")
    version = header.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LayoutError(f"its version is {str(version)[:60]!r}")
    if version > FORMAT_VERSION:
        versions = header.get("versions")
        writer = versions.get("finitegp") if isinstance(versions, dict) else None
        raise ModelFileError(
            f"{path} was written by a newer finitegp ({str(writer)[:60]}, file version {version}; this release reads "
            f"up to {FORMAT_VERSION}): upgrade with pip install --upgrade finitegp."
        )
    if not isinstance(metadata.get("sha256"), str):
        raise LayoutError("it has no checksum")
    return header
