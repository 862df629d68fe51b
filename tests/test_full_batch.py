import math

import pytest
import torch
from torch import nn

from finitegp import DataError, FeatureGP, InputNoise, exact_gradient, fit_full_batch
from finitegp.features import FourierFeatures, MLPFeatures


def problem(generator, rows=120):
    inputs = 4 * torch.rand(rows, 1, generator=generator, dtype=torch.float64) - 2
    noise = 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return inputs, torch.sin(3 * inputs[:, 0]) + noise


def test_reaches_a_stationary_point_of_the_exact_likelihood(generator):
    data = problem(generator)
    model = FeatureGP(FourierFeatures(1, 40, seed=0), 0.5).double()
    seen = []
    result = fit_full_batch(model, data, progress=lambda iteration, nlml: seen.append((iteration, nlml)))
    assert result.converged
    assert result.gradient_norm < 1e-5
    assert exact_gradient(model, data).gradient_norm / 120 == pytest.approx(result.gradient_norm, rel=1e-6)
    assert result.nlml == pytest.approx(model.nlml(data), rel=1e-12)
    assert math.sqrt(model.noise_variance) == pytest.approx(0.1, rel=0.25)
    assert [iteration for iteration, _ in seen] == list(range(1, result.iterations + 1))
    assert seen[-1][1] < seen[0][1]


def test_optimum_agrees_with_the_closed_form_in_the_noise(generator):
    data = problem(generator)
    model = FeatureGP(FourierFeatures(1, 40, seed=0), 0.5).double()
    fit_full_batch(model, data)
    fitted_noise = model.noise_variance
    assert model.optimize_noise(data).noise_variance == pytest.approx(fitted_noise, rel=1e-4)


def test_network_and_input_dependent_noise(generator):
    inputs, _ = problem(generator, rows=400)
    spread = 0.05 + 0.3 * (inputs[:, 0] > 0)
    targets = inputs[:, 0] + spread * torch.randn(400, generator=generator, dtype=torch.float64)
    constant = FeatureGP(MLPFeatures(1, hidden=(16, 16), seed=0), 0.5).double()
    network = MLPFeatures(1, hidden=(16, 16), seed=0)
    varying = FeatureGP(network, noise_model=InputNoise(nn.Linear(16, 1), variance=0.5)).double()
    first = fit_full_batch(constant, (inputs, targets), max_iterations=150)
    second = fit_full_batch(varying, (inputs, targets), max_iterations=150)
    assert second.nlml < first.nlml - 0.2
    noise = varying.condition((inputs, targets)).predict([[-1.0], [1.0]]).noise_variance.sqrt()
    assert noise.tolist() == pytest.approx([0.05, 0.35], rel=0.3)


def test_noise_floor_is_kept(generator):
    inputs = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    model = FeatureGP(nn.Identity(), 0.1).double()
    result = fit_full_batch(model, (inputs, inputs.sum(dim=1)), minimum_noise_variance=1e-6)
    assert model.noise_variance == pytest.approx(1e-6, rel=1e-6)
    assert result.converged  # what is left of the gradient points below the floor
    assert result.gradient_norm > 0.1


def test_converged_only_when_the_gradient_says_so(generator):
    data = problem(generator)
    for tolerance in (1e-6, 1e-300):
        model = FeatureGP(FourierFeatures(1, 40, seed=0), 0.5).double()
        result = fit_full_batch(model, data, gradient_tolerance=tolerance)
        assert result.converged == (tolerance == 1e-6)
    assert "RELATIVE REDUCTION" in result.message or "ABNORMAL" in result.message


@pytest.mark.parametrize("size", [1e6, 1e8, 1e12, 1e100])
def test_no_overflow_in_line_searches(generator, size):
    inputs, targets = problem(generator)
    model = FeatureGP(FourierFeatures(1, 40, seed=0), 0.5).double()
    before = model.nlml((inputs, size * targets))
    result = fit_full_batch(model, (inputs, size * targets))
    assert result.nlml <= before
    assert not result.converged or result.gradient_norm < 1e-5


class Fragile(nn.Module):
    """Overflows when its parameter moves far, as a line search may make it."""

    def __init__(self, start):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, inputs):
        return torch.where(self.scale.abs() < 1.5, self.scale, float("nan")) * inputs


def test_line_search_steps_back_from_what_cannot_be_evaluated(generator):
    inputs = torch.randn(50, 1, generator=generator, dtype=torch.float64)
    model = FeatureGP(Fragile(0.01), 1e-2).double()
    result = fit_full_batch(model, (inputs, 1.2 * inputs[:, 0]))
    assert math.isfinite(result.nlml)
    assert float(model.feature_map.scale.detach().abs()) < 1.5
    assert result.nlml < FeatureGP(Fragile(0.01), 1e-2).double().nlml((inputs, 1.2 * inputs[:, 0]))


def test_start_that_cannot_be_evaluated_is_an_error(generator):
    inputs = torch.randn(50, 1, generator=generator, dtype=torch.float64)
    with pytest.raises(DataError, match="row 0, column 0 of this batch is nan"):
        fit_full_batch(FeatureGP(Fragile(2.0), 0.1).double(), (inputs, inputs[:, 0]))
