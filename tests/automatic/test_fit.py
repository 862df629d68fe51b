"""The automatic fit: both paths on small problems whose truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from finitegp.automatic import EFFORTS, AutoSettings, fit_auto, scaled_fit, small_table
from finitegp.automatic.fit import fit_source
from finitegp.automatic.kernels import condition_kernel
from finitegp.automatic.table import draw_sample
from finitegp.data import ArraySource, IterableSource
from finitegp.errors import DataError
from finitegp.metrics import score

QUICK = {
    "small_rows": 100,
    "most_rows_for_both": 0,
    "members": 2,
    "hidden": [32, 32],
    "steps": 400,
    "fourier_features": 64,
    "noise_steps": 150,
}


def make_rows(count, seed):
    """A smooth function with noise of deviation 0.05 to the left and 0.5 to the right, in units of a thousand."""
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(-2, 2, size=(count, 3)) * [1.0, 1e-5, 100.0]
    deviation = np.where(inputs[:, 0] < 0, 0.05, 0.5)
    mean = np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1] * 1e5
    return inputs, 5000 + 1000 * (mean + deviation * generator.normal(size=count)), 1000 * deviation, 5000 + 1000 * mean


def nlpd_of(fit, inputs, targets):
    found = fit.predict(inputs)
    return score(found.mean, found.std, torch.from_numpy(targets), mixture=found.mixture).nlpd


@pytest.fixture(scope="module")
def network_fit():
    inputs, targets, _, _ = make_rows(2000, seed=0)
    return fit_auto(inputs, targets, settings=QUICK, seed=3)


def test_networks_find_mean_and_noise(network_fit):
    inputs, targets, deviation, mean = make_rows(1000, seed=1)
    prediction = network_fit.predict(inputs)
    assert network_fit.record["path"] == "networks"
    error = np.sqrt(np.mean((prediction.mean.numpy() - mean) ** 2))
    assert error < 150  # of a function that varies by 900
    ratio = prediction.std.numpy() / deviation
    right = inputs[:, 0] > 0.1
    left = inputs[:, 0] < -0.1
    assert 0.8 < np.median(ratio[right]) < 1.25
    assert np.median(prediction.std.numpy()[left]) < 0.4 * np.median(prediction.std.numpy()[right])
    found = score(prediction.mean, prediction.std, torch.from_numpy(targets), mixture=prediction.mixture)
    assert 0.85 < found.coverage[0.9] < 0.95


def test_constant_noise_is_worse_on_noise_that_varies(network_fit):
    inputs, targets, _, _ = make_rows(2000, seed=0)
    constant = fit_auto(inputs, targets, settings=QUICK, noise="constant", seed=3)
    new = make_rows(1000, seed=1)[:2]
    assert nlpd_of(network_fit, *new) < nlpd_of(constant, *new) - 0.1


def test_same_seed_same_fit_and_the_record_is_json(network_fit):
    inputs, targets, _, _ = make_rows(2000, seed=0)
    again = fit_auto(inputs, targets, settings=QUICK, seed=3)
    assert torch.equal(again.predict(inputs[:50]).mean, network_fit.predict(inputs[:50]).mean)
    assert torch.equal(again.predict(inputs[:50]).std, network_fit.predict(inputs[:50]).std)
    record = json.loads(json.dumps(network_fit.record))
    assert record["settings"]["members"] == 2
    assert record["rows"] == 2000
    assert record["seconds"] > 0


def test_closing_pass_takes_in_the_rows_set_aside(network_fit):
    assert network_fit.num_data == 2000
    assert not network_fit.keeps_rows


@pytest.mark.slow
def test_conformal_intervals_cover_where_the_gaussian_does_not():
    generator = np.random.default_rng(0)
    inputs = generator.uniform(-2, 2, size=(3000, 1))
    # Heavy tails: most rows lie far inside the Gaussian interval.
    targets = np.sin(2 * inputs[:, 0]) + 0.1 * generator.standard_t(2.1, size=3000)
    for rows, source in ((400, "out-of-fold rows"), (2000, "rows set aside")):
        settings = QUICK | {"small_rows": 500, "most_rows_for_both": 0, "input_noise": False}
        fit = fit_auto(inputs[:rows], targets[:rows], effort="low", settings=settings, seed=0)
        assert fit.conformal.source == source
        covered = {}
        for method in ("gaussian", "conformal"):
            lower, upper = fit.interval(inputs[2000:], 0.5, method=method)
            inside = (lower.numpy() < targets[2000:]) & (targets[2000:] < upper.numpy())
            covered[method] = inside.mean()
        assert abs(covered["conformal"] - 0.5) < 0.08 < covered["gaussian"] - 0.5
    with pytest.raises(ValueError, match=r"cannot be promised by 200 left-out rows: ask for at most 0\.995"):
        fit.interval(inputs, 0.999, method="conformal")


def test_small_tables_use_kernels_and_extrapolate_with_wide_error_bars():
    inputs, targets, _, _ = make_rows(150, seed=0)
    fit = fit_auto(inputs, targets, effort="low", seed=0)
    assert fit.record["path"] == "kernel"
    assert fit.keeps_rows
    assert fit.record["kernels"] == {component.name: component.weight for component in fit.components}
    test_inputs, _, _, test_mean = make_rows(300, seed=1)
    assert np.sqrt(np.mean((fit.predict(test_inputs).mean.numpy() - test_mean) ** 2)) < 250
    far = fit.predict(inputs[:1] + np.array([30.0, 0.0, 0.0]))
    assert float(far.std) > 2 * float(fit.predict(inputs[:1]).std)
    assert fit.outside(inputs[:1] + np.array([30.0, 0.0, 0.0]))[0, 0] > 5
    assert not fit.outside(inputs).any()


def test_duplicated_rows_and_constant_columns_do_no_harm():
    inputs, targets, _, _ = make_rows(60, seed=0)
    repeated = np.column_stack([np.repeat(inputs, 4, axis=0), np.ones(240)])
    for settings in ({}, QUICK | {"small_rows": 40, "most_rows_for_both": 0}):
        fit = fit_auto(repeated, np.repeat(targets, 4), effort="low", settings=settings, seed=0)
        prediction = fit.predict(repeated)
        assert bool(torch.isfinite(prediction.mean).all())
        assert float(prediction.std.min()) > 1e-3  # of targets with deviation 900


def test_bad_arguments_are_named():
    inputs, targets, _, _ = make_rows(50, seed=0)
    with pytest.raises(ValueError, match=r"effort must be one of \['low', 'medium', 'high'\], but is 'max'"):
        fit_auto(inputs, targets, effort="max")
    with pytest.raises(ValueError, match="noise must be 'auto', 'constant' or 'input'"):
        fit_auto(inputs, targets, noise="none")
    with pytest.raises(ValueError, match="no setting 'member'"):
        fit_auto(inputs, targets, settings={"member": 3})
    with pytest.raises(ValueError, match="members must be at least 2, but is 1"):
        fit_auto(inputs, targets, settings={"members": 1})
    with pytest.raises(ValueError, match="validation_fraction must lie between"):
        AutoSettings(validation_fraction=0.7)
    with pytest.raises(ValueError, match="fourier_features must be a multiple of four"):
        AutoSettings(fourier_features=30)
    with pytest.raises(DataError, match=r"All targets are 1\.0"):
        fit_auto(inputs, np.ones(50))
    with pytest.raises(DataError, match="At least 2 rows"):
        fit_auto(inputs[:1], targets[:1])
    with pytest.raises(DataError, match="one model per column"):
        fit_auto(inputs, np.stack([targets, targets], axis=1))
    inputs[7, 2] = np.nan
    with pytest.raises(DataError, match="row 7, column 2"):
        fit_auto(inputs, targets)


def test_efforts_are_ordered():
    assert EFFORTS["low"].members < EFFORTS["medium"].members < EFFORTS["high"].members


def test_counts_reach_every_part_of_the_network_fit():
    inputs, targets, _, _ = make_rows(600, seed=0)
    counts = np.where(np.arange(600) % 2, 3.0, 1e-6)  # every other row hardly counts ...
    wrong = np.where(np.arange(600) % 2, targets, targets + 3000)  # ... and is wrong
    fit = fit_auto(inputs, wrong, counts=counts, settings=QUICK, seed=3)
    kept = np.arange(600) % 2 == 1
    prediction = fit.predict(inputs[kept])
    assert np.sqrt(np.mean((prediction.mean.numpy() - targets[kept]) ** 2)) < 600  # of a deviation of 900, shift 3000
    assert abs(float(np.mean(prediction.mean.numpy() - targets[kept]))) < 150
    assert fit.num_data == pytest.approx(counts.sum())


def test_counts_are_repetitions_on_small_tables():
    inputs, targets, _, _ = make_rows(60, seed=0)
    counts = np.arange(60) % 3 + 1
    order = np.random.default_rng(0).permutation(120)
    repeated, values = np.repeat(inputs, counts, axis=0)[order], np.repeat(targets, counts)[order]
    counted = fit_auto(inputs, targets, counts=counts, effort="low", may_be_copies=False)
    again = fit_auto(repeated, values, effort="low", may_be_copies=False)
    for name in ("mean", "std"):
        assert torch.equal(getattr(counted.predict(inputs), name), getattr(again.predict(inputs), name))
    np.testing.assert_allclose(counted.inputs_scaler.mean, repeated.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(counted.inputs_scaler.scale, repeated.std(axis=0), rtol=1e-9)
    np.testing.assert_allclose(counted.target_scaler.scale, values.std(), rtol=1e-9)
    assert counted.num_data == 120
    # The posterior is that of the repeated rows.
    model = counted.fitted.model
    scaled = counted.inputs_scaler.transform(repeated), counted.target_scaler.transform(values)
    torch.testing.assert_close(counted.fitted.posterior.statistics.gram, model.statistics(scaled).gram)


def test_noise_that_depends_on_the_input_on_small_tables():
    inputs, targets, _, _ = make_rows(150, seed=0)
    constant, varying = (fit_auto(inputs, targets, effort="low", noise=noise) for noise in ("constant", "input"))
    assert constant.spread is None
    assert varying.spread is not None

    def width(x):
        lower, upper = varying.interval([[x, 0.0, 0.0]], 0.9)
        return float(upper - lower)

    assert width(-1.5) < 0.6 * width(1.5)
    new = make_rows(500, seed=1)[:2]
    assert nlpd_of(varying, *new) < nlpd_of(constant, *new) - 0.05


def test_noise_that_is_the_same_everywhere_is_found_to_be_so():
    generator = np.random.default_rng(0)
    inputs = generator.uniform(-2, 2, size=(150, 2))
    fit = fit_auto(inputs, np.sin(inputs[:, 1]) + 0.1 * generator.normal(size=150), effort="low")
    lower, upper = fit.interval(inputs, 0.9)
    width = (upper - lower).numpy()
    assert np.quantile(width, 0.95) < 1.7 * np.quantile(width, 0.05)


def test_prior_mean_of_zero():
    inputs, targets, _, _ = make_rows(60, seed=0)
    fit = fit_auto(inputs, targets, effort="low", center=False)
    assert float(fit.target_scaler.mean) == 0.0
    assert float(fit.target_scaler.scale) == pytest.approx(np.sqrt(np.mean(targets**2)))
    assert np.corrcoef(fit.predict(inputs).mean.numpy(), targets)[0, 1] > 0.85


def test_any_source_gives_the_same_fit():
    inputs, targets, _, _ = make_rows(80, seed=0)
    arrays = fit_auto(inputs, targets, effort="low")
    parts = [(inputs[start : start + 30], targets[start : start + 30]) for start in (0, 30, 60)]
    again = fit_source(IterableSource(parts), effort="low")
    assert torch.equal(arrays.predict(inputs).mean, again.predict(inputs).mean)


def test_a_sample_is_of_all_rows_alike():
    inputs = np.arange(1000.0)[:, None]
    shares = np.zeros(1000)
    for seed in range(60):
        sample = draw_sample(ArraySource(inputs, inputs[:, 0]), 1000, 100, seed=seed)
        assert len(sample) == len(np.unique(sample.targets)) == 100
        shares[sample.targets.astype(int)] += 1
    assert np.abs(shares.reshape(10, 100).sum(axis=1) - 600).max() < 5 * np.sqrt(600 * 0.9)
    everything = draw_sample(ArraySource(inputs, inputs[:, 0]), 1000, 5000, seed=0)
    np.testing.assert_array_equal(np.sort(everything.targets), inputs[:, 0])


def test_a_mistyped_value_does_not_take_a_column_away():
    """One value a million times too large set the unit of its column: no other row differed from any other there."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(320, 2))
    targets = inputs[:, 0] * inputs[:, 1] + 0.1 * random.normal(size=320)
    inputs[3, 0] *= 1e6
    fit = fit_auto(inputs[:120], targets[:120], effort="low", settings={"input_noise": False})
    errors = fit.predict(inputs[120:]).mean.numpy() - targets[120:]
    assert np.sqrt(np.mean(np.square(errors))) < 0.4  # of targets of deviation one, which is what it was
    assert fit.inputs_scaler.scale[0] == pytest.approx(inputs[4:120, 0].std(), rel=0.1)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_few_rows_know_little_of_their_own_deviation(rows):
    """90 % intervals held 68 to 78 % of further rows."""
    held = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        inputs, targets = random.normal(size=(200, 2)), random.normal(size=200)
        fit = fit_auto(inputs[:rows], targets[:rows], effort="low")
        lower, upper = fit.interval(inputs[rows:], 0.9)
        held.append(np.mean((lower.numpy() <= targets[rows:]) & (targets[rows:] <= upper.numpy())))
    assert np.mean(held) > 0.8


