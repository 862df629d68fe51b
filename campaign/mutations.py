"""How files are changed: plain damage, and crafted contents under valid checksums."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from typing import Any

import numpy as np

#: What may stand in JSON where something else is expected; the first three become numbers that JSON does not have.
ODD_JSON: list[Any] = [
    *("*NaN*", "*Infinity*", "*-Infinity*", None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1e308),
    *(-1e308, 1e-320, 0.0, 3.5, "", "x", "x" * 5000, "\ud800", "\0", "\x1b[31mred", "<script>", "nan", "10", "cuda"),
    *("meta", "../../etc/passwd", "os.system", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, [1e308] * 3, [{}], {"0": []}),
]
_DTYPES = ["F32", "I64", "F16", "BOOL", "U8", "F8_E4M3", "C64", "Object", None, ["F64"]]
_SHAPES: list[Any] = [[2**62, 2], [-1], [1.5], ["1"], None, [0] * 9, [1] * 100, [2**40, 2**40], [[3]], [True], []]
_PLACES: list[Any] = [[0, 2**62], [-8, 8], [8, 0], [0], None, ["0", "8"], [0.0, 8.0], [2**65, 2**66]]


def damage(data: bytes, chance: random.Random) -> bytes:
    """Bits that flip, bytes that are lost, repeated or overwritten."""
    changed = bytearray(data)
    place = chance.randrange(len(changed))
    match chance.choice(["flip"] * 6 + ["cut", "cut", "insert", "delete", "zeros", "length", "swap", "twice"]):
        case "flip":
            for _ in range(chance.choice([1, 1, 1, 20])):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        case "cut":
            del changed[place:]
        case "insert":
            changed[place:place] = chance.randbytes(chance.randrange(1, 64))
        case "delete":
            del changed[place : place + chance.randrange(1, 64)]
        case "zeros":
            changed[place : place + 512] = bytes(len(changed[place : place + 512]))
        case "length":
            sizes = [
                0,
                1,
                8,
                2**63,
                2**64 - 1,
                len(data),
                len(data) - 8,
                15_999_992,
                16_000_001,
                chance.getrandbits(40),
            ]
            changed[:8] = struct.pack("<Q", chance.choice(sizes))
        case "swap":
            other = chance.randrange(len(changed))
            first, second = changed[place : place + 32], changed[other : other + 32]
            changed[place : place + 32], changed[other : other + 32] = second, first
        case "twice":
            changed += changed[:place]
    return bytes(changed)


def parsed(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The header of safetensors, the library's own header, and the tensors."""
    length = 8 + int.from_bytes(data[:8], "little")
    outer = json.loads(data[8:length])
    return outer, json.loads(outer["__metadata__"]["finitegp"]), data[length:]


def signed(outer: dict[str, Any], header: Any, body: bytes) -> bytes:
    """A file with a valid checksum."""
    outer = copy.deepcopy(outer)
    if isinstance(outer.get("__metadata__"), dict):
        outer["__metadata__"] |= {"finitegp": header if isinstance(header, str) else _dumped(header)}
        outer["__metadata__"] |= {"sha256": "0" * 64}
    text = json.dumps(outer).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    digest = hashlib.sha256(head + body).hexdigest()
    return head.replace(b"0" * 64, digest.encode(), 1) + body


def _dumped(header: Any) -> str:
    text = json.dumps(header)
    for word in ("NaN", "-Infinity", "Infinity"):
        text = text.replace(f'"*{word}*"', word)
    return text


def odd_header(data: bytes, chance: random.Random) -> bytes:
    """Other values anywhere in the library's own header."""
    outer, header, body = parsed(data)
    if isinstance(header.get("state"), str):  # that of a checkpoint holds JSON as text
        header["state"] = json.loads(header["state"])
        _change(header, chance)
        header["state"] = _dumped(header.get("state"))
        return signed(outer, header, body)
    _change(header, chance)
    return signed(outer, header, body)


def odd_manifest(data: bytes, chance: random.Random) -> bytes:
    manifest = json.loads(data)
    _change(manifest, chance)
    return _dumped(manifest).encode()


