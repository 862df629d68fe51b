"""Skewed errors: two kinds with different centres, chosen where left-out rows gain by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from finitegp.automatic import fit_auto
from finitegp.automatic.fitted_shapes import SkewedErrors, choose_skew, fit_skew
from finitegp.error_shape import with_tails
from finitegp.lite import load
from finitegp.persistence import load_fit, save_fit
from finitegp.predictive import StudentMixture


def made(count, seed, columns=2):
    """Waves with exponential errors, whose deviation depends on the row."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, columns))
    deviations = 0.1 + 0.6 / (1.0 + np.exp(-4.0 * inputs[:, 1]))
    return inputs, np.sin(2.0 * inputs[:, 0]) + deviations * (random.exponential(size=count) - 1.0)


@pytest.fixture(scope="module")
def skewed():
    return fit_auto(*made(300, 0), effort="low")


def mixture(rows, seed=0):
    random = np.random.default_rng(seed)
    scales = np.exp(random.normal(size=(2, rows)))
    return StudentMixture(np.array([0.4, 0.6]), random.normal(size=(2, rows)), scales, np.array([[5.0], [np.inf]]))


def test_both_kinds_together_have_the_mean_of_one():
    one, skew = mixture(3), SkewedErrors(0.3, 1.4, 0.5, 1.2)
    both = skew.of(one)
    np.testing.assert_allclose(both.mean, one.mean)
    for row in range(3):
        alone = both.take(np.array([row]))

        def density(value, power, alone=alone):
            return value**power * float(np.exp(alone.log_density(np.array([value])))[0])

        ends = [float(alone.quantile(level)[0]) for level in (1e-4, 0.5, 1.0 - 1e-4)]
        moments = [integrate.quad(density, -2000, 2000, args=(power,), points=ends, limit=500)[0] for power in range(3)]
        assert moments[0] == pytest.approx(1.0, abs=1e-6)
        assert moments[1] == pytest.approx(both.mean[row], abs=1e-4)
        assert moments[2] - moments[1] ** 2 == pytest.approx(both.variance[row], rel=1e-2)


def test_the_search_ends_where_no_other_place_is_better():
    random = np.random.default_rng(1)
    one, counts = mixture(400), random.uniform(0.5, 2.0, size=400)
    targets = one.mean + 0.5 * np.sqrt(one.variance) * (random.gamma(2.0, size=400) - 2.0)
    density, found = fit_skew(one, targets, counts)
    assert density == pytest.approx(float(counts @ found.of(one).log_density(targets)), rel=1e-9)

    def loss(place):
        other = SkewedErrors(1.0 / (1.0 + np.exp(-place[0])), place[1], *np.exp(place[2:]))
        return -float(counts @ other.of(one).log_density(targets))

    here = np.array([np.log(found.share / (1.0 - found.share)), found.offset, *np.log(found[2:])])
    assert optimize.minimize(loss, here, method="Nelder-Mead").fun > -density - 0.01


def test_where_noise_has_a_smaller_part_there_is_less_skew():
    """Errors as they were seen, and an independent symmetric one of the function, of a variance that is the same."""
    skew, scale = SkewedErrors(0.3, 1.4, 0.5, 1.2), 2.0
    one = StudentMixture(np.ones(1), np.zeros((1, 3)), np.full((1, 3), scale), np.full((1, 1), np.inf))
    parts = np.array([[1.0, 0.5, 0.0]])
    both, random = with_tails(one, [skew.tail(np.inf, 0.8)], 0.8 * parts), np.random.default_rng(0)
    assert with_tails(one, [skew.tail(np.inf, 0.8)], np.full((1, 3), 0.9)).means.tolist() == skew.of(one).means.tolist()
    far = random.random(400_000) < skew.share
    noise = np.where(far, (1.0 - skew.share) * skew.offset, -skew.share * skew.offset)
    noise += np.where(far, skew.far, skew.near) * random.normal(size=far.size)
    for row, part in enumerate(parts[0]):
        errors = scale * (np.sqrt(part) * noise + np.sqrt(1.0 - part) * random.normal(size=far.size))
        for level in (0.02, 0.3, 0.7, 0.98):
            assert both.quantile(level)[row] == pytest.approx(np.quantile(errors, level), abs=0.03)


