"""Scales of targets: derivatives, inverses, the choice, and scores from quantiles, against other computations."""

import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm

from finitegp import DataError
from finitegp.metrics import score
from finitegp.tables.learning import choose_scale
from finitegp.tables.scored_rows import COVERAGES, SCORED_COVERAGES, ScoredRows
from finitegp.tables.targets import SCALES, TargetScale


@pytest.mark.parametrize("name", SCALES)
def test_inverse_and_derivative(name):
    targets = np.random.default_rng(0).lognormal(1.0, 0.8, size=200)
    scale = TargetScale.fitted(name, targets)
    np.testing.assert_allclose(scale.inverse(scale.forward(targets)), targets, rtol=1e-9)
    step = 1e-6 * targets
    slope = (scale.forward(targets + step) - scale.forward(targets - step)) / (2 * step)
    np.testing.assert_allclose(scale.log_derivative(targets), np.log(slope), atol=1e-7)
    assert TargetScale.from_dict(scale.to_dict()) == scale
    assert (scale.inverse(np.array([-1e3])) >= 0.0).all()
    low, high = scale.plausible
    assert low <= targets.min() < targets.max() <= high
    assert np.isinf(high) == (name == "identity")


def test_what_is_plausible_of_targets_that_span_powers_of_ten():
    assert TargetScale.fitted("log", np.array([0.01, 3.0, 1000.0])).plausible == pytest.approx((1e-7, 1999.99))
    assert TargetScale.fitted("log", np.array([10.0, 12.0])).plausible == pytest.approx((100.0 / 12.0, 14.0))


@pytest.mark.parametrize(("name", "sign"), [("log", 1.0), ("yeo-johnson", 1.0), ("yeo-johnson", -1.0)])
def test_far_beyond_the_targets_of_the_fit_a_scale_is_linear(name, sign):
    """There an exponential of an extrapolation was powers of ten away, and with it the ends of intervals."""
    targets = sign * np.random.default_rng(0).lognormal(1.0, 0.8, size=200)
    scale = TargetScale.fitted(name, targets)
    end = scale.plausible[1 if sign > 0 else 0]
    beyond = end + np.array([-1e-3, 0.0, 1.0, 10.0, 1e4]) * sign * np.ptp(targets)
    values = scale.forward(beyond)
    np.testing.assert_allclose(scale.inverse(values), beyond, rtol=1e-9)
    step = 1e-4
    slope = (scale.forward(beyond + step) - scale.forward(beyond - step)) / (2 * step)
    np.testing.assert_allclose(scale.log_derivative(beyond), np.log(slope), atol=1e-5)  # no step at the bend either
    np.testing.assert_allclose(scale.log_derivative(beyond[1:]), scale.log_derivative(beyond[1:2])[0], rtol=1e-12)
    unbent = TargetScale(scale.name, scale.shift, scale.unit, scale.power, scale.lowest)
    np.testing.assert_array_equal(scale.forward(targets), unbent.forward(targets))
    far = scale.forward(np.array([end])) + sign * 20.0
    assert abs(scale.inverse(far)[0]) < 1e-3 * abs(unbent.inverse(far)[0]) or name == "yeo-johnson"


def test_yeo_johnson_is_that_of_scipy():
    targets = np.random.default_rng(0).lognormal(size=300)
    scale = TargetScale.fitted("yeo-johnson", targets)
    expected = stats.yeojohnson((targets - scale.shift) / scale.unit, scale.power)
    np.testing.assert_allclose(scale.forward(targets), expected, rtol=1e-12)


def test_scales_that_cannot_be():
    with pytest.raises(DataError, match="'log' needs positive targets, but the smallest is 0"):
        TargetScale.fitted("log", np.array([0.0, 1.0]))
    with pytest.raises(DataError, match="'square root' needs targets that are not negative"):
        TargetScale.fitted("square root", np.array([-1.0, 1.0]))
    for stored in (3, {}, TargetScale().to_dict() | {"unit": 0.0}, TargetScale().to_dict() | {"name": "exp"}):
        with pytest.raises(DataError, match="makes no sense"):
            TargetScale.from_dict(stored)


