"""Small noise: reported likelihoods agree with a higher-precision computation, or an error says why not."""

import math

import pytest
import torch
from torch import nn

from finitegp import ConstantNoise, FeatureGP, FeatureStatistics, NumericalError, negative_log_marginal_likelihood


def noisy_problem(generator, noise_variance, rows=400, condition=1e3):
    """Features with a spread spectrum, targets of variance about one explained up to the noise."""
    width = 12
    basis, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
    scales = torch.logspace(0, -math.log10(condition), width, dtype=torch.float64)
    features = torch.randn(rows, width, generator=generator, dtype=torch.float64) @ (scales[:, None] * basis)
    signal = features @ torch.randn(width, generator=generator, dtype=torch.float64)
    noise = math.sqrt(noise_variance) * torch.randn(rows, generator=generator, dtype=torch.float64)
    return features, signal / signal.std() + noise


def exact_total_nlml(features, targets, noise_variance):
    """The NLML in rational-like precision: the d x d formula with 50-digit numbers."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath comes with torch")
    with mpmath.workdps(50):
        z, y = mpmath.matrix(features.tolist()), mpmath.matrix(targets.tolist())
        s = mpmath.mpf(noise_variance)
        n, d = features.shape
        regularized = z.T * z + s * mpmath.eye(d)
        lower = mpmath.cholesky(regularized)
        projected = z.T * y
        weights = mpmath.cholesky_solve(regularized, projected)
        unexplained = (y.T * y)[0] - (projected.T * weights)[0]
        volume = 2 * sum(mpmath.log(lower[i, i]) for i in range(d))
        return float((unexplained / s + volume + (n - d) * mpmath.log(s) + n * mpmath.log(2 * mpmath.pi)) / 2)


@pytest.mark.parametrize("noise_variance", [1e-2, 1e-6, 1e-8, 1e-10, 1e-12])
def test_two_passes_are_right_and_the_estimate_bounds_the_error(generator, noise_variance):
    features, targets = noisy_problem(generator, noise_variance)
    expected = exact_total_nlml(features, targets, noise_variance)
    statistics = FeatureStatistics.from_batch(features, targets)
    one_pass = negative_log_marginal_likelihood(statistics, noise_variance, tolerance=math.inf)
    assert abs(one_pass.total_nlml - expected) <= one_pass.rounding_error
    model = FeatureGP(nn.Identity()).double()
    model.noise.log_variance.data = torch.tensor(math.log(noise_variance), dtype=torch.float64)
    two_pass = model.likelihood((features, targets))
    assert abs(two_pass.total_nlml - expected) <= two_pass.rounding_error + 1e-11 * abs(expected)
    assert two_pass.total_nlml == pytest.approx(expected, rel=1e-9)


def test_statistics_alone_refuse_what_cancels(generator):
    features, targets = noisy_problem(generator, 1e-14)
    statistics = FeatureStatistics.from_batch(features, targets)
    with pytest.raises(NumericalError, match="second pass over the rows"):
        negative_log_marginal_likelihood(statistics, 1e-14, tolerance=1e-6)


class StubbornlyFloat32(nn.Module):
    def forward(self, inputs):
        return inputs.float()


def test_feature_map_that_insists_on_float32(generator):
    """Its features are only good to 1e-7: fine at ordinary noise, an error where that would be visible."""
    features, targets = noisy_problem(generator, 1e-2)
    found = FeatureGP(StubbornlyFloat32(), 1e-2).likelihood((features, targets))
    expected = exact_total_nlml(features, targets, 1e-2)
    assert found.total_nlml == pytest.approx(expected, rel=1e-4)
    assert abs(found.total_nlml - expected) <= found.rounding_error
    features, targets = noisy_problem(generator, 1e-14)
    with pytest.raises(NumericalError, match="cannot be trusted"):
        FeatureGP(StubbornlyFloat32(), 1e-14).likelihood((features, targets))


@pytest.mark.parametrize("double_again", [False, True])
def test_a_float64_model_stores_noise_and_output_scale_in_float64(double_again):
    model = FeatureGP(nn.Linear(2, 3).double(), noise_variance=0.05, output_scale=3.7)
    model = model.double() if double_again else model
    assert model.noise_variance == pytest.approx(0.05, rel=1e-15)
    assert model.output_scale == pytest.approx(3.7, rel=1e-15)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert ConstantNoise(0.05, dtype=torch.float64).variance == pytest.approx(0.05, rel=1e-15)


@pytest.mark.parametrize("feature_map", [nn.Linear(2, 3), nn.Identity(), nn.Linear(2, 3).bfloat16()])
def test_other_models_store_what_they_stored(feature_map):
    """To the bit, and exact copies have the noise of the model."""
    model = FeatureGP(feature_map, noise_variance=0.05, output_scale=3.7)
    assert torch.equal(model.noise.log_variance, torch.tensor(math.log(0.05), dtype=torch.float32))
    assert torch.equal(model.log_output_scale, torch.tensor(math.log(3.7), dtype=torch.float32))
    assert model.exact_copy().noise_variance == model.noise_variance
