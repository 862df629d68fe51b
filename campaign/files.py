"""Damaged and crafted files: models, statistics of sites, checkpoints, spools."""

from __future__ import annotations

import json
import random
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from .fixtures import Fixtures, check_finite, fit_few, new_rows, scratch, train_some
from .mutations import damage, odd_entries, odd_header, odd_manifest, odd_tensors
from .outcomes import Case, WrongError


def file_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """A given number of cases over all kinds of files; half of them are plain damage, half have valid checksums."""
    kinds: list[tuple[str, Path, Callable[[Path, bool], None], int]] = [
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
        yield Case(f"bomb {name}", partial(_bomb, text))


def changed_case(name: str, path: Path, use: Callable[[Path, bool], None], key: str) -> Case:
    """A file that is changed, and then used."""
    chance = random.Random(key)
    if path.suffix == ".json":
        mutation = chance.choice([damage, odd_manifest])
    else:
        mutation = chance.choice([damage, damage, odd_header, odd_header, odd_tensors, odd_entries])

    def attempt() -> None:
        data = mutation(path.read_bytes(), chance)
        if data == path.read_bytes():
            return
        place = path.parent if path.suffix == ".json" else scratch()
        target = place / "damaged"
        target.write_bytes(data)
        try:
            use(target, mutation is damage)
        finally:
            target.unlink(missing_ok=True)

    return Case(f"{name}, {mutation.__name__}, {key}", attempt)


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


def _bomb(text: bytes) -> None:
    import resource

    from finitegp import TableRegressor

    target = scratch() / "bomb"
    target.write_bytes(struct.pack("<Q", len(text)) + text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        TableRegressor.load(target)
    finally:
        target.unlink()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if grown > 500.0:
            raise WrongError(f"took {grown:.0f} MB")


# What is done with them


def _model_user(fixtures: Fixtures) -> Callable[[Path, bool], None]:
    """Load, describe, predict, update, merge, save: as the commands do."""
    from finitegp import SiteStatistics, TableRegressor
    from finitegp.commands.console import columns_table, scores_table
    from finitegp.commands.models import _facts, _text
    from finitegp.errors import FiniteGPError

    site = SiteStatistics.load(fixtures.statistics)
    expected = {path: TableRegressor.load(path).predict(new_rows()) for path in (fixtures.model, fixtures.sums)}

    def use(path: Path, plainly_damaged: bool) -> None:
        model = TableRegressor.load(path)
        for value in _facts(model).values():
            _text(value)
        columns_table(model.columns_)
        scores = model.summary_.get("scores")
        if scores:
            scores_table("scores", scores)
        mean, std = model.predict(new_rows(), return_std=True)
        check_finite([mean, std], "a prediction")
        if plainly_damaged and not any(np.array_equal(mean, each) for each in expected.values()):
            raise WrongError("damage changed the predictions")
        for method in ("predictive", "gaussian"):
            check_finite(model.predict_interval(new_rows(), method=method), "an interval")
        for change in (lambda: model.update(new_rows()), lambda: model.merge(site)):
            try:
                change()
            except FiniteGPError:
                continue
        check_finite(model.predict(new_rows()), "a prediction after an update")
        again = path.with_suffix(".again")
        model.save(again)
        TableRegressor.load(again)
        again.unlink()

    return use


def _fit_user(expected: Path) -> Callable[[Path, bool], None]:
    from finitegp.persistence import load_fit

    known = json.loads(expected.read_text())

    def use(path: Path, plainly_damaged: bool) -> None:
        found = load_fit(path).predict(np.array(known["inputs"], dtype=np.float64))
        check_finite([found.mean, found.std], "a prediction")
        if plainly_damaged and not np.allclose(found.mean, known["mean"]):
            raise WrongError("damage changed the predictions")

    return use


def _statistics_user(fixtures: Fixtures) -> Callable[[Path, bool], None]:
    from finitegp import SiteStatistics, TableRegressor
    from finitegp.commands.models import _site_facts, _text

    model = TableRegressor.load(fixtures.sums)
    expected = model.merge(SiteStatistics.load(fixtures.statistics)).predict(new_rows())

    def use(path: Path, plainly_damaged: bool) -> None:
        site = SiteStatistics.load(path)
        for value in _site_facts(site).values():
            _text(value)
        for refit_noise in (False, True):
            mean, std = model.merge(site, refit_noise=refit_noise).predict(new_rows(), return_std=True)
            check_finite([mean, std], "a prediction")
            if plainly_damaged and not refit_noise and not np.array_equal(mean, expected):
                raise WrongError("damage changed the predictions")

    return use


def _checkpoint_user(fixtures: Fixtures) -> Callable[[Path, bool], None]:
    from finitegp.errors import DataError
    from finitegp.training import TrainingDivergedWarning

    expected = train_some(fixtures.checkpoint, epochs=3, resume=True)

    def use(path: Path, plainly_damaged: bool) -> None:
        with warnings.catch_warnings():
            # A run that diverges stops with an error, and goes back to where it began.
            warnings.simplefilter("error", TrainingDivergedWarning)
            try:
                weights = train_some(path, epochs=3, resume=True)
            except TrainingDivergedWarning as warning:
                raise DataError(str(warning)) from None
        check_finite(weights, "a weight")
        if plainly_damaged and not bool((weights == expected).all()):
            raise WrongError("damage changed the run")

    return use


def _fit_checkpoint_user() -> Callable[[Path, bool], None]:
    from finitegp import resumable

    expected = fit_few()

    def use(path: Path, plainly_damaged: bool) -> None:
        with resumable(path):
            found = check_finite(fit_few(), "a prediction")
        if plainly_damaged and not bool((found == expected).all()):
            raise WrongError("damage changed the fit")

    return use


def _spool_user(fixtures: Fixtures) -> Callable[[Path, bool], None]:
    from finitegp import open_spool

    expected = next(iter(open_spool(fixtures.spool)))

    def use(path: Path, plainly_damaged: bool) -> None:
        folder = scratch() / "spool"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(fixtures.spool, folder)
        (folder / "manifest.json").write_bytes(path.read_bytes())
        source = open_spool(folder)
        found = next(iter(source))
        _ = source.measure(), source.column_names, source.fingerprint()
        if plainly_damaged and not bool((found.inputs == expected.inputs).all()):
            raise WrongError("damage changed the rows")

    return use