@pytest.mark.parametrize(("name", "make"), [("log", np.exp), ("identity", lambda values: values)])
def test_the_scale_on_which_errors_are_alike_is_chosen(name, make):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(600, 2))
    targets = make(5.0 + inputs[:, 0] + 0.3 * random.normal(size=600))
    scale, densities = choose_scale(inputs, targets)
    assert scale.name == name
    assert max(densities, key=densities.get) == name or name == "identity"


@pytest.mark.parametrize("unit", [1.0, 1e9])
def test_sums_of_heavy_tailed_columns_keep_the_scale_on_which_they_are_sums(unit):
    """Trees hid that, and so did a ridge regression on targets far from one: errors were thousandfold."""
    random = np.random.default_rng(0)
    inputs = unit * random.lognormal(0.0, 2.0, size=(300, 3))
    targets = inputs.sum(axis=1) + 0.01 * unit * random.normal(size=300)
    assert choose_scale(inputs, targets)[0].name == "identity"


def test_a_dozen_rows_are_enough_to_see_that_errors_grow_with_the_target():
    """Below forty rows lifetimes from 2 to 9,000 were modelled as they are, and no 50 % interval held."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(15, 2))
    scale, _ = choose_scale(inputs, np.exp(2.0 * inputs[:, 0] + 0.3 * random.normal(size=15)))
    assert scale.name == "log"
    assert choose_scale(inputs, 5.0 + inputs[:, 0] + 0.3 * random.normal(size=15))[0].name == "identity"


def test_scores_from_quantiles_are_those_in_closed_form():
    random = np.random.default_rng(0)
    mean, std, targets = random.normal(size=400), random.uniform(0.5, 2.0, 400), random.normal(size=400)
    levels = np.array([*COVERAGES, *SCORED_COVERAGES])
    reach = std[:, None] * stats.norm.ppf(0.5 + levels / 2)
    found = ScoredRows(
        mean, std, stats.norm.logpdf(targets, mean, std), mean[:, None] - reach, mean[:, None] + reach, targets
    )
    ours, expected = found.scores().to_dict(), score(mean, std, targets).to_dict()
    assert ours.pop("crps") == pytest.approx(expected.pop("crps"), rel=1e-3)
    assert ours.pop("coverage") == expected.pop("coverage")
    assert ours.pop("name") == expected.pop("name")
    assert ours == pytest.approx(expected, rel=1e-9)


def test_moments_of_a_lognormal_from_its_quantiles():
    levels = 0.5 + np.array(COVERAGES) / 2
    lower, upper = (np.exp(0.5 * stats.norm.ppf(each))[None] for each in (1 - levels, levels))
    mean, std = TargetScale().moments(lower, upper)
    expected = stats.lognorm(0.5)
    assert mean[0] == pytest.approx(expected.mean(), rel=2e-3)
    assert std[0] == pytest.approx(expected.std(), rel=2e-2)


def test_a_distribution_too_wide_to_have_a_mean_is_predicted_by_its_median():
    """On a logarithmic scale the mean of a very wide distribution is that of its tail, far from any target."""
    narrow, wide = 0.1, 3.0
    reach = np.array([[float(norm.ppf(0.5 + 0.5 * level)) for level in COVERAGES]])
    lower, upper = (np.exp(np.array([[narrow], [wide]]) * sign * reach) for sign in (-1.0, 1.0))
    mean, std = TargetScale(plausible=(0.05, 20.0)).moments(lower, upper)
    assert mean[0] == pytest.approx(np.exp(0.5 * narrow**2), rel=1e-3)
    assert mean[1] < 1.5  # the median is 1, the mean exp(4.5)
    assert std[1] > 10 * std[0]


def test_a_whole_number_too_large_for_a_float_is_refused():
    stored = {"name": "log", "shift": 0, "unit": 1, "power": 1, "lowest": 0, "plausible": [None, None]}
    assert TargetScale.from_dict(stored).name == "log"
    with pytest.raises(ValueError, match="makes no sense"):
        TargetScale.from_dict(stored | {"shift": 10**400})