def test_it_is_chosen_for_skewed_errors_only():
    one = StudentMixture(np.ones(1), np.zeros((1, 400)), np.ones((1, 400)), np.full((1, 1), 30.0))
    random, chosen = np.random.default_rng(0), 0
    for _ in range(40):
        chosen += choose_skew(one, random.normal(size=400), np.ones(400)) is not None
    assert chosen <= 1
    for sign in (1.0, -1.0):
        errors = sign * (random.exponential(size=400) - 1.0)
        skew = choose_skew(one, errors, np.ones(400))
        assert skew is not None
        both = skew.of(one)
        scores = sign * both.normal_scores(errors)
        # No row lies beyond the sharp edge of an exponential, and two bells cannot have it: that side is too wide.
        assert np.mean(scores < -1.645) <= 0.05
        assert np.mean(scores > 1.645) == pytest.approx(0.05, abs=0.03)
        assert sign * skew.of(one).quantile(0.5 - sign * 0.45)[0] > -1.35  # -1.64 by the symmetric one
    assert choose_skew(one.take(slice(0, 30)), random.exponential(size=30) - 1.0, np.ones(30)) is None


@pytest.mark.slow
def test_a_fit_of_skewed_rows_gains_by_it(skewed):
    inputs, targets = made(2000, 1)
    assert skewed.record["skewed_errors"]["share"] > 0.0
    symmetric = replace(
        skewed,
        components=tuple(replace(each, tail=None) for each in skewed.components),
        spread=replace(skewed.spread, tail=None),
    )
    densities = [float(fit.log_density(inputs, targets).mean()) for fit in (symmetric, skewed)]
    assert densities[1] > densities[0] + 0.05
    misses = []
    for fit in (symmetric, skewed):
        lower, upper = (each.numpy() for each in fit.interval(inputs, 0.9))
        misses.append([np.mean(targets < lower), np.mean(targets > upper)])
    assert sum(misses[1]) == pytest.approx(0.1, abs=0.03)
    assert abs(np.subtract(*misses[1])) < abs(np.subtract(*misses[0]))
    torch.testing.assert_close(skewed.predict_mean(inputs), symmetric.predict_mean(inputs))


def test_a_gap_is_predicted_with_less_skew():
    random = np.random.default_rng(9)
    inputs = random.uniform(0.0, 10.0, size=(300, 1))
    inputs = inputs[(inputs[:, 0] < 4.0) | (inputs[:, 0] > 6.0)]
    errors = 0.3 * (random.exponential(size=len(inputs)) - 1.0)
    fit = fit_auto(inputs, np.sin(1.5 * inputs[:, 0]) + 0.3 * inputs[:, 0] + errors, effort="low")
    assert fit.components[0].tail is not None

    def lopsided(place):
        found = fit.predict(np.array([[place]]))
        low, middle, high = (float(found.quantile(level)) for level in (0.05, 0.5, 0.95))
        return (high - middle) / (middle - low)

    assert lopsided(2.0) > 1.4
    assert 1.0 < lopsided(5.0) < 1.0 + 0.7 * (lopsided(2.0) - 1.0)


def test_draws_are_those_of_the_distribution(skewed):
    inputs = made(6, 2)[0]
    draws, found = skewed.sample(inputs, 4000, seed=0).numpy(), skewed.predict(inputs)
    for level in (0.05, 0.3, 0.5, 0.9):
        below = (draws <= found.quantile(level).numpy()).mean(axis=0)
        np.testing.assert_allclose(below, level, atol=0.03)


def test_files_and_lite_models_keep_it(skewed, tmp_path):
    path, inputs = tmp_path / "skewed.finitegp", made(20, 3)[0]
    save_fit(skewed, path)
    expected, loaded = skewed.predict(inputs), load_fit(path).predict(inputs)
    torch.testing.assert_close(loaded.quantile(0.03), expected.quantile(0.03))
    light = load(path).predict(inputs)
    np.testing.assert_allclose(light.mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(light.std, expected.std, rtol=1e-8)
    np.testing.assert_allclose(light.noise_std**2, expected.noise_variance, rtol=1e-8)
    for found, end in zip(light.interval(0.9), expected.interval(0.9), strict=True):
        np.testing.assert_allclose(found, end, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_rows_set_aside_show_it_to_networks(side):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(3000, 2))
    targets = np.sin(inputs[:, 0]) + side * (random.exponential(size=3000) - 1.0)
    quick = {"steps": 200, "max_steps": 200, "noise_steps": 50, "small_rows": 100}
    fit = fit_auto(inputs, targets, effort="low", settings=quick)
    assert fit.components[0].tail.offset != 0.0
    new = random.normal(size=(2000, 2))
    observed = np.sin(new[:, 0]) + side * (random.exponential(size=2000) - 1.0)
    beyond = np.mean(side * observed > side * fit.interval(new, 0.9)[int(side > 0.0)].numpy())
    assert beyond == pytest.approx(0.05, abs=0.02)
    errors = observed - fit.predict(new).mean.numpy()
    best = -float(np.mean(stats.norm(0.0, errors.std()).logpdf(errors)))
    assert -float(fit.log_density(new, observed).mean()) < best - 0.15
