"""Damaged and crafted files: models, statistics of sites, checkpoints, spools."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .fixtures import Fixtures, fit_few, train_some
from .outcomes import HARMLESS, Case, WrongError

#: What may stand in JSON where something else is expected; the first three become numbers that JSON does not have.
ODD_JSON: list[Any] = [
    *("*NaN*", "*Infinity*", "*-Infinity*", None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1e308),
    *(-1e308, 1e-320, 0.0, 3.5, "", "x", "x" * 5000, "\ud800", "\0", "\x1b[31mred", "<script>", "nan", "10", "cuda"),
    *("meta", "../../etc/passwd", "os.system", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, [1e308] * 3, [{}], {"0": []}),
]
_DTYPES = ["F32", "I64", "F16", "BOOL", "U8", "F8_E4M3", "C64", "Object", None, ["F64"]]
_SHAPES: list[Any] = [[2**62, 2], [-1], [1.5], ["1"], None, [0] * 9, [1] * 100, [2**40, 2**40], [[3]], [True], []]
_PLACES: list[Any] = [[0, 2**62], [-8, 8], [8, 0], [0], None, ["0", "8"], [0.0, 8.0], [2**65, 2**66]]

Mutation = Callable[[bytes, random.Random], bytes]


def file_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """A given number of cases over all kinds of files; half of them are plain damage, half have valid checksums."""
    kinds: list[tuple[str, Path, Callable[[Path, bool], str], int]] = [
        ("model", fixtures.model, _model_user(fixtures), 4),
        ("model without rows", fixtures.sums, _model_user(fixtures), 4),
        ("statistics", fixtures.statistics, _statistics_user(fixtures), 4),
        ("checkpoint", fixtures.checkpoint, _checkpoint_user(fixtures), 5),
        ("checkpoint of a fit", fixtures.fit_checkpoint, _fit_checkpoint_user(), 2),
        ("spool", fixtures.spool / "manifest.json", _spool_user(fixtures), 2),
    ]
    stored = Path(__file__).parent.parent / "tests" / "files"
    for name in ("networks-2", "kernel-1", "student-1"):
        kinds.append((name, stored / f"{name}.finitegp", _fit_user(stored / f"{name}.json"), 1))
    total = sum(weight for *_, weight in kinds)
    for name, path, use, weight in kinds:
        number = max(2, count * weight // total)
        for case in range(number):
            yield changed_case(name, path, use, f"{seed}-{name}-{case}")
    for name, text in _bombs():
        yield Case(f"bomb {name}", _bomb(fixtures, text))


def changed_case(name: str, path: Path, use: Callable[[Path, bool], str], key: str) -> Case:
    """A file that is changed, and then used."""
    chance = random.Random(key)
    if path.suffix == ".json":
        mutation = chance.choice([_damage, _odd_manifest])
    else:
        mutation = chance.choice([_damage, _damage, _odd_header, _odd_header, _odd_tensors, _odd_entries])

    def attempt() -> str:
        data = mutation(path.read_bytes(), chance)
        if data == path.read_bytes():
            return HARMLESS
        place = path.parent if path.suffix == ".json" else _scratch()
        target = place / "damaged"
        target.write_bytes(data)
        try:
            return use(target, mutation is _damage)
        finally:
            target.unlink(missing_ok=True)

    return Case(f"{name}, {mutation.__name__.strip('_')}, {key}", attempt)


def _scratch() -> Path:
    import os
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"finitegp-campaign-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder


# How files are changed


def _damage(data: bytes, chance: random.Random) -> bytes:
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


def _odd_header(data: bytes, chance: random.Random) -> bytes:
    """Other values anywhere in the library's own header."""
    outer, header, body = parsed(data)
    if isinstance(header.get("state"), str):  # that of a checkpoint holds JSON as text
        header["state"] = json.loads(header["state"])
        _change(header, chance)
        header["state"] = _dumped(header.get("state"))
        return signed(outer, header, body)
    _change(header, chance)
    return signed(outer, header, body)


def _odd_manifest(data: bytes, chance: random.Random) -> bytes:
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


def _odd_tensors(data: bytes, chance: random.Random) -> bytes:
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


def _odd_entries(data: bytes, chance: random.Random) -> bytes:
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


