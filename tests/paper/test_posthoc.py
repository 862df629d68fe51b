"""The treatment of peers: calibrated where the truth is known, the same left-out rows for all, no test rows."""

import math

import numpy as np
import pytest
from scipy import stats

from finitegp.errors import DataError
from paper.outcome import DatasetSplit, Outcome
from paper.peers import PEERS
from paper.peers.posthoc import fit_student, fit_without_folds, make_folds, with_treatment

DEGREES = 5.0


def true_scale(inputs):
    return 0.3 * np.exp(0.8 * inputs[:, 1])


def make_split(rows=4000, scale=true_scale, seed=0):
    """A line with errors of Student's t whose scale depends on the second column."""
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(2 * rows, 3))
    targets = 10.0 + 2.0 * inputs[:, 0] + scale(inputs) * generator.standard_t(DEGREES, size=2 * rows)
    return DatasetSplit("line", 0, inputs[:rows], targets[:rows], inputs[rows:], targets[rows:])


def nlpd(outcome, split):
    shape = outcome.error_shape.degrees_of_freedom
    if shape is None:
        return -stats.norm(outcome.mean, outcome.std).logpdf(split.test_targets).mean()
    scale = outcome.std * math.sqrt((shape - 2) / shape)
    return -stats.t(shape, outcome.mean, scale).logpdf(split.test_targets).mean()


def true_nlpd(split, scale=true_scale):
    mean = 10.0 + 2.0 * split.test_inputs[:, 0]
    return -stats.t(DEGREES, mean, scale(split.test_inputs)).logpdf(split.test_targets).mean()


def run(name, split, seed=0, **settings):
    return PEERS[name](split, seed=seed, settings=settings)


def test_density_and_intervals_are_those_of_the_truth():
    split = make_split()
    plain, treated = run("bayesridge", split), run("bayesridge+t", split)
    assert treated.details["scale"] == "learned"
    assert nlpd(treated, split) == pytest.approx(true_nlpd(split), abs=0.04)
    assert nlpd(plain, split) > true_nlpd(split) + 0.25
    # The deviations are those of the rows, not only right on average.
    deviation = true_scale(split.test_inputs) * math.sqrt(DEGREES / (DEGREES - 2))
    assert np.corrcoef(np.log(treated.std), np.log(deviation))[0, 1] > 0.95
    assert np.median(treated.std / deviation) == pytest.approx(1.0, abs=0.1)
    for level in (0.5, 0.9, 0.95):
        inside = np.abs(split.test_targets - treated.mean) <= treated.error_shape.deviations(level) * treated.std
        assert inside.mean() == pytest.approx(level, abs=0.025)  # three standard errors of 4000 rows
        # Quiet and noisy rows by themselves; one width that holds half of all rows holds 71 and 29 % of these.
        for rows in (split.test_inputs[:, 1] < 0, split.test_inputs[:, 1] > 0):
            assert inside[rows].mean() == pytest.approx(level, abs=0.05)


def test_constant_noise_is_left_constant():
    def scale(inputs):
        return np.full(len(inputs), 0.3)

    split = make_split(scale=scale)
    treated = run("bayesridge+t", split)
    assert np.std(np.log(treated.std)) < 0.1
    assert nlpd(treated, split) == pytest.approx(true_nlpd(split, scale), abs=0.02)


def test_own_deviations_that_are_right_are_kept():
    def oracle(split, *, seed, settings):
        mean, std = 10.0 + 2.0 * split.test_inputs[:, 0], 7.0 * true_scale(split.test_inputs)
        return Outcome(mean, std, 1.0, wall_seconds=1.0, details={"settings": {}})

    split = make_split()
    found = with_treatment(oracle)(split, seed=0, settings={})
    expected = true_scale(split.test_inputs) * math.sqrt(DEGREES / (DEGREES - 2))
    assert found.details["scale"] == "own"
    np.testing.assert_allclose(found.std, expected, rtol=0.1)
    assert nlpd(found, split) == pytest.approx(true_nlpd(split), abs=0.01)


def test_student_is_that_of_maximum_likelihood():
    errors = 3.0 * np.random.default_rng(1).standard_t(3.5, size=3000)
    degrees, _, scale = stats.t.fit(errors, floc=0.0)
    found = fit_student(errors)
    assert found.shape.degrees_of_freedom == pytest.approx(degrees, rel=0.01)
    assert found.deviation == pytest.approx(scale * math.sqrt(degrees / (degrees - 2)), rel=0.01)
    assert found.nlpd == pytest.approx(-stats.t(degrees, 0.0, scale).logpdf(errors).mean(), abs=1e-5)
    # Known factors of the deviations are taken out and counted in the density.
    logs = np.random.default_rng(2).normal(size=3000)
    other = fit_student(errors * np.exp(0.5 * logs), logs)
    assert other.deviation == pytest.approx(found.deviation, rel=1e-3)
    assert other.nlpd == pytest.approx(found.nlpd + 0.5 * logs.mean(), abs=1e-6)
    assert math.isfinite(fit_student(np.r_[np.zeros(80), np.ones(20)]).nlpd)