def test_conformal_scores_count_rows_as_often_as_they_came():
    """Values on a grid, most rows in its middle: of the different rows alone, most lie far out."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 3, size=(3000, 1)).astype(float)
    targets, new = np.round(10.0 * random.standard_t(3.0, size=(2, 3000)))
    fit = fit_auto(inputs, targets, effort="low", may_be_copies=False)
    scores = fit.predict(inputs).normal_scores(torch.from_numpy(new)).abs().numpy()
    assert np.mean(scores <= fit.conformal.at(0.9)) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("winner", ["kernel", "networks"])
def test_between_both_left_out_rows_choose_and_only_kernels_that_win_are_conditioned(winner, monkeypatch):
    """Posteriors of thousands of rows take as long as all that is needed to judge them."""
    inputs, targets, _, _ = make_rows(260, seed=0)
    conditioned = []

    def condition(*arguments, **options):
        conditioned.append(arguments)
        return condition_kernel(*arguments, **options)

    monkeypatch.setattr(small_table, "condition_kernel", condition)
    worse = {"hidden": [2], "steps": 1, "max_steps": 1} if winner == "kernel" else {}
    if winner == "networks":
        judge = scaled_fit.judge_small_table
        monkeypatch.setattr(
            scaled_fit,
            "judge_small_table",
            lambda *rows, **options: judge(*rows, **options)._replace(left_out_nlpd=9.0),
        )
    fit = fit_auto(inputs, targets, settings=QUICK | {"most_rows_for_both": 300, "trees": 0} | worse, seed=0)
    assert fit.record["path"] == winner
    assert min(fit.record["nlpd_of"], key=fit.record["nlpd_of"].get) == winner
    assert len(conditioned) == (len(fit.record["kernels"]) if winner == "kernel" else 0)
