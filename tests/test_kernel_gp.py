"""The exact kernel GP against dense formulas, finite differences, repeated rows and really leaving rows out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_t

from finitegp.kernel_gp import KernelForm, KernelGP, KernelPosterior, KernelRows, fit_from_several_starts, log_prior

FORMS = [
    KernelForm(),
    KernelForm("matern52"),
    KernelForm("rbf", length_scale_per_column=True),
    KernelForm("matern32", length_scale_per_column=True),
]


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    inputs = random.normal(size=(25, 3))
    targets = np.sin(2 * inputs[:, 0]) + 0.3 * inputs[:, 1] + 0.2 * random.normal(size=25)
    return KernelRows.of(inputs, (targets - targets.mean()) / targets.std(), random.uniform(0.5, 2.0, 25))


def somewhere(form, seed=0):
    start = form.start(3, 0.7)
    return start + 0.4 * np.random.default_rng(seed).normal(size=len(start))


def dense_covariance(form, parameters, one, other):
    """The kernel entry by entry, from its definition."""
    found = np.empty((len(one), len(other)))
    for i, x in enumerate(one):
        for j, z in enumerate(other):
            found[i, j] = 4.0 + math.exp(parameters[1]) * (x @ z) / len(x)
            if form.correlation is not None:
                r = math.sqrt((((x - z) / np.exp(parameters[3:])) ** 2).sum())
                found[i, j] += math.exp(parameters[2]) * {
                    "rbf": lambda r: math.exp(-r * r / 2),
                    "matern32": lambda r: (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r),
                    "matern52": lambda r: (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r),
                }[form.correlation](r)
    return found


@pytest.mark.parametrize("form", FORMS)
class TestKernelGP:
    def test_loss_is_the_density_of_a_multivariate_t(self, form, rows):
        """Integrating the scale out makes the targets Student's t with two degrees of freedom; constants cancel."""
        values = []
        for seed in range(3):
            parameters = somewhere(form, seed)
            covariance = dense_covariance(form, parameters, rows.inputs, rows.inputs)
            covariance += np.diag((math.exp(parameters[0]) + 1e-8) * rows.noise_scales)
            expected = -multivariate_t(np.zeros(25), covariance, df=2.0).logpdf(rows.targets)
            values.append(KernelGP(form, rows).loss(parameters)[0] + log_prior(form, parameters, 3)[0] - expected)
        assert np.ptp(values) < 1e-9

    def test_gradient(self, form, rows):
        gp, parameters = KernelGP(form, rows), somewhere(form)
        found = gp.loss(parameters)[1]
        steps = 1e-5 * np.eye(len(parameters))
        expected = [(gp.loss(parameters + step)[0] - gp.loss(parameters - step)[0]) / 2e-5 for step in steps]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)

    def test_counts_are_repeated_rows(self, form, rows):
        counts = np.random.default_rng(0).integers(1, 4, 25)
        repeated = rows.take(np.repeat(np.arange(25), counts))
        counted = KernelRows(rows.inputs, rows.targets, rows.noise_scales, counts.astype(float))
        one, other = KernelGP(form, repeated), KernelGP(form, counted)
        losses = [(one.loss(p)[0] - other.loss(p)[0]) for p in (somewhere(form, 1), somewhere(form, 2))]
        assert losses[0] == pytest.approx(losses[1], abs=1e-8)
        parameters = somewhere(form)
        np.testing.assert_allclose(one.loss(parameters)[1], other.loss(parameters)[1], rtol=1e-8, atol=1e-8)
        new = np.random.default_rng(1).normal(size=(4, 3))
        for mine, theirs in zip(
            one.condition(parameters).predict(new), other.condition(parameters).predict(new), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-8)

    def test_posterior_against_dense_formulas(self, form, rows):
        parameters, new = somewhere(form), np.random.default_rng(1).normal(size=(6, 3))
        posterior = KernelPosterior(form, parameters, rows)
        noise = math.exp(parameters[0]) + 1e-8
        covariance = dense_covariance(form, parameters, rows.inputs, rows.inputs) + np.diag(noise * rows.noise_scales)
        cross = dense_covariance(form, parameters, rows.inputs, new)
        prior = dense_covariance(form, parameters, new, new).diagonal()
        mean, variance = posterior.predict(new)
        np.testing.assert_allclose(mean, cross.T @ np.linalg.solve(covariance, rows.targets), rtol=1e-9)
        scale = (2.0 + rows.targets @ np.linalg.solve(covariance, rows.targets)) / 27.0
        assert (posterior.scale, posterior.degrees_of_freedom) == (pytest.approx(scale), 27.0)
        expected = scale * (prior - (cross * np.linalg.solve(covariance, cross)).sum(0))
        np.testing.assert_allclose(variance, expected, rtol=1e-6, atol=1e-9)

    def test_leaving_out_is_really_leaving_out(self, form, rows):
        parameters = somewhere(form)
        posterior = KernelPosterior(form, parameters, rows)
        groups = np.array([0, 0, 0, 1, 1, *range(2, 22)])
        found, spread = posterior.leave_groups_out(groups)
        for group in range(22):
            out = groups == group
            rest = KernelPosterior(form, parameters, rows.take(~out))
            mean, variance = rest.predict(rows.inputs[out])
            np.testing.assert_allclose(found[out], mean, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(rest.mean(rows.inputs[out]), mean, rtol=1e-10, atol=1e-12)
            # The factor on all variances is that of all rows.
            expected = variance / rest.scale + rest.noise * rows.noise_scales[out]
            np.testing.assert_allclose(spread[out] / posterior.scale, expected, rtol=1e-6)
        single, single_spread = posterior.leave_one_out()
        np.testing.assert_allclose(single[5:], found[5:], rtol=1e-9)
        np.testing.assert_allclose(single_spread[5:], spread[5:], rtol=1e-9)

    def test_one_observation_of_a_row_that_stands_for_several(self, form, rows):
        counted = replace(rows, counts=np.where(np.arange(len(rows.targets)) % 3, 1.0, 4.0))
        posterior = KernelPosterior(form, somewhere(form), counted)
        _, spread = posterior.leave_groups_out(np.arange(len(rows.targets)))
        rest = KernelPosterior(form, somewhere(form), counted.take(np.arange(1, len(rows.targets))))
        variance = rest.predict(rows.inputs[:1])[1] / rest.scale + rest.noise * rows.noise_scales[:1]
        np.testing.assert_allclose(spread[:1] / posterior.scale, variance, rtol=1e-6)


def test_several_starts_find_waves_that_one_misses():
    random = np.random.default_rng(0)
    inputs = random.uniform(-1.7, 1.7, size=(200, 1))
    rows = KernelRows.of(inputs, 1.4 * np.sin(18 * inputs[:, 0]) + 0.07 * random.normal(size=200))
    form = KernelForm("matern52")
    lost = KernelGP(form, rows).fit(form.start(1))
    found = fit_from_several_starts(form, rows, (1.0, 0.3, 0.1, 0.03))
    assert KernelGP(form, rows).loss(found)[0] < lost[1] - 50
    assert math.exp(found[0]) < 0.05


def test_wild_parameters_do_not_overflow(rows):
    form = FORMS[2]
    value, gradient = KernelGP(form, rows).loss(np.array([-16.0, 12.0, 12.0, -5.0, 12.0, 12.0]))
    assert math.isfinite(value)
    assert np.isfinite(gradient).all()


def test_unknown_correlation():
    with pytest.raises(ValueError, match="correlation must be one of"):
        KernelForm("cubic")