class Recorder:
    """A peer that keeps what it was given and predicts the mean target."""

    def __init__(self):
        self.splits = []

    def __call__(self, split, *, seed, settings):
        self.splits.append(split)
        mean = np.full(len(split.test_inputs), split.targets.mean())
        std = np.full(len(mean), split.targets.std())
        return Outcome(mean, std, 2.0, wall_seconds=3.0, details={"settings": dict(settings)})


def test_every_peer_gets_the_same_left_out_rows():
    split = make_split(rows=103)
    given = []
    for settings in ({}, {"trees": 3}):
        recorder = Recorder()
        found = with_treatment(recorder)(split, seed=4, settings=settings)
        given.append([part.inputs for part in recorder.splits])
        assert found.details["settings"] == settings | {"folds": 5}
        assert found.seconds >= 10.0  # all fits
        assert found.wall_seconds >= 15.0
    for one, other in zip(*given, strict=True):
        np.testing.assert_array_equal(one, other)
    # Real peers say in their records which rows were left out.
    rows = {run(name, split, seed=4).details["left_out_rows"] for name in ("bayesridge+t", "sklearn-gpr+t")}
    assert rows == {found.details["left_out_rows"]}
    assert rows != {run("bayesridge+t", split, seed=5).details["left_out_rows"]}


def test_every_row_is_left_out_once_and_its_target_is_kept_from_the_peer():
    split = make_split(rows=53)
    recorder, folds = Recorder(), make_folds(53, 5, seed=0)
    assert sorted(np.concatenate(folds)) == list(range(53))
    fit_without_folds(recorder, split, folds, seed=0, settings={})
    for part, fold in zip(recorder.splits, folds, strict=True):
        kept = np.setdiff1d(np.arange(53), fold)
        np.testing.assert_array_equal(part.inputs, split.inputs[kept])
        np.testing.assert_array_equal(part.targets, split.targets[kept])
        np.testing.assert_array_equal(part.test_inputs, np.concatenate([split.inputs[fold], split.test_inputs]))
        assert np.isnan(part.test_targets).all()


def test_a_peer_that_repeats_its_training_rows_gains_nothing():
    """Were a row's own target in the fit that predicts it, its residual and so the error bars would be zero."""

    def nearest(split, *, seed, settings):
        distances = np.abs(split.test_inputs[:, :1] - split.inputs[:, 0])
        mean = split.targets[distances.argmin(axis=1)]
        return Outcome(mean, np.full(len(mean), 1e-3), 1.0, details={"settings": {}})

    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(1200, 1)), generator.normal(size=1200)
    split = DatasetSplit("noise", 0, inputs[:600], targets[:600], inputs[600:], targets[600:])
    found = with_treatment(nearest)(split, seed=0, settings={})
    # Of two noises; the mean of five fits has a little less.
    assert found.details["left_out_rmse"] == pytest.approx(math.sqrt(2.0), rel=0.1)
    assert np.median(found.std) == pytest.approx(math.sqrt(2.0), rel=0.15)


def test_test_rows_are_used_for_nothing():
    split = make_split(rows=300)
    found = run("bayesridge+t", split)
    unknown = np.full(300, np.nan)
    again = run("bayesridge+t", DatasetSplit("line", 0, split.inputs, split.targets, split.test_inputs, unknown))
    # Not even their inputs: the prediction of a row does not depend on which others are asked for.
    part = DatasetSplit("line", 0, split.inputs, split.targets, split.test_inputs[:7], unknown[:7])
    few = run("bayesridge+t", part)
    np.testing.assert_array_equal(again.mean, found.mean)
    np.testing.assert_array_equal(again.std, found.std)
    np.testing.assert_allclose(few.mean, found.mean[:7], rtol=1e-12)
    np.testing.assert_allclose(few.std, found.std[:7], rtol=1e-12)
    assert found.error_shape == again.error_shape == few.error_shape


def test_a_mixture_becomes_one_distribution():
    settings = {"members": 2, "hidden": (16,), "epochs": 1, "min_steps": 60, "batch_size": 32}
    found = run("ensemble+t", make_split(rows=200), **settings)
    assert found.log_density is None
    assert np.isfinite(found.mean).all()
    assert (found.std > 0).all()
    assert len(found.details["fits"]) == 5
    assert found.details["settings"]["members"] == 2


def test_bad_settings():
    with pytest.raises(ValueError, match="folds must be at least 2"):
        run("bayesridge+t", make_split(rows=50), folds=1)
    with pytest.raises(DataError, match="5 folds need at least 10 training rows, but there are 9"):
        run("bayesridge+t", make_split(rows=9))
    with pytest.raises(ValueError, match="no setting 'treees'"):
        run("bayesridge+t", make_split(rows=50), treees=3)
