"""What the report measures, against independent computations: scores, calibration, importance, outliers, facts."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import permutation_importance
from sklearn.linear_model import BayesianRidge

from finitegp import FeatureGP
from finitegp.metrics import score
from finitegp.report import gather_contents
from finitegp.report.evaluation import Predicted, as_reported_model, measure_model
from finitegp.report.held_out import (
    ExpectedRows,
    find_outliers,
    measure_calibration,
    measure_importance,
    residual_panel,
)


def test_scores_equal_independent_ones(contents, fit, training, held_out):
    prediction = fit.predict(held_out[0])
    mean, std = prediction.mean.numpy(), prediction.std.numpy()
    own = contents.scores[0]
    np.testing.assert_allclose(own.rmse, np.sqrt(np.mean((mean - held_out[1]) ** 2)), rtol=1e-12)
    np.testing.assert_allclose(own.mae, np.mean(np.abs(mean - held_out[1])), rtol=1e-12)
    densities = stats.norm.logpdf(held_out[1], mean, std)
    np.testing.assert_allclose(own.nlpd, -np.mean(densities), rtol=1e-12)
    np.testing.assert_allclose(own.nlpd_error, np.std(densities) / np.sqrt(250), rtol=1e-9)
    low, high = stats.norm.interval(0.9, mean, std)
    assert own.coverage[0.9] == np.mean((low <= held_out[1]) & (held_out[1] <= high))
    ridge = BayesianRidge().fit(training[0], training[1])
    linear = next(scores for scores in contents.scores if scores.name == "linear")
    # On standardised columns its weak priors differ a little.
    expected = np.sqrt(np.mean((ridge.predict(held_out[0]) - held_out[1]) ** 2))
    np.testing.assert_allclose(linear.rmse, expected, rtol=1e-3)
    baseline = next(scores for scores in contents.scores if scores.name == "mean")
    np.testing.assert_allclose(baseline.rmse, np.sqrt(np.mean((training[1].mean() - held_out[1]) ** 2)), rtol=1e-12)


def test_standard_error_of_the_rmse_is_what_repetition_shows():
    random = np.random.default_rng(0)
    found = [score(np.zeros(200), np.ones(200), random.normal(size=200)) for _ in range(400)]
    spread = np.std([scores.rmse for scores in found])
    # The spread of 400 repetitions is itself known to 4 %.
    np.testing.assert_allclose(np.mean([scores.rmse_error for scores in found]), spread, rtol=0.15)


def test_calibration_equals_an_independent_computation(seed):
    random = np.random.default_rng(seed)
    mean, std = random.normal(size=300), random.uniform(0.5, 2.0, size=300)
    targets = mean + 1.3 * std * random.normal(size=300)
    found = measure_calibration(Predicted(mean, std), targets)
    transform = np.array([stats.norm(m, s).cdf(t) for m, s, t in zip(mean, std, targets, strict=True)])
    counts = [np.sum((0.1 * k <= transform) & (transform < 0.1 * (k + 1))) for k in range(10)]
    assert found.bin_counts.tolist() == counts
    for level, observed in zip(found.nominal, found.observed, strict=True):
        low, high = stats.norm.interval(level, mean, std)
        assert observed == np.mean((low <= targets) & (targets <= high))
    assert found.bin_band == stats.binom.interval(0.95, 300, 0.1)
    low, high = stats.binom.interval(0.95, 300, 0.5)
    middle = int(np.argmin(np.abs(found.nominal - 0.5)))
    assert (found.nominal_low[middle], found.nominal_high[middle]) == (low / 300, high / 300)
    assert found.spread_rows.sum() == 300
    first = np.argsort(std)[: found.spread_rows[0]]
    spread = np.sqrt(np.mean(std[first] ** 2)) * np.sqrt(np.mean(((targets - mean) / std)[first] ** 2))
    np.testing.assert_allclose(found.observed_spread[0], spread, rtol=1e-9)
    assert np.all(np.diff(found.predicted_spread) > 0)


def test_bands_hold_calibrated_models_as_often_as_they_say():
    random = np.random.default_rng(0)
    inside, spread_inside = [], []
    for _ in range(100):
        std = random.uniform(0.5, 2.0, size=300)
        found = measure_calibration(Predicted(np.zeros(300), std), std * random.normal(size=300))
        inside += list((found.bin_band[0] <= found.bin_counts) & (found.bin_counts <= found.bin_band[1]))
        spread_inside += list(
            (found.spread_low <= found.observed_spread) & (found.observed_spread <= found.spread_high)
        )
    # A thousand bins each; counts are whole numbers, so their band holds a little more than 95 %.
    assert 0.93 <= np.mean(inside) <= 0.98
    assert 0.93 <= np.mean(spread_inside) <= 0.97


class Wrapped(RegressorMixin, BaseEstimator):
    """A function as a fitted estimator of scikit-learn."""

    def __init__(self, function=None):
        self.function = function

    def fit(self, inputs, targets):
        return self

    def predict(self, inputs):
        return self.function(inputs)

    def __sklearn_is_fitted__(self):
        return True


def test_importance_agrees_with_scikit_learn(fit, held_out):
    reported = as_reported_model(fit)
    groups = {name: [number] for number, name in enumerate("abc")}
    found = measure_importance(reported.predict_mean, *held_out, groups, repeats=20, seed=0)
    peer = permutation_importance(
        Wrapped(reported.predict_mean),
        *held_out,
        scoring="neg_root_mean_squared_error",
        n_repeats=20,
        random_state=0,
    )
    ours = {entry.name: entry for entry in found.entries}
    for number, name in enumerate("abc"):
        # Both are means of twenty random shuffles.
        error = np.hypot(peer.importances_std[number], ours[name].spread) / np.sqrt(20)
        assert abs(ours[name].increase - peer.importances_mean[number]) < 4 * error + 1e-9
    assert [entry.name for entry in found.entries][:2] == ["a", "c"]


def test_columns_of_a_group_are_shuffled_together():
    random = np.random.default_rng(0)
    codes = random.integers(0, 3, size=200)
    one_hot = np.eye(3)[codes]
    seen = []

    def predict(rows):
        seen.append(rows.sum(axis=1))
        return rows @ [1.0, 2.0, 3.0]

    found = measure_importance(predict, one_hot, codes + 1.0, {"text": [0, 1, 2]})
    assert found.base_rmse == 0.0
    assert found.entries[0].increase > 0.5
    assert all(np.all(total == 1.0) for total in seen)  # never a row with two categories or none


def test_importance_in_a_very_large_unit():
    inputs = np.random.default_rng(0).normal(size=(50, 1))
    small, large = (
        measure_importance(lambda rows, unit=unit: rows[:, 0] * unit, inputs, (inputs[:, 0] + 0.5) * unit, {"a": [0]})
        for unit in (1.0, 1e100)
    )
    np.testing.assert_allclose(large.entries[0].error, small.entries[0].error * 1e100, rtol=1e-12)


def test_importance_of_many_inputs_finds_the_one_that_matters():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 80))
    groups = {f"x{number}": [number] for number in range(80)}
    found = measure_importance(lambda rows: rows[:, 57], inputs, inputs[:, 57], groups, max_inputs=10)
    assert len(found.entries) == 10
    assert found.inputs_of == 80
    assert found.entries[0].name == "x57"


def test_mean_only_predictions_equal_full_ones(fit, held_out):
    reported = as_reported_model(fit)
    np.testing.assert_allclose(reported.predict_mean(held_out[0]), fit.predict(held_out[0]).mean.numpy(), rtol=1e-10)


def test_outliers_are_those_of_refits_without_the_row(training, contents, fit):
    outliers = contents.outliers
    assert outliers.source == "leave-one-out"
    assert outliers.rows == 500
    row = outliers.row_numbers[0]
    kept = np.delete(np.arange(500), row)
    scaled = fit.inputs_scaler.transform(training[0]), fit.target_scaler.transform(training[1])
    refit = fit.fitted.model.condition((scaled[0][kept], scaled[1][kept])).predict(scaled[0][[row]])
    mean = float(refit.mean) * float(fit.target_scaler.scale) + float(fit.target_scaler.mean)
    np.testing.assert_allclose(outliers.mean[0], mean, rtol=1e-8)
    np.testing.assert_allclose(outliers.std[0], float(refit.std) * float(fit.target_scaler.scale), rtol=1e-8)
    deviations = np.abs((outliers.targets - outliers.mean) / outliers.std)
    assert np.all(np.diff(deviations) <= 0)
    assert np.all(np.diff(outliers.standardized) >= 0)


def test_row_numbers_of_the_file_are_shown(fit, training, held_out):
    numbers = np.arange(500) * 7 + 3
    found = gather_contents(
        fit, *held_out, training_inputs=training[0], training_targets=training[1], training_row_numbers=numbers
    ).outliers
    assert all((number - 3) % 7 == 0 for number in found.row_numbers)
    assert training[1][(found.row_numbers[0] - 3) // 7] == found.targets[0]


def test_model_facts_equal_dense_ones(fit, training):
    facts = measure_model(as_reported_model(fit))
    posterior = fit.fitted.posterior
    gram, noise = posterior.statistics.gram.numpy(), posterior.noise_variance
    regularized = gram + noise * np.eye(len(gram))
    np.testing.assert_allclose(facts.effective_dimension, np.trace(np.linalg.solve(regularized, gram)), rtol=1e-8)
    np.testing.assert_allclose(facts.condition_number, np.linalg.cond(regularized), rtol=1e-6)
    scaled = torch.from_numpy(fit.inputs_scaler.transform(training[0]))
    features = fit.fitted.model.feature_map(scaled).numpy()
    covariance = float(fit.target_scaler.scale) ** 2 * (features @ features.T + noise * np.eye(500))
    density = stats.multivariate_normal(np.full(500, float(fit.target_scaler.mean)), covariance).logpdf(training[1])
    np.testing.assert_allclose(facts.nlml, -density / 500, rtol=1e-9)


def test_dead_features_are_counted():
    class HalfDead(torch.nn.Module):
        num_features = 4

        def forward(self, inputs):
            return torch.cat([inputs, 0.0 * inputs], dim=1)

    fitted = FeatureGP(HalfDead(), 0.1).condition((np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)))
    assert measure_model(as_reported_model(fitted)).dead_features == 2


def test_residual_panels_of_numbers_and_categories():
    random = np.random.default_rng(0)
    numbers, residuals = random.normal(size=(1000, 1)), random.normal(size=1000)
    panel = residual_panel("age", numbers, ["age"], residuals)
    assert panel.categories is None
    assert len(panel.values) == 400
    order = np.argsort(numbers[:, 0])
    np.testing.assert_allclose(panel.local_mean[0], residuals[order[: -(-1000 // 12)]].mean(), rtol=1e-12)
    codes = random.integers(0, 3, size=1000)
    one_hot = np.eye(4)[codes]  # the fourth category does not occur
    panel = residual_panel("color", one_hot, ["color=red", "color=green", "color=blue", "color=grey"], residuals)
    assert panel.categories == ["red", "green", "blue"]
    np.testing.assert_allclose(panel.local_mean, [residuals[codes == k].mean() for k in range(3)], rtol=1e-12)
    panel = residual_panel("doors", codes[:, None].astype(float), ["doors"], residuals)
    assert panel.categories == ["0", "1", "2"]


def test_columns_that_belong_together_but_are_no_categories():
    """The parts of a date, or a number with a column that says where it was missing."""
    random = np.random.default_rng(0)
    months, days = random.integers(1, 13, size=500), random.integers(1, 32, size=500)
    columns = np.column_stack([months, days]).astype(float)
    residuals = random.normal(size=500)
    panel = residual_panel("date", columns, ["date month", "date day"], residuals)
    assert (panel.name, panel.categories) == ("date day", None)
    inputs, names = np.column_stack([np.zeros(500), columns]), ["month", "day"]
    found = find_outliers(
        "held-out",
        ExpectedRows(inputs, residuals, Predicted(np.zeros(500), np.ones(500)), np.arange(500)),
        [("date", [1, 2], names)],
        rows_of=500,
    )
    row = found.row_numbers[0]
    assert found.values[0] == [f"{months[row]}, {days[row]}"]