def _bombs() -> list[tuple[str, bytes]]:
    """Headers that are small in a file and large in memory, or deep."""
    inner = '{"format":"finitegp-model","format_version":1,"x":['
    return [
        ("deep lists", b"[" * 100_000 + b"]" * 100_000),
        ("deep objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        ("digits", b"1" * 1_000_000),
        ("null", b"null"),
        ("nothing", b""),
        ("many lists", json.dumps({"__metadata__": {"finitegp": inner + "[]," * 4_000_000 + "0]}"}}).encode()),
        ("too long", json.dumps({"__metadata__": {"finitegp": inner + "[]," * 20_000_000 + "0]}"}}).encode()),
    ]


def _bomb(fixtures: Fixtures, text: bytes) -> Callable[[], str]:
    def attempt() -> str:
        import resource

        from finitegp import TableRegressor

        target = _scratch() / "bomb"
        target.write_bytes(struct.pack("<Q", len(text)) + text)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            TableRegressor.load(target)
        finally:
            target.unlink()
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if grown > 500.0:
                raise WrongError(f"took {grown:.0f} MB")
        return HARMLESS

    return attempt


# What is done with them


def _new_rows() -> Any:
    return pa.table({"a": [0.1, 0.2, -1.0], "b": [1.0, 2.0, 3.0], "c": ["u", "v", "w"], "y": [0.0, 1.0, 2.0]})


def _checked(values: Any, what: str) -> Any:
    if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
        raise WrongError(f"{what} is not finite")
    return values


def _model_user(fixtures: Fixtures) -> Callable[[Path, bool], str]:
    """Load, describe, predict, update, merge, save: as the commands do."""
    from finitegp import SiteStatistics, TableRegressor
    from finitegp.commands.console import columns_table, scores_table
    from finitegp.commands.info import _facts, _text
    from finitegp.errors import FiniteGPError

    site = SiteStatistics.load(fixtures.statistics)
    expected = {path: TableRegressor.load(path).predict(_new_rows()) for path in (fixtures.model, fixtures.sums)}

    def use(path: Path, plainly_damaged: bool) -> str:
        model = TableRegressor.load(path)
        for value in _facts(model).values():
            _text(value)
        columns_table(model.columns_)
        scores = model.summary_.get("scores")
        if scores:
            scores_table("scores", scores)
        mean, std = model.predict(_new_rows(), return_std=True)
        _checked([mean, std], "a prediction")
        if plainly_damaged and not any(np.array_equal(mean, each) for each in expected.values()):
            raise WrongError("damage changed the predictions")
        for method in ("predictive", "gaussian"):
            _checked(model.predict_interval(_new_rows(), method=method), "an interval")
        for change in (lambda: model.update(_new_rows()), lambda: model.merge(site)):
            try:
                change()
            except FiniteGPError:
                continue
        _checked(model.predict(_new_rows()), "a prediction after an update")
        again = path.with_suffix(".again")
        model.save(again)
        TableRegressor.load(again)
        again.unlink()
        return HARMLESS

    return use


def _fit_user(expected: Path) -> Callable[[Path, bool], str]:
    from finitegp.persistence import load_fit

    known = json.loads(expected.read_text())

    def use(path: Path, plainly_damaged: bool) -> str:
        found = load_fit(path).predict(np.array(known["inputs"], dtype=np.float64))
        _checked([found.mean, found.std], "a prediction")
        if plainly_damaged and not np.allclose(found.mean, known["mean"]):
            raise WrongError("damage changed the predictions")
        return HARMLESS

    return use


def _statistics_user(fixtures: Fixtures) -> Callable[[Path, bool], str]:
    from finitegp import SiteStatistics, TableRegressor
    from finitegp.commands.info import _site_facts, _text

    model = TableRegressor.load(fixtures.sums)
    expected = model.merge(SiteStatistics.load(fixtures.statistics)).predict(_new_rows())

    def use(path: Path, plainly_damaged: bool) -> str:
        site = SiteStatistics.load(path)
        for value in _site_facts(site).values():
            _text(value)
        for refit_noise in (False, True):
            mean, std = model.merge(site, refit_noise=refit_noise).predict(_new_rows(), return_std=True)
            _checked([mean, std], "a prediction")
            if plainly_damaged and not refit_noise and not np.array_equal(mean, expected):
                raise WrongError("damage changed the predictions")
        return HARMLESS

    return use


def _checkpoint_user(fixtures: Fixtures) -> Callable[[Path, bool], str]:
    from finitegp.errors import DataError
    from finitegp.training import TrainingDivergedWarning

    expected = train_some(fixtures.checkpoint, epochs=3, resume=True)

    def use(path: Path, plainly_damaged: bool) -> str:
        with warnings.catch_warnings():
            # A run that diverges stops with an error, and goes back to where it began.
            warnings.simplefilter("error", TrainingDivergedWarning)
            try:
                weights = train_some(path, epochs=3, resume=True)
            except TrainingDivergedWarning as warning:
                raise DataError(str(warning)) from None
        _checked(weights, "a weight")
        if plainly_damaged and not bool((weights == expected).all()):
            raise WrongError("damage changed the run")
        return HARMLESS

    return use


def _fit_checkpoint_user() -> Callable[[Path, bool], str]:
    from finitegp import resumable

    expected = fit_few()

    def use(path: Path, plainly_damaged: bool) -> str:
        with resumable(path):
            found = _checked(fit_few(), "a prediction")
        if plainly_damaged and not bool((found == expected).all()):
            raise WrongError("damage changed the fit")
        return HARMLESS

    return use


def _spool_user(fixtures: Fixtures) -> Callable[[Path, bool], str]:
    from finitegp import open_spool

    expected = next(iter(open_spool(fixtures.spool)))

    def use(path: Path, plainly_damaged: bool) -> str:
        folder = _scratch() / "spool"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(fixtures.spool, folder)
        (folder / "manifest.json").write_bytes(path.read_bytes())
        source = open_spool(folder)
        found = next(iter(source))
        _ = source.measure(), source.column_names, source.fingerprint()
        if plainly_damaged and not bool((found.inputs == expected.inputs).all()):
            raise WrongError("damage changed the rows")
        return HARMLESS

    return use
