"""The automatic fit: both paths on small problems whose truth is known."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from finitegp.automatic.calibration import LeftOutResiduals, calibrate
from finitegp.automatic.members import make_folds, train_members
from finitegp.automatic.residual_noise import _FLOORS, _choose_floor, fit_residual_noise

from finitegp.algorithms import exact_gradient
from finitegp.automatic import EFFORTS, AutoSettings, fit_auto, residual_noise
from finitegp.automatic.table import Table
from finitegp.conformal import ConformalScores
from finitegp.errors import DataError
from finitegp.features import LinearFeatures
from finitegp.metrics import score
from finitegp.model import FeatureGP
from finitegp.noise import InputNoise

QUICK = {
    "small_rows": 100,
    "members": 2,
    "hidden": [32, 32],
    "epochs": 3,
    "min_steps": 400,
    "noise_epochs": 15,
    "noise_min_steps": 1,
}


def make_rows(count, seed):
    """A smooth function with noise of deviation 0.05 to the left and 0.5 to the right, in units of a thousand."""
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(-2, 2, size=(count, 3)) * [1.0, 1e-5, 100.0]
    deviation = np.where(inputs[:, 0] < 0, 0.05, 0.5)
    mean = np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1] * 1e5
    return inputs, 5000 + 1000 * (mean + deviation * generator.normal(size=count)), 1000 * deviation, 5000 + 1000 * mean


@pytest.fixture(scope="module")
def network_fit():
    inputs, targets, _, _ = make_rows(2000, seed=0)
    return fit_auto(inputs, targets, settings=QUICK, seed=3)


def test_networks_find_mean_and_noise(network_fit):
    inputs, targets, deviation, mean = make_rows(1000, seed=1)
    prediction = network_fit.predict(inputs)
    assert network_fit.record["path"] == "networks"
    assert list(network_fit.record["history"]) == ["network 1", "network 2"]
    for epochs in network_fit.record["history"].values():
        assert epochs[-1]["noise_variance"] < 0.5 * epochs[0]["noise_variance"]
    error = np.sqrt(np.mean((prediction.mean.numpy() - mean) ** 2))
    assert error < 150  # of a function that varies by 900
    ratio = prediction.std.numpy() / deviation
    right = inputs[:, 0] > 0.1
    left = inputs[:, 0] < -0.1
    assert 0.8 < np.median(ratio[right]) < 1.25
    assert np.median(prediction.std.numpy()[left]) < 0.4 * np.median(prediction.std.numpy()[right])
    found = score(prediction.mean, prediction.std, torch.from_numpy(targets))
    assert 0.85 < found.coverage[0.9] < 0.95


def test_constant_noise_is_worse_on_noise_that_varies(network_fit):
    inputs, targets, _, _ = make_rows(2000, seed=0)
    constant = fit_auto(inputs, targets, settings=QUICK | {"input_noise": False}, seed=3)
    test_inputs, test_targets, _, _ = make_rows(1000, seed=1)
    nlpd = [
        score(p.mean, p.std, torch.from_numpy(test_targets)).nlpd
        for p in (fit.predict(test_inputs) for fit in (network_fit, constant))
    ]
    assert nlpd[0] < nlpd[1] - 0.1


def test_same_seed_same_fit_and_the_record_is_json(network_fit):
    inputs, targets, _, _ = make_rows(2000, seed=0)
    again = fit_auto(inputs, targets, settings=QUICK, seed=3)
    assert torch.equal(again.predict(inputs[:50]).mean, network_fit.predict(inputs[:50]).mean)
    assert torch.equal(again.predict(inputs[:50]).std, network_fit.predict(inputs[:50]).std)
    record = json.loads(json.dumps(network_fit.record))
    assert record["settings"]["members"] == 2
    assert record["variance_factor"] > 0


def test_closing_pass_takes_in_the_validation_rows(network_fit):
    assert network_fit.fitted.posterior.statistics.num_data == 2000


def test_out_of_fold_predictions_come_from_the_network_without_the_row():
    inputs, targets, _, _ = make_rows(300, seed=2)
    scaled = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    standard = (targets - targets.mean()) / targets.std()
    settings = AutoSettings(members=3, hidden=(8,), epochs=1, min_steps=20, weight_decays=(0.1, 0.01))
    table = Table(scaled, standard)
    members = train_members(table, table, settings, seed=0)
    assert sorted(members.left_out) == list(range(300))  # few rows: all are left out once
    folds = np.split(np.arange(300), 3)
    for member, fold in zip(members.fitted, folds, strict=True):
        rows = members.left_out[fold]
        np.testing.assert_allclose(member.predict(scaled[rows]).mean.numpy(), members.out_of_fold[fold], rtol=1e-9)
        assert member.posterior.statistics.num_data == 200
        # The network has not seen them: conditioning on the other rows gives the same posterior.
        others = np.delete(np.arange(300), rows)
        again = member.model.condition((scaled[others], standard[others]))
        torch.testing.assert_close(again.posterior.weight_mean, member.posterior.weight_mean)


def test_race_keeps_the_candidate_with_the_smaller_error_and_processes_do_not_matter():
    inputs, targets, _, _ = make_rows(400, seed=2)
    scaled = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    table = Table(scaled, (targets - targets.mean()) / targets.std())
    training, validation = table.take(np.arange(300)), table.take(np.arange(300, 400))
    # A decay of 50 leaves nothing of the network.
    settings = AutoSettings(members=2, hidden=(16,), epochs=5, min_steps=100, weight_decays=(50.0, 0.01))
    words = []
    members = train_members(training, validation, settings, seed=0, progress=words.append)
    assert members.race["weight_decay"] == 0.01
    assert members.race["validation_rmse"][1] < 0.7 * members.race["validation_rmse"][0]
    error = members.fitted[0].predict(validation.inputs).mean.numpy() - validation.targets
    np.testing.assert_allclose(np.sqrt(np.mean(error**2)), members.race["validation_rmse"][1], rtol=1e-9)
    assert words == [f"network {number} of 3" for number in (1, 2, 3)]
    again = train_members(training, validation, settings, seed=0, processes=2)
    np.testing.assert_array_equal(again.out_of_fold, members.out_of_fold)
    # Members differ: their seeds do.
    assert not torch.equal(*(member.model.feature_map(torch.ones(1, 3).double()) for member in members.fitted))


def test_calibration_finds_the_best_ratio_and_factor():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(400, 20))
    targets = 0.3 * inputs[:, 0] + generator.normal(size=400)
    table = Table(inputs, targets)
    training, held_out = table.take(np.arange(60)), table.take(np.arange(60, 400))
    # Far too little noise: the weights are fitted to chance and the error bars are far too narrow.
    model = FeatureGP(LinearFeatures(20), noise_variance=1e-3)
    before = model.condition(training.source()).predict(held_out.inputs)
    record = calibrate(model, training, held_out)
    after = model.condition(training.source()).predict(held_out.inputs)
    found = [score(p.mean, p.std, torch.from_numpy(held_out.targets)) for p in (before, after)]
    assert found[1].nlpd < 0.01 * found[0].nlpd
    assert found[1].rmse < found[0].rmse
    assert record["noise_ratio"] > 1
    np.testing.assert_allclose(found[1].nlpd, record["validation_nlpd"], rtol=1e-9)
    np.testing.assert_allclose(
        float(((torch.from_numpy(held_out.targets) - after.mean) ** 2 / after.variance).mean()), 1
    )
    # No common factor on the variances makes it better.
    for factor in (0.9, 1.1):
        other = score(after.mean, after.std * factor**0.5, torch.from_numpy(held_out.targets))
        assert other.nlpd > found[1].nlpd


def test_noise_networks_find_the_noise_and_judge_rows_they_did_not_see():
    generator = np.random.default_rng(0)
    inputs = generator.uniform(-2, 2, size=(3000, 1))
    deviation = np.where(inputs[:, 0] < 0, 0.1, 1.0)
    residuals = deviation * generator.normal(size=3000)
    settings = AutoSettings(noise_networks=2, noise_epochs=15, noise_min_steps=1)
    found = fit_residual_noise(inputs[:2500], residuals[:2500], inputs[2500:], residuals[2500:], settings, seed=0)
    assert found.depends_on_input
    clear = np.abs(inputs[:2500, 0]) > 0.2
    ratio = np.exp(0.5 * found.log_variance[clear]) / deviation[:2500][clear]
    assert 0.8 < np.median(ratio) < 1.25
    # A residual that no network saw but its own share's judge: raising one target must not change its own variance.
    changed = residuals[:2500].copy()
    row = int(np.argmin(inputs[:2500, 0]))
    changed[row] = 50.0
    again = fit_residual_noise(inputs[:2500], changed, inputs[2500:], residuals[2500:], settings, seed=0)
    raised = again.log_variance - np.log(again.noise.variance) - (found.log_variance - np.log(found.noise.variance))
    near = np.abs(inputs[:2500, 0] - inputs[row, 0]) < 0.02
    near[row] = False
    assert raised[row] < raised[near].max()


def test_floor_rises_where_it_costs_nothing_and_stays_low_where_rows_are_quiet():
    generator = np.random.default_rng(0)
    # Half of the rows have a thousandth of the deviation of the others.
    log_variance = np.where(np.arange(4000) % 2, 0.0, 2 * np.log(1e-3))
    squares = np.exp(log_variance) * generator.normal(size=4000) ** 2
    assert _choose_floor(log_variance, squares) < 1e-5
    # The same claim, but some of the quiet rows are far off: the floor must stop them.
    squares[::40] = 1.0
    assert _choose_floor(log_variance, squares) > 1e-3
    constant = np.zeros(4000)
    assert _choose_floor(constant, generator.normal(size=4000) ** 2) == max(_FLOORS)


def test_left_out_residuals_widen_error_bars_that_held_out_rows_call_too_wide():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(300, 2))
    table = Table(inputs, inputs[:, 0] + 0.1 * generator.normal(size=300))
    training, held_out = table.take(np.arange(200)), table.take(np.arange(200, 300))
    plain = FeatureGP(LinearFeatures(2), noise_variance=0.01)
    alone = calibrate(plain, training, held_out)
    line = training.inputs, training.targets
    weights = np.linalg.lstsq(*line, rcond=None)[0]
    # Single networks that are as good as the whole model.
    residuals = np.stack([held_out.inputs @ weights - held_out.targets] * 2)
    quiet = LeftOutResiduals(
        squares=np.mean(residuals**2) * generator.normal(size=5000) ** 2,
        log_variance=np.full(5000, np.log(0.01)),
        held_out_squares=residuals**2,
        held_out_log_variance=np.full(100, np.log(0.01)),
    )
    with_quiet = calibrate(FeatureGP(LinearFeatures(2), noise_variance=0.01), training, held_out, quiet)
    assert 0.8 < with_quiet["variance_factor"] / alone["variance_factor"] < 1.25
    outliers = quiet.squares.copy()
    outliers[:5] = 100.0  # five rows of 5000 at a hundred deviations
    loud = replace(quiet, squares=outliers)
    with_loud = calibrate(FeatureGP(LinearFeatures(2), noise_variance=0.01), training, held_out, loud)
    # They make the mean square about eleven times as large; half way to that is its root.
    ratio = with_loud["variance_factor"] / with_quiet["variance_factor"]
    expected = np.mean(np.concatenate([residuals[0] ** 2, outliers])) / np.mean(
        np.concatenate([residuals[0] ** 2, quiet.squares])
    )
    assert 0.8 * expected**0.5 < ratio < 1.25 * expected**0.5
    assert expected > 5


def test_conformal_intervals_cover_where_the_gaussian_does_not():
    generator = np.random.default_rng(0)
    inputs = generator.uniform(-2, 2, size=(3000, 1))
    # Heavy tails: most rows lie far inside the Gaussian interval.
    targets = np.sin(2 * inputs[:, 0]) + 0.1 * generator.standard_t(2.1, size=3000)
    for rows, source in ((400, "leave-one-out"), (2000, "validation rows")):
        settings = QUICK | {"small_rows": 500, "input_noise": False}
        fit = fit_auto(inputs[:rows], targets[:rows], effort="low", settings=settings, seed=0)
        assert fit.record["conformal"]["source"] == source
        covered = {}
        for method in ("gaussian", "conformal"):
            lower, upper = fit.interval(inputs[2000:], 0.5, method=method)
            inside = (lower.numpy() < targets[2000:]) & (targets[2000:] < upper.numpy())
            covered[method] = inside.mean()
        assert abs(covered["conformal"] - 0.5) < 0.08 < covered["gaussian"] - 0.5
    with pytest.raises(ValueError, match="method must be"):
        fit.interval(inputs, method="exact")
    with pytest.raises(ValueError, match=r"cannot be promised by 200 left-out rows: ask for at most 0\.995"):
        fit.interval(inputs, 0.999, method="conformal")


def test_conformal_multiplier_has_its_rank_also_when_scores_are_thinned():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20_000.0))
    record = ConformalScores.of(-scores, "validation rows")
    assert len(record.scores) == 1000
    assert record.rows == 19_999
    for coverage in (0.1, 0.5, 0.9, 0.99):
        found = record.at(coverage)
        assert 20_000 * coverage <= found <= 20_000 * coverage + 30  # one thinned rank is 20 scores


def test_folds_are_disjoint_and_leave_most_rows():
    for rows in (1000, 10_000, 100_000):
        folds = make_folds(rows, AutoSettings(), seed=5)
        joined = np.concatenate(folds)
        assert len(np.unique(joined)) == len(joined) >= min(rows, 10_000)
        assert max(map(len, folds)) <= max(0.1 * rows, 2000)


def test_small_tables_use_a_kernel_and_extrapolate_with_wide_error_bars():
    inputs, targets, _, _ = make_rows(150, seed=0)
    fit = fit_auto(inputs, targets, effort="low", seed=0)
    assert fit.record["path"] == "kernel"
    test_inputs, _, _, test_mean = make_rows(300, seed=1)
    assert np.sqrt(np.mean((fit.predict(test_inputs).mean.numpy() - test_mean) ** 2)) < 250
    far = fit.predict(inputs[:1] + np.array([30.0, 0.0, 0.0]))
    assert float(far.std) > 2 * float(fit.predict(inputs[:1]).std)


def test_duplicated_rows_and_constant_columns_do_no_harm():
    inputs, targets, _, _ = make_rows(60, seed=0)
    repeated = np.column_stack([np.repeat(inputs, 4, axis=0), np.ones(240)])
    for settings in ({}, QUICK):
        fit = fit_auto(repeated, np.repeat(targets, 4), effort="low", settings=settings, seed=0)
        prediction = fit.predict(repeated)
        assert bool(torch.isfinite(prediction.mean).all())
        assert float(prediction.std.min()) > 1e-3  # of targets with deviation 900


def test_bad_arguments_are_named():
    inputs, targets, _, _ = make_rows(50, seed=0)
    with pytest.raises(ValueError, match=r"effort must be one of \['low', 'medium', 'high'\], but is 'max'"):
        fit_auto(inputs, targets, effort="max")
    with pytest.raises(ValueError, match="no setting 'member'"):
        fit_auto(inputs, targets, settings={"member": 3})
    with pytest.raises(ValueError, match="members must be at least 2 with input_noise"):
        fit_auto(inputs, targets, settings={"members": 1})
    with pytest.raises(ValueError, match="validation_fraction must lie between"):
        AutoSettings(validation_fraction=0.7)
    with pytest.raises(DataError, match=r"All targets are 1\.0"):
        fit_auto(inputs, np.ones(50))
    with pytest.raises(DataError, match="At least 5 rows"):
        fit_auto(inputs[:4], targets[:4])
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
    settings = QUICK | {"small_rows": 100, "min_steps": 300}
    fit = fit_auto(inputs, wrong, counts=counts, settings=settings, seed=3)
    kept = np.arange(600) % 2 == 1
    prediction = fit.predict(inputs[kept])
    assert np.sqrt(np.mean((prediction.mean.numpy() - targets[kept]) ** 2)) < 600  # of a deviation of 900, shift 3000
    assert abs(float(np.mean(prediction.mean.numpy() - targets[kept]))) < 150
    assert fit.fitted.posterior.statistics.num_data == pytest.approx(counts.sum())


def test_counts_are_repetitions_on_small_tables():
    inputs, targets, _, _ = make_rows(150, seed=0)
    counts = np.arange(150) % 3 + 1
    fit = fit_auto(inputs, targets, counts=counts, effort="low", noise="constant")
    repeated, values = np.repeat(inputs, counts, axis=0), np.repeat(targets, counts)
    np.testing.assert_allclose(fit.inputs_scaler.mean, repeated.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(fit.inputs_scaler.scale, repeated.std(axis=0), rtol=1e-9)
    np.testing.assert_allclose(fit.target_scaler.scale, values.std(), rtol=1e-9)
    data = fit.inputs_scaler.transform(repeated), fit.target_scaler.transform(values)
    model = fit.fitted.model
    posterior = model.condition(data)
    assert fit.fitted.posterior.statistics.num_data == posterior.posterior.statistics.num_data == 300
    torch.testing.assert_close(fit.fitted.posterior.statistics.gram, posterior.posterior.statistics.gram)
    left_out = posterior.leave_one_out(data)
    nlpd = -float(left_out.log_density(torch.from_numpy(data[1])).mean())
    assert fit.record["leave_one_out_nlpd"]["rbf"] == pytest.approx(nlpd, rel=1e-4)
    # The gradient of the repeated rows vanishes too: the noise was fitted to 300 rows, not to 150.
    model = copy.deepcopy(model).requires_grad_(True)
    exact_gradient(model, data)
    assert abs(float(model.noise.log_variance.grad)) / 300 < 1e-4
    exact_gradient(model, (data[0][::2], data[1][::2]))
    assert abs(float(model.noise.log_variance.grad)) / 150 > 1e-3


def test_noise_that_depends_on_the_input_on_small_tables():
    inputs, targets, _, _ = make_rows(150, seed=0)
    constant, varying = (fit_auto(inputs, targets, effort="low", noise=noise) for noise in ("constant", "input"))
    left, right = (varying.predict([[x, 0.0, 0.0]]).noise_variance.sqrt().item() for x in (-1.5, 1.5))
    assert left < 0.5 * right
    test_inputs, test_targets, _, _ = make_rows(500, seed=1)
    nlpd = [
        score(p.mean, p.std, torch.from_numpy(test_targets)).nlpd
        for p in (fit.predict(test_inputs) for fit in (varying, constant))
    ]
    assert nlpd[0] < nlpd[1] - 0.05
    with pytest.raises(ValueError, match="noise must be 'auto', 'constant' or 'input'"):
        fit_auto(inputs, targets, noise="none")


def test_prior_mean_of_zero():
    inputs, targets, _, _ = make_rows(60, seed=0)
    fit = fit_auto(inputs, targets, effort="low", center=False)
    assert float(fit.target_scaler.mean) == 0.0
    assert float(fit.target_scaler.scale) == pytest.approx(np.sqrt(np.mean(targets**2)))
    assert np.corrcoef(fit.predict(inputs).mean.numpy(), targets)[0, 1] > 0.85


def test_small_tables_take_input_noise_only_where_it_is_much_better():
    generator = np.random.default_rng(0)
    inputs = generator.uniform(-2, 2, size=(150, 2))
    steep = np.exp(2.0 * inputs[:, 0])  # a noise deviation from 0.02 to 55
    for deviation, expected in ((0.1 * np.ones(150), False), (steep, True)):
        targets = np.sin(inputs[:, 1]) + deviation * generator.normal(size=150)
        fit = fit_auto(inputs, targets, settings={"kernels": ["rbf"], "fourier_features": 64}, seed=0)
        assert isinstance(fit.fitted.model.noise, InputNoise) == expected
        assert set(fit.record["leave_one_out_nlpd"]) == {"rbf", "rbf, input noise"}
    # Asked for constant noise, nothing else is tried.
    fit = fit_auto(inputs, targets, noise="constant", settings={"kernels": ["rbf"], "fourier_features": 64}, seed=0)
    assert set(fit.record["leave_one_out_nlpd"]) == {"rbf"}


def test_written_out_gradient_of_the_noise_network_is_that_of_autograd() -> None:
    network = residual_noise._make_network(3, 8, seed=0).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        network[1].weight.normal_(generator=generator)  # it starts at zero, where most gradients are zero
    inputs = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    squares = torch.rand(20, generator=generator, dtype=torch.float64)
    log_variance = network(inputs)[:, 0]
    (0.5 * (log_variance + squares * torch.exp(-log_variance)).mean()).backward()
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    residual_noise._set_gradients(network, inputs, squares)
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert float(gradient.abs().max()) > 0.0
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-12)
