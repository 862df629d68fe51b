"""The layout of a safetensors file, checked before anything is made of it: JSON, the places of numbers, the digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

_Stored = TypeVar("_Stored")
#: What the JSON of a file holds.
Header = dict[str, Any]
# Bytes of a header; and lists and objects in it, of which those of the widest tables have a quarter: each takes a
# hundred bytes of memory or more.
MAX_HEADER_BYTES, _MAX_HEADER_PARTS = 16_000_000, 500_000
# What stands in place of the digest while it is computed.
NO_DIGEST = "0" * 64


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