def _change(value: dict[str, Any], chance: random.Random) -> None:
    """Set, delete, repeat or add one to four entries."""
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at: Any = value
        # Down from the top, so that a long list does not get all of the changes.
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = chance.choice(keys)
            below = at[key]
            if isinstance(below, dict | list) and below and chance.random() < 0.85:
                at = below
                continue
            match chance.choice(["set", "set", "set", "delete", "repeat", "add"]):
                case "delete":
                    del at[key]
                case "repeat" if isinstance(at, list):
                    at.append(copy.deepcopy(below))
                case "add" if isinstance(at, dict):
                    at[chance.choice(["extra", "components", "fits", "state"])] = copy.deepcopy(chance.choice(ODD_JSON))
                case _:
                    at[key] = copy.deepcopy(chance.choice(ODD_JSON))
            break


def odd_tensors(data: bytes, chance: random.Random) -> bytes:
    """Other numbers, types and shapes of tensors, with everything else as it should be."""
    outer, header, body = parsed(data)
    tensors = {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in outer.items()
        if name != "__metadata__"
    }
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice(list(tensors))
        dtype, shape, content = tensors[name]
        kind = {"F64": "<f8", "F32": "<f4"}.get(dtype)
        values = np.frombuffer(content, kind).astype(np.float64) if kind else np.zeros(int(np.prod(shape)))
        change = chance.choice(["nan", "inf", "scale", "type", "shape", "drop", "rename", "extra", "random", "twice"])
        if change in ("nan", "inf") and values.size:
            values[chance.randrange(values.size)] = float(change)
        elif change == "scale":
            values = values * chance.choice([1e300, 1e155, 1e-300, -1.0, 0.0, 1e6])
        elif change == "random":
            values = np.random.default_rng(chance.getrandbits(32)).normal(size=values.size)
        if change in ("nan", "inf", "scale", "random"):
            with np.errstate(over="ignore"):
                tensors[name] = (dtype, shape, values.astype(kind or "<f8").tobytes()) if kind else tensors[name]
        elif change == "type":
            name_of, kind = chance.choice([("F32", "<f4"), ("F16", "<f2"), ("I64", "<i8"), ("BOOL", "?"), ("U8", "u1")])
            with np.errstate(all="ignore"):
                tensors[name] = (name_of, shape, values.astype(kind).tobytes())
        elif change == "shape":
            tensors[name] = (dtype, chance.choice([[*shape[::-1], 1], [int(np.prod(shape))]]), content)
        elif change == "drop":
            del tensors[name]
        elif change == "rename":
            tensors[name + "x"] = tensors.pop(name)
        elif change == "extra":
            tensors[chance.choice(["fits.0.", "", "optimizer.9."]) + "extra"] = ("F64", [2], bytes(16))
        elif change == "twice":
            tensors[name] = (dtype, [2, *shape], content + content)
        if not tensors:
            break
    entries: dict[str, Any] = {"__metadata__": outer["__metadata__"]}
    start = 0
    for name, (dtype, shape, content) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + len(content)]}
        start += len(content)
    return signed(entries, header, b"".join(content for *_, content in tensors.values()))


def odd_entries(data: bytes, chance: random.Random) -> bytes:
    """Entries of tensors that lie, and metadata that are none."""
    outer, header, body = parsed(data)
    name = chance.choice(list(outer))
    if name == "__metadata__":
        outer[name] = copy.deepcopy(chance.choice([None, [], {}, 3, {"finitegp": 1}, {"sha256": "\ud800" * 64}]))
        return signed(outer, header, body)
    match chance.choice(["dtype", "shape", "place", "delete", "odd"]):
        case "dtype":
            outer[name]["dtype"] = chance.choice(_DTYPES)
        case "shape":
            outer[name]["shape"] = chance.choice(_SHAPES)
        case "place":
            outer[name]["data_offsets"] = chance.choice(_PLACES)
        case "delete":
            del outer[name]
        case "odd":
            outer[name] = copy.deepcopy(chance.choice(ODD_JSON))
    return signed(outer, header, body)
