"""Components with errors of Student's t, and with a share of larger ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scaled_fits import make_rows
from scipy import stats

from finitegp.component import student_component, widened
from finitegp.error_shape import ErrorShape, TailedShape
from finitegp.persistence import load_fit, save_fit
from finitegp.predictive import StudentMixture


def test_student_errors_keep_the_standard_deviation(gaussian):
    fitted = gaussian.fitted
    shaped = replace(gaussian, components=(student_component(fitted, ErrorShape(3.0)),))
    new = make_rows(10, seed=2)[0]
    plain, found = gaussian.predict(new), shaped.predict(new)
    torch.testing.assert_close(found.std, plain.std)
    expected = stats.t(3.0, found.mean, found.std / np.sqrt(3.0))
    np.testing.assert_allclose(found.quantile(0.9), expected.ppf(0.9), rtol=1e-9)
    np.testing.assert_allclose(found.log_density(plain.mean), expected.logpdf(plain.mean), rtol=1e-9)
    assert student_component(fitted).degrees_of_freedom == np.inf
    assert shaped.distribution == "Student's t with 3 degrees of freedom"
    assert gaussian.distribution == "a normal distribution"


class TestLargerErrors:
    """A share of errors that are larger than the others."""

    @pytest.fixture(params=[0.0, 1.5, -2.0], ids=["larger", "above", "below"])
    def shape(self, request):
        tail = ErrorShape(8.0) if request.param else ErrorShape()
        return TailedShape(ErrorShape(8.0), tail, share=0.2, ratio=6.0, offset=request.param)

    @pytest.fixture
    def tailed(self, gaussian, shape):
        return replace(gaussian, components=(student_component(gaussian.fitted, shape),))

    def test_the_distribution_is_that_of_both(self, tailed, gaussian, shape):
        new = make_rows(10, seed=2)[0]
        plain, found = gaussian.predict(new), tailed.predict(new)
        torch.testing.assert_close(found.std, plain.std)
        torch.testing.assert_close(found.noise_variance, plain.noise_variance)
        torch.testing.assert_close(found.mean, plain.mean)
        std = plain.std.numpy()
        one, other = (unit * std for unit in shape.units)
        near, far = (plain.mean.numpy() + centre * std for centre in shape.centres)
        values = plain.mean.numpy() + 0.7 * std
        main = stats.t(8.0, near, one * np.sqrt(6.0 / 8.0))
        tail = stats.t(8.0, far, other * np.sqrt(6.0 / 8.0)) if shape.offset else stats.norm(far, other)
        expected = np.log(0.8 * main.pdf(values) + 0.2 * tail.pdf(values))
        np.testing.assert_allclose(found.log_density(torch.from_numpy(values)), expected, rtol=1e-9)
        ends = found.quantile(0.95).numpy()
        np.testing.assert_allclose(0.8 * main.cdf(ends) + 0.2 * tail.cdf(ends), 0.95, rtol=1e-7)
        assert tailed.distribution == "a mixture of Student's t"

    def test_the_shape_itself_is_a_mixture(self, shape):
        (one, other), (near, far) = shape.units, shape.centres
        main = stats.t(8.0, near, one * np.sqrt(6.0 / 8.0))
        tail = stats.t(8.0, far, other * np.sqrt(6.0 / 8.0)) if shape.offset else stats.norm(far, other)
        errors = np.array([-9.0, -0.7, 0.0, 0.4, 3.0])
        assert (far - near) / one == pytest.approx(shape.offset)
        assert 0.8 * near + 0.2 * far == pytest.approx(0.0)
        assert 0.8 * (one**2 + near**2) + 0.2 * (other**2 + far**2) == pytest.approx(1.0)
        found = shape.log_density(torch.from_numpy(errors))
        np.testing.assert_allclose(found, np.log(0.8 * main.pdf(errors) + 0.2 * tail.pdf(errors)), rtol=1e-9)
        scores = stats.norm.ppf(0.8 * main.cdf(errors) + 0.2 * tail.cdf(errors))
        np.testing.assert_allclose(shape.normal_scores(errors), scores, rtol=1e-7)

    def test_draws_are_larger_row_by_row(self, tailed):
        new = make_rows(4, seed=2)[0]
        draws = tailed.sample(new, 4000, seed=0).numpy()
        found = tailed.predict(new)
        inside = (draws > found.quantile(0.25).numpy()) & (draws < found.quantile(0.75).numpy())
        np.testing.assert_allclose(inside.mean(axis=0), 0.5, atol=0.03)
        np.testing.assert_allclose(draws.std(axis=0), found.std, rtol=0.08)

    def test_a_file_keeps_it(self, tailed, tmp_path):
        save_fit(tailed, tmp_path / "tailed.finitegp")
        new = make_rows(10, seed=2)[0]
        loaded = load_fit(tmp_path / "tailed.finitegp")
        assert loaded.components[0].tail == tailed.components[0].tail
        torch.testing.assert_close(loaded.predict(new).quantile(0.99), tailed.predict(new).quantile(0.99))


def test_widened_adds_the_variance_and_thins_the_tails():
    freedom = np.array([[5.0], [np.inf]])
    mixture = StudentMixture(np.array([0.6, 0.4]), np.array([[0.0] * 3, [1.0] * 3]), np.full((2, 3), 0.5), freedom)
    added = np.array([0.0, 0.4, 40.0])
    found = widened(mixture, added)
    np.testing.assert_allclose(found.mean, mixture.mean)
    np.testing.assert_allclose(found.variance, mixture.variance + added)
    np.testing.assert_allclose(found.degrees_of_freedom[:, 0], [5.0, np.inf])
    assert np.all(np.diff(found.degrees_of_freedom[0]) > 0)
    assert np.isinf(found.degrees_of_freedom[1]).all()
    assert widened(mixture, np.zeros(3)) is mixture
    # What it stands for: the sum of a draw of the mixture and a Gaussian.
    random = np.random.default_rng(0)
    which = random.random(400_000) < 0.6
    drawn = np.where(which, 0.5 * random.standard_t(5.0, 400_000), 1.0 + 0.5 * random.normal(size=400_000))
    for row in (1, 2):
        total = drawn + np.sqrt(added[row]) * random.normal(size=400_000)
        quantiles = [found.quantile(level)[row] for level in (0.005, 0.05, 0.5, 0.95, 0.995)]
        np.testing.assert_allclose(
            quantiles, np.quantile(total, [0.005, 0.05, 0.5, 0.95, 0.995]), atol=0.03 * total.std()
        )
