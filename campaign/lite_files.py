"""Damaged and crafted models through ``finitegp.lite``: it refuses, or predicts what the library predicts."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .files import changed_case
from .fixtures import Fixtures, check_finite, new_rows, scratch
from .mutations import ODD_JSON, parsed, signed
from .outcomes import Case, WrongError

# Numbers that lite and library may differ by where a crafted file makes sums that nearly cancel.
_TOLERANCE = 1e-6


def lite_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """Files of every kind, changed as in :mod:`.files`; and scales of targets with odd numbers."""
    stored = Path(__file__).parent.parent / "tests" / "files"
    rows = {name: column.to_pylist() for name, column in zip("abc", new_rows().columns, strict=False)}
    kinds: list[tuple[str, Path, Any]] = [
        ("model", fixtures.model, rows),
        ("model without rows", fixtures.sums, rows),
        *((f"model on the scale {scale}", path, rows) for scale, path in fixtures.scaled.items()),
    ]
    for name in ("table-2", "regressor-2", "networks-2", "student-1", "kernel-2"):
        kinds.append((name, stored / f"{name}.finitegp", json.loads((stored / f"{name}.json").read_text())["inputs"]))
    for name, path, given in kinds:
        use = _user(path, given)
        for case in range(max(2, count // (len(kinds) + 2))):
            yield changed_case(f"lite, {name}", path, use, f"{seed}-lite-{name}-{case}")
    for case in range(max(2, 2 * count // (len(kinds) + 2))):
        scale, path = list(fixtures.scaled.items())[case % len(fixtures.scaled)]
        key = f"{seed}-scale-{case}"
        yield Case(f"lite, odd scale {scale}, {key}", partial(_odd_scale, path, rows, key))


def _user(original: Path, rows: Any) -> Callable[[Path, bool], None]:
    """Load and use a file with lite, and with the library where both take it."""
    from finitegp import lite

    expected = lite.load(original).predict(rows).mean

    def use(path: Path, plainly_damaged: bool) -> None:
        from finitegp.errors import DataError

        try:
            compare(path, rows, expected if plainly_damaged else None)
        except lite.LiteError as error:
            raise DataError(str(error)) from None

    return use


def compare(path: Path, rows: Any, expected: Any = None) -> None:
    """Predictions, intervals and updates of lite are finite; those of the library are the same, if it has any."""
    from finitegp import lite
    from finitegp.errors import FiniteGPError

    model = lite.load(path)
    found = model.predict(rows)
    check_finite([found.mean, found.std], "a prediction of lite")
    ends = {"predictive": found.interval(0.8), "gaussian": found.interval(0.8, "gaussian")}
    if np.isnan(list(ends.values())).any():  # on the scale of a logarithm, an end may be beyond all numbers
        raise WrongError("an interval of lite is no number")
    if expected is not None and not np.array_equal(found.mean, expected):
        raise WrongError("damage changed the predictions of lite")
    for change in (lambda: model.update(rows, found.mean), lambda: model.merge(model)):
        try:
            check_finite(change().predict(rows).mean, "a prediction of lite after an update")
        except lite.LiteError:
            continue
    try:
        theirs = _predicted_by_library(path, rows)
    except FiniteGPError:
        return
    mine = [found.mean, found.std, *ends["predictive"], *ends["gaussian"]]
    for name, one, other in zip(("mean", "std", "lower", "upper", "lower", "upper"), mine, theirs, strict=True):
        if not np.all((one == other) | (np.abs(one - other) <= _TOLERANCE * (np.abs(other) + np.abs(found.std)))):
            raise WrongError(f"{name}: lite has {np.ravel(one)[:3]}, the library {np.ravel(other)[:3]}")


def _predicted_by_library(path: Path, rows: Any) -> list[Any]:
    from finitegp import GPRegressor, TableRegressor
    from finitegp.persistence import load_fit

    kind = parsed(path.read_bytes())[1]["kind"]
    if kind == "fit":
        fit = load_fit(path)
        inputs = np.array(rows, dtype=np.float64)
        found = fit.predict(inputs)
        ends = [
            each.numpy() for method in ("predictive", "gaussian") for each in fit.interval(inputs, 0.8, method=method)
        ]
        return [found.mean.numpy(), found.std.numpy(), *ends]
    model = (TableRegressor if kind == "table" else GPRegressor).load(path)
    ends = [each for method in ("predictive", "gaussian") for each in model.predict_interval(rows, 0.8, method=method)]
    return [*model.predict(rows, return_std=True), *ends]


def _odd_scale(path: Path, rows: Any, key: str) -> None:
    from finitegp import lite
    from finitegp.errors import DataError

    chance = random.Random(key)
    outer, header, body = parsed(path.read_bytes())
    scale = header["table"]["target_scale"]
    odd = [*ODD_JSON, "log", "square root", "yeo-johnson", "identity", -3.0, 1e-9, 1e9, 2.5]
    for name in chance.sample(sorted(scale), chance.choice([1, 1, 2])):
        if name == "plausible" and chance.random() < 0.5:
            scale[name] = [chance.choice(odd), chance.choice(odd)]
        else:
            scale[name] = copy.deepcopy(chance.choice(odd))
    target = scratch() / "scaled.finitegp"
    target.write_bytes(signed(outer, header, body))
    try:
        compare(target, rows)
    except lite.LiteError as error:
        raise DataError(str(error)) from None
