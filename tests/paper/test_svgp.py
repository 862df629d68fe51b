"""SVGP: a bound of the exact NLML, computed as the textbook and GPyTorch do, and its best distribution."""

import pytest
import torch
from svgp_problems import (
    KERNELS,
    NOISES,
    batch_of,
    make_algorithm,
    make_data,
    make_model,
    make_rows,
    textbook_posterior,
    variational_parameters,
)

from finitegp.data import Rows
from paper.svgp import SVGP

gpytorch = pytest.importorskip("gpytorch", reason="SVGP needs GPyTorch: install the extra finitegp[peers]")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("noise", NOISES)
def test_bound_and_prediction_equal_the_textbook(kernel, noise):
    rows = make_rows(12, noise)
    algorithm = make_algorithm(rows, noise, kernel, model=make_model(noise, output_scale=1.7))
    mean, variance, log_scale, divergence = textbook_posterior(algorithm, rows, kernel)
    noise_variance = algorithm.model.noise_variance * log_scale.exp()
    density = torch.distributions.Normal(mean, noise_variance.sqrt()).log_prob(rows.targets[:, 0])
    expected = -(density - 0.5 * variance / noise_variance).mean() + divergence / 12
    assert algorithm.negative_elbo(rows) == pytest.approx(float(expected), rel=1e-9)

    unweighted = rows._replace(weights=None)
    mean, variance, log_scale, _ = textbook_posterior(algorithm, unweighted, kernel)
    for chunk_size in (5, 100):
        prediction = algorithm.predict(rows.inputs, chunk_size=chunk_size)
        torch.testing.assert_close(prediction.mean, mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(prediction.epistemic_variance, variance, rtol=1e-7, atol=1e-7)
        expected_noise = (algorithm.model.noise_variance * log_scale.exp()).expand(12)
        torch.testing.assert_close(prediction.noise_variance, expected_noise)


def test_value_and_gradients_equal_gpytorch_on_its_usual_path():
    """The model as a GPyTorch user writes it: the network inside ``forward``, VariationalELBO, GaussianLikelihood."""
    rows = make_rows(10, "constant")
    algorithm = make_algorithm(rows, kernel="rbf")

    class Usual(gpytorch.models.ApproximateGP):
        def __init__(self):
            mean, root = variational_parameters(algorithm)
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(mean))
            inducing = algorithm.inducing_inputs.detach()
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.network = make_model().feature_map
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.double()
            distribution.variational_mean.data.copy_(mean.data)
            distribution.chol_variational_covar.data.copy_(root.data)
            self.variational_strategy.variational_params_initialized.fill_(1)
            self.covariance.outputscale = 1.0
            self.covariance.base_kernel.lengthscale = 1.0

        def forward(self, inputs):
            features = self.network(inputs)
            return gpytorch.distributions.MultivariateNormal(inputs.new_zeros(len(inputs)), self.covariance(features))

    peer, likelihood = Usual(), gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = algorithm.model.noise_variance
    objective = -gpytorch.mlls.VariationalELBO(likelihood, peer, num_data=10)(peer(rows.inputs), rows.targets[:, 0])
    objective.backward()
    algorithm.gradient(rows)
    assert algorithm.negative_elbo(rows) == pytest.approx(objective.item(), rel=1e-6)
    pairs = [
        (algorithm.inducing_inputs, peer.variational_strategy.inducing_points),
        *zip(algorithm.model.feature_map.parameters(), peer.network.parameters(), strict=True),
        *zip(algorithm.prior.parameters(), peer.covariance.parameters(), strict=True),
    ]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("variance", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("scrambled", [False, True])
def test_never_below_the_exact_nlml(noise, variance, scrambled):
    rows = make_rows(30, noise)
    for seed in range(3):
        model = make_model(noise, variance, seed=seed)
        algorithm = make_algorithm(rows, model=model, count=6, scrambled=scrambled)
        assert algorithm.negative_elbo(rows) > model.nlml(rows)


def optimize_distribution(algorithm, rows):
    """The best variational distribution by L-BFGS, everything else as it is."""
    optimizer = torch.optim.LBFGS(
        variational_parameters(algorithm), max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def closure():
        algorithm.gradient(rows)
        return torch.tensor(algorithm.negative_elbo(rows))

    optimizer.step(closure)


@pytest.mark.parametrize("way", ["optimized", "solved"])
@pytest.mark.parametrize("noise", ["constant", "input and weights"])
def test_reaches_the_exact_nlml_and_posterior_with_all_rows_as_inducing_inputs(noise, way):
    rows = make_rows(9, noise)
    model = make_model(noise)
    algorithm = SVGP(model, 9, inducing_inputs=rows.inputs, learn_inducing=False)
    start = algorithm.negative_elbo(rows)
    if way == "optimized":
        optimize_distribution(algorithm, rows)
    else:
        algorithm.initialize([batch_of(rows, range(5)), batch_of(rows, range(5, 9))])
    exact = model.nlml(rows)
    gap = algorithm.negative_elbo(rows) - exact
    # What is left is the jitter of 1e-6 on both diagonals, of order jitter / noise.
    assert 0.0 < gap < 2e-5
    assert start - exact > 1000 * gap
    inputs = make_data(7, seed=9)[0]
    found, expected = algorithm.predict(inputs), model.condition(rows).predict(inputs)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("noise", NOISES)
def test_solved_start_is_the_optimum(kernel, noise):
    rows = make_rows(20, noise)
    algorithm = make_algorithm(rows, noise, kernel)
    algorithm.gradient(rows)
    assert all(float(parameter.grad.abs().max()) > 1e-2 for parameter in variational_parameters(algorithm))
    algorithm.initialize([rows])
    algorithm.gradient(rows)
    assert all(float(parameter.grad.abs().max()) < 1e-9 for parameter in variational_parameters(algorithm))


def test_solved_start_lets_batches_stand_for_all_rows():
    """The rows are the same ten twice over: one half, scaled to all, has the same optimum."""
    half = make_rows(10, "input and weights")
    rows = Rows(*(None if part is None else torch.cat([part, part]) for part in half))
    algorithm = make_algorithm(rows, "input and weights")
    algorithm.initialize([batch_of(half, range(4)), batch_of(half, range(4, 10))])
    algorithm.gradient(rows)
    assert all(float(parameter.grad.abs().max()) < 1e-9 for parameter in variational_parameters(algorithm))


def test_start_at_the_prior_is_left_alone():
    rows = make_rows(12, "constant")
    algorithm = make_algorithm(rows, scrambled=False, initial_distribution="prior")
    algorithm.initialize([rows])
    mean, root = variational_parameters(algorithm)
    assert not mean.any()
    assert torch.equal(root, torch.eye(4, dtype=torch.float64))


def test_float32_value_is_that_of_its_float64_copy():
    """The jitter stays that of training: with more inducing points than features the result depends on it."""
    rows = make_rows(40, "constant", dtype=torch.float32)
    model = make_model(dtype=torch.float32)
    algorithm = make_algorithm(rows, model=model, count=20)
    found = algorithm._marginals(rows.inputs, None)
    in_float32 = found.expected_loss(found.squared_residuals(rows.targets)).mean() + found.divergence / 40
    assert found.mean.dtype == torch.float32
    assert algorithm.negative_elbo(rows) == pytest.approx(float(in_float32.detach()), rel=1e-3)
    assert algorithm.predict(rows.inputs).mean.dtype == torch.float64
