"""The same model in scikit-learn and in GPyTorch gives the same numbers."""

import math

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, WhiteKernel
from sklearn.linear_model import BayesianRidge
from torch import nn

from finitegp import FeatureGP, fit_full_batch
from finitegp.features import LinearFeatures, MLPFeatures


@pytest.fixture(params=[(60, 8), (16, 16), (10, 30)], ids=["d<n", "d=n", "d>n"])
def problem(request, generator):
    rows, width = request.param
    network = MLPFeatures(4, hidden=(16, width), seed=1).double()
    model = FeatureGP(network, 0.3).double()
    inputs = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs.sum(dim=1)) + 0.5 * torch.randn(rows, generator=generator, dtype=torch.float64)
    new_inputs = torch.randn(11, 4, generator=generator, dtype=torch.float64)
    return model, inputs, targets, new_inputs


def test_scikit_learn_gaussian_process(problem, tolerances):
    model, inputs, targets, new_inputs = problem
    with torch.no_grad():
        features, new_features = model.feature_map(inputs), model.feature_map(new_inputs)
    kernel = DotProduct(sigma_0=0.0, sigma_0_bounds="fixed") + WhiteKernel(
        noise_level=model.noise_variance, noise_level_bounds="fixed"
    )
    peer = GaussianProcessRegressor(kernel=kernel, alpha=1e-14, optimizer=None).fit(features, targets)
    mean, std = peer.predict(new_features, return_std=True)
    found = model.condition((inputs, targets)).predict(new_inputs)
    rtol = tolerances["peer"]
    assert -model.nlml((inputs, targets)) * len(inputs) == pytest.approx(peer.log_marginal_likelihood_value_, rel=rtol)
    torch.testing.assert_close(found.mean, torch.from_numpy(mean), rtol=rtol, atol=rtol)
    torch.testing.assert_close(found.std, torch.from_numpy(std), rtol=rtol, atol=rtol)


def test_scikit_learn_bayesian_ridge(generator, tolerances):
    """BayesianRidge also maximises the evidence in noise and weight precision; at its optimum the models coincide."""
    inputs = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.randn(5, generator=generator, dtype=torch.float64)
    targets = targets + 0.3 * torch.randn(200, generator=generator, dtype=torch.float64)
    tiny = {"alpha_1": 1e-300, "alpha_2": 1e-300, "lambda_1": 1e-300, "lambda_2": 1e-300}
    peer = BayesianRidge(fit_intercept=False, tol=1e-12, max_iter=10000, compute_score=True, **tiny)
    peer.fit(inputs.numpy(), targets.numpy())
    model = FeatureGP(LinearFeatures(5, bias=False), 1.0).double()
    fit_full_batch(model, (inputs, targets), gradient_tolerance=1e-10)
    rtol = tolerances["peer"]
    fitted = model.condition((inputs, targets))
    mean, std = peer.predict(inputs.numpy(), return_std=True)
    assert model.noise_variance == pytest.approx(1 / peer.alpha_, rel=10 * rtol)
    assert -model.nlml((inputs, targets)) * 200 == pytest.approx(peer.scores_[-1], rel=rtol)
    torch.testing.assert_close(fitted.predict(inputs).mean, torch.from_numpy(mean), rtol=rtol, atol=rtol)
    torch.testing.assert_close(fitted.predict(inputs).std, torch.from_numpy(std), rtol=rtol, atol=rtol)


def test_gpytorch_exact_gp(problem, tolerances):
    gpytorch = pytest.importorskip("gpytorch", reason="install the extra finitegp[peers]")
    model, inputs, targets, new_inputs = problem

    class Peer(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.LinearKernel()

        def forward(self, x):
            features = model.feature_map(x)
            return gpytorch.distributions.MultivariateNormal(self.mean(features), self.kernel(features))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = model.noise_variance
    peer = Peer(likelihood).double()
    peer.kernel.variance = 1.0
    rtol = tolerances["peer"]
    # Exact arithmetic instead of GPyTorch's iterative defaults.
    with (
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.cholesky_jitter(1e-14, 1e-14),
    ):
        peer.train()
        loss = -gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, peer)(peer(inputs), targets)
        assert model.nlml((inputs, targets)) == pytest.approx(loss.item(), rel=rtol)
        peer.eval()
        likelihood.eval()
        with torch.no_grad():
            expected = likelihood(peer(new_inputs))
            mean, std = expected.mean, expected.variance.sqrt()
    found = model.condition((inputs, targets)).predict(new_inputs)
    torch.testing.assert_close(found.mean, mean, rtol=rtol, atol=rtol)
    torch.testing.assert_close(found.std, std, rtol=rtol, atol=rtol)


def test_any_module_is_a_feature_map(generator):
    """A module that knows nothing of this library, with an attribute-free output width."""
    network = nn.Sequential(nn.Linear(2, 10), nn.LayerNorm(10), nn.SiLU(), nn.Linear(10, 6))
    inputs, targets = torch.randn(50, 2, generator=generator), torch.randn(50, generator=generator)
    model = FeatureGP(network, 0.5)
    before = model.nlml((inputs, targets))
    fit_full_batch(model, (inputs, targets), max_iterations=20)
    assert model.nlml((inputs, targets)) < before
    assert math.isfinite(float(model.condition((inputs, targets)).predict(inputs).std.sum()))
