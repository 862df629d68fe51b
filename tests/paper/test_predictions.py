"""Predictions stored beside the results: the same numbers again, whole files, files of the right cell."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from finitegp.error_shape import ErrorShape
from finitegp.errors import DataError
from finitegp.metrics import score
from paper import worker
from paper.cells import Cell
from paper.datasets import load_split
from paper.outcome import Outcome
from paper.predictions import (
    PAIRED_METRICS,
    PREDICTIONS,
    Predictions,
    load_predictions,
    paired_difference,
    save_predictions,
)
from paper.store import ResultStore

CELL = Cell("yacht", 0, "bayesridge")
MEAN, STD = np.array([1.0, 2.5, -3e6]), np.array([0.5, 1e-3, 7.0])
TARGETS = np.array([1.5, 2.5, -3e6 + 7.0])
GAUSSIAN = -0.5 * (np.array([1.0, 0.0, 1.0]) + math.log(2 * math.pi)) - np.log(STD)


@pytest.mark.parametrize(
    ("outcome", "degrees", "density"),
    [
        (Outcome(MEAN, STD, 1.0), None, GAUSSIAN),
        (
            Outcome(MEAN, STD, 1.0, error_shape=ErrorShape(3.5)),
            3.5,
            stats.t(3.5, MEAN, STD * math.sqrt(1.5 / 3.5)).logpdf(TARGETS),
        ),
        (Outcome(MEAN, STD, 1.0, log_density=-STD), None, -STD),
    ],
    ids=["Gaussian", "Student's t", "mixture"],
)
def test_round_trip(tmp_path, outcome, degrees, density):
    path = save_predictions(CELL, Predictions.of(outcome, TARGETS), tmp_path)
    assert path == tmp_path / PREDICTIONS / f"{CELL.digest}.npz"
    found = load_predictions(CELL, tmp_path)
    np.testing.assert_array_equal(found.mean, MEAN.astype(np.float32))
    np.testing.assert_array_equal(found.std, STD.astype(np.float32))
    np.testing.assert_array_equal(found.error, (TARGETS - MEAN).astype(np.float32))
    assert found.degrees_of_freedom == degrees
    np.testing.assert_allclose(found.log_density, density, rtol=1e-6)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_predictions(CELL, Predictions.of(Outcome(MEAN, STD, 1.0), TARGETS), tmp_path)
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space"):
        save_predictions(CELL, Predictions.of(Outcome(STD, STD, 1.0), TARGETS), tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_is_missing_damaged_or_foreign_is_refused(tmp_path):
    with pytest.raises(DataError, match="no predictions of yacht/0 bayesridge"):
        load_predictions(CELL, tmp_path)
    path = save_predictions(CELL, Predictions.of(Outcome(MEAN, STD, 1.0), TARGETS), tmp_path)
    other = Cell("yacht", 1, "bayesridge")
    path.with_name(f"{other.digest}.npz").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="another cell"):
        load_predictions(other, tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", b"half", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            load_predictions(CELL, tmp_path)
    two = np.float32([1, 2])
    np.savez_compressed(path, cell=np.array(CELL.key), mean=two, std=two)
    with pytest.raises(DataError, match="damaged"):
        load_predictions(CELL, tmp_path)
    np.savez_compressed(path, cell=np.array(CELL.key), mean=two, std=two[:1], log_density=two, error=two)
    with pytest.raises(DataError, match="one float32 number per row"):
        load_predictions(CELL, tmp_path)
    np.savez_compressed(path, cell=np.array([{"a": 1}], dtype=object), mean=MEAN, std=STD)  # never unpickled
    with pytest.raises(DataError, match="damaged"):
        load_predictions(CELL, tmp_path)


@pytest.mark.parametrize("method", ["bayesridge", "auto"])
def test_a_worker_stores_what_its_scores_were_computed_from(uci_dir, tmp_path, method):
    settings = {"effort": "low", "fourier_features": 24} if method == "auto" else {}
    cell = Cell("yacht", 0, method, settings=settings)
    assert worker.main([json.dumps(cell.to_row()), str(tmp_path), str(uci_dir)]) == 0
    (row,) = ResultStore(tmp_path).rows()
    found = load_predictions(Cell.from_row(row), tmp_path)
    errors = found.mean - load_split("yacht", 0, uci_dir).test_targets
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(row["rmse"], rel=1e-5)
    assert np.abs(errors / found.std).max() == pytest.approx(row["largest_standardized_residual"], rel=1e-4)
    assert (found.degrees_of_freedom is None and found.crps is None) == ("gaussian_nlpd" not in row)
    assert -found.log_density.mean() == pytest.approx(row["nlpd"], rel=1e-5)


def test_paired_difference_is_that_of_the_rows(tmp_path):
    targets = np.random.default_rng(0).normal(size=500)
    other = Cell("yacht", 0, "lightgbm")
    # The means of the one are off by 0.1: its NLPD is higher by about 0.005, which single rows hide.
    for cell, mean in ((CELL, 0.1), (other, 0.0)):
        outcome = Outcome(np.full(500, mean), np.ones(500), 1.0)
        save_predictions(cell, Predictions.of(outcome, targets), tmp_path)
    expected = 0.5 * (targets - 0.1) ** 2 - 0.5 * targets**2
    found = paired_difference(CELL, other, tmp_path)
    assert found == pytest.approx((expected.mean(), stats.sem(expected)), rel=1e-4)
    assert paired_difference(other, CELL, tmp_path) == pytest.approx((-found.mean, found.standard_error))
    assert paired_difference(CELL, Cell("yacht", 0, "mlp"), tmp_path) is None
    with pytest.raises(ValueError, match="different test rows"):
        paired_difference(CELL, Cell("yacht", 1, "lightgbm"), tmp_path)


@pytest.mark.parametrize("shape", [ErrorShape(), ErrorShape(3.5)])
def test_contributions_of_rows_have_the_scores_as_their_means(shape):
    generator = np.random.default_rng(0)
    mean, targets = generator.normal(size=(2, 200))
    outcome = Outcome(mean, generator.uniform(0.5, 2.0, size=200), 1.0, error_shape=shape)
    found, scores = Predictions.of(outcome, targets), score(mean, outcome.std, targets, mixture=outcome.distribution)
    for metric in PAIRED_METRICS:
        assert found.contributions(metric).mean() == pytest.approx(getattr(scores, metric), rel=1e-5)
    # The standard error of the RMSE is that of the delta method.
    assert np.std(found.contributions("rmse")) / math.sqrt(200) == pytest.approx(scores.rmse_error, rel=1e-5)
    with pytest.raises(ValueError, match="metric must be one of"):
        found.contributions("mae")


def test_methods_of_the_paper_store_none(uci_dir, tmp_path):
    settings = {"optimizer": "adam", "learning_rate": 1e-3}
    cell = Cell("yacht", 0, "bsgd", "linear", 32, 1, 0, settings)
    assert worker.main([json.dumps(cell.to_row()), str(tmp_path), str(uci_dir)]) == 0
    assert not (tmp_path / PREDICTIONS).exists()
