"""SVGP: a bound of the exact NLML, computed as the textbook and GPyTorch do, and a trainer that works."""

import copy
import itertools
import math
import sys

import pytest
import torch
from algorithm_problems import check_algorithm
from torch import nn

from finitegp import FeatureGP
from finitegp.algorithms.base import Algorithm
from finitegp.data import Rows
from finitegp.features import MLPFeatures
from finitegp.noise import InputNoise
from paper.svgp import SVGP

gpytorch = pytest.importorskip("gpytorch", reason="SVGP needs GPyTorch: install the extra finitegp[peers]")

KERNELS = ["linear", "rbf"]
NOISES = ["constant", "input", "input and weights"]


def make_data(rows, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(rows, 2, generator=generator, dtype=torch.float64) - 1
    signal = torch.sin(3 * inputs[:, 0]) + inputs[:, 1] ** 2
    targets = signal + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    weights = 0.5 + torch.rand(rows, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), targets[:, None].to(dtype), weights.to(dtype)


def make_rows(rows, noise, seed=0, dtype=torch.float64):
    inputs, targets, weights = make_data(rows, seed, dtype)
    return Rows(inputs, targets, weights if "weights" in noise else None)


def make_model(noise="constant", variance=0.2, hidden=(16, 8), seed=1, dtype=torch.float64, **options):
    network = MLPFeatures(2, hidden=hidden, seed=seed)
    if "input" in noise:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = nn.Linear(hidden[-1], 1)
        return FeatureGP(network, noise_model=InputNoise(head, variance=variance), **options).to(dtype)
    return FeatureGP(network, variance, **options).to(dtype)


def make_algorithm(rows, noise="constant", kernel="linear", count=4, scrambled=True, **options):
    """An algorithm whose variational distribution, unless told otherwise, is a random one far from the prior."""
    model = options.pop("model", None) or make_model(noise)
    chosen = SVGP.choose_inducing_inputs(rows.inputs, count, seed=3)
    algorithm = SVGP(model, len(rows.inputs), inducing_inputs=chosen, kernel=kernel, **options)
    if scrambled:
        generator = torch.Generator().manual_seed(4)
        mean, root = variational_parameters(algorithm)
        with torch.no_grad():
            mean.copy_(torch.randn(mean.shape, generator=generator))
            root.copy_(0.3 * torch.randn(root.shape, generator=generator) + torch.eye(len(root)))
    return algorithm


def variational_parameters(algorithm):
    named = dict(algorithm.named_parameters())
    (mean,) = (value for name, value in named.items() if name.endswith("variational_mean"))
    (root,) = (value for name, value in named.items() if name.endswith("chol_variational_covar"))
    return mean, root


def kernel_matrix(algorithm, left, right, kernel):
    if kernel == "linear":
        return left @ right.T
    scale, length = algorithm.prior.covariance.outputscale, algorithm.prior.covariance.base_kernel.lengthscale
    return scale * torch.exp(-0.5 * torch.cdist(left, right).square() / length.square())


def textbook_posterior(algorithm, rows, kernel):
    """q(f) at each row and KL(q(u) | p(u)) with dense matrices from the definition, not whitened."""
    jitter = algorithm.strategy.jitter_val
    with torch.no_grad():
        features, log_scale = algorithm.model(rows.inputs, rows.weights)
        inducing, _ = algorithm.model(algorithm.inducing_inputs)
        cross = kernel_matrix(algorithm, features, inducing, kernel)
        prior = kernel_matrix(algorithm, inducing, inducing, kernel) + jitter * torch.eye(len(inducing))
        factor = torch.linalg.cholesky(prior)
        mean, root = variational_parameters(algorithm)
        mean_u, root_u = factor @ mean, factor @ root.tril()
        covariance_u = root_u @ root_u.T
        solved = torch.linalg.solve(prior, cross.T).T
        own = kernel_matrix(algorithm, features, features, kernel).diagonal() + jitter
        variance = own + ((solved @ (covariance_u - prior)) * solved).sum(dim=1)
        divergence = torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(mean_u, covariance_u),
            torch.distributions.MultivariateNormal(torch.zeros_like(mean_u), prior),
        )
    return (
        solved @ mean_u,
        variance,
        torch.zeros((), dtype=torch.float64) if log_scale is None else log_scale,
        divergence,
    )


def test_shared_check():
    check_algorithm(lambda model, data: SVGP(model, len(data[0]), inducing_inputs=data[0][:16].clone()))


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


def batch_of(rows, index):
    return Rows(*(None if part is None else part[list(index)] for part in rows))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("noise", NOISES)
def test_batches_are_unbiased_over_all_of_them(kernel, noise):
    """n = 6, b = 2: the mean over all 15 batches of value and gradients is that of all rows."""
    rows = make_rows(6, noise)
    algorithm = make_algorithm(rows, noise, kernel, count=3)
    batches = [batch_of(rows, index) for index in itertools.combinations(range(6), 2)]

    def gradients(batch):
        algorithm.gradient(batch)
        return torch.cat([p.grad.flatten() for p in algorithm.parameters() if p.grad is not None])

    values = torch.tensor([algorithm.negative_elbo(batch) for batch in batches], dtype=torch.float64)
    full = algorithm.negative_elbo(rows)
    assert float(values.mean()) == pytest.approx(full, abs=1e-6)
    assert float(values.std()) > 1e-2  # single batches do differ
    mean_gradient = torch.stack([gradients(batch) for batch in batches]).mean(dim=0)
    torch.testing.assert_close(mean_gradient, gradients(rows), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("noise", NOISES)
def test_gradients_reach_all_parameters_and_are_right(kernel, noise):
    rows = make_rows(12, noise)
    algorithm = make_algorithm(rows, noise, kernel, model=make_model(noise, learn_output_scale=True))
    before = {name: value.clone() for name, value in algorithm.state_dict().items()}
    found = algorithm.gradient(rows)
    first = {name: value.grad.clone() for name, value in algorithm.named_parameters()}  # fails where there is none
    assert isinstance(algorithm, Algorithm)
    assert all(bool(torch.isfinite(gradient).all() and (gradient != 0).any()) for gradient in first.values())
    assert found.features.shape == (12, 8)
    assert not found.features.requires_grad
    assert (found.log_noise_scale is None) == (noise == "constant")
    mean, _, log_scale, _ = textbook_posterior(algorithm, rows, kernel)
    noise_variance = algorithm.model.noise_variance * log_scale.exp()
    expected_loss = ((rows.targets[:, 0] - mean).square() / noise_variance).mean()
    assert float(found.loss) == pytest.approx(float(expected_loss), rel=1e-6)

    algorithm.gradient(rows)  # gradients are set, not added
    for name, parameter in algorithm.named_parameters():
        torch.testing.assert_close(parameter.grad, first[name])
    for name, value in algorithm.state_dict().items():
        assert torch.equal(value, before[name])

    step = 1e-5
    for name, parameter in algorithm.named_parameters():
        index = int(first[name].abs().flatten().argmax())
        flat = parameter.data.view(-1)
        start = flat[index].item()
        values = []
        for sign in (1, -1):
            flat[index] = start + sign * step
            values.append(algorithm.negative_elbo(rows))
        flat[index] = start
        difference = (values[0] - values[1]) / (2 * step)
        assert float(first[name].flatten()[index]) == pytest.approx(difference, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("learn_inducing", [True, False])
def test_inducing_inputs_are_trained_or_fixed(learn_inducing):
    rows = make_rows(12, "constant")
    algorithm = make_algorithm(rows, learn_inducing=learn_inducing)
    trained = [id(parameter) for parameter in algorithm.parameter_groups()[0]["params"]]
    assert (id(algorithm.inducing_inputs) in trained) == learn_inducing
    assert any(value is algorithm.inducing_inputs for value in algorithm.state_dict(keep_vars=True).values())
    start = algorithm.inducing_inputs.detach().clone()
    algorithm.step([rows], torch.optim.SGD(algorithm.parameter_groups(), lr=0.1))
    assert torch.equal(algorithm.inducing_inputs, start) != learn_inducing


@pytest.mark.parametrize(
    ("kernel", "noise", "dtype"),
    [("linear", "constant", torch.float32), ("linear", "input", torch.float64), ("rbf", "input", torch.float32)],
)
def test_training_lowers_the_bound_and_predicts(kernel, noise, dtype):
    rows = make_rows(256, noise, dtype=dtype)
    model = make_model(noise, 0.5, hidden=(32, 32), dtype=dtype)
    chosen = SVGP.choose_inducing_inputs(rows.inputs, 32, seed=0)
    algorithm = SVGP(model, 256, inducing_inputs=chosen, kernel=kernel)
    optimizer = torch.optim.Adam(algorithm.parameter_groups(), lr=0.01)
    algorithm.initialize([batch_of(rows, range(32))])
    generator = torch.Generator().manual_seed(0)
    start = algorithm.negative_elbo(rows)
    for _ in range(25):
        for index in torch.randperm(256, generator=generator).split(32):
            loss = algorithm.step([batch_of(rows, index)], optimizer)
            assert math.isfinite(loss)
    end = algorithm.negative_elbo(rows)
    assert end < start - 0.5
    new_inputs, new_targets, _ = make_data(500, seed=7)
    prediction = algorithm.predict(new_inputs)
    error = (prediction.mean - new_targets[:, 0]).square().mean().sqrt()
    assert float(error) < 0.35 * float(new_targets.std())
    assert float(prediction.log_density(new_targets[:, 0]).mean()) > -0.2
    if kernel == "linear":
        assert end > model.nlml(rows)


@pytest.mark.parametrize("kernel", KERNELS)
def test_state_round_trip_gives_the_identical_next_step(kernel):
    noise = "input and weights"
    rows = make_rows(64, noise, dtype=torch.float32)
    batches = [batch_of(rows, range(start, start + 16)) for start in (0, 16, 32, 48)]

    def build(seed):
        model = make_model(noise, seed=seed, dtype=torch.float32)
        algorithm = make_algorithm(rows, kernel=kernel, model=model, scrambled=False, count=16)
        return algorithm, torch.optim.Adam(algorithm.parameter_groups(), lr=0.01)

    first, first_optimizer = build(seed=1)
    for batch in batches[:3]:
        first.step([batch], first_optimizer)
    second, second_optimizer = build(seed=2)
    assert second.negative_elbo(rows) != first.negative_elbo(rows)
    second.load_state_dict(first.state_dict())
    second_optimizer.load_state_dict(copy.deepcopy(first_optimizer.state_dict()))  # torch would share its moments
    losses = [
        algorithm.step([batches[3]], optimizer)
        for algorithm, optimizer in ((first, first_optimizer), (second, second_optimizer))
    ]
    assert losses[0] == losses[1]
    states = first.state_dict(), second.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert second.negative_elbo(rows) == first.negative_elbo(rows)


def test_evaluation_mode_sees_parameters_that_moved():
    """GPyTorch caches factors in evaluation mode; a cache that outlives a step would give old predictions."""
    rows = make_rows(12, "constant")
    algorithm = make_algorithm(rows)
    fresh = make_algorithm(rows)
    algorithm.eval()
    algorithm.gradient(rows)
    algorithm.predict(rows.inputs)
    with torch.no_grad():
        for changed in (algorithm, fresh):
            for parameter in changed.parameters():
                parameter.add_(0.05)
    assert algorithm.negative_elbo(rows) == fresh.negative_elbo(rows)
    assert torch.equal(algorithm.predict(rows.inputs).mean, fresh.predict(rows.inputs).mean)
    algorithm.gradient(rows)
    fresh.gradient(rows)
    torch.testing.assert_close(algorithm.inducing_inputs.grad, fresh.inducing_inputs.grad)


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


def test_choose_inducing_inputs():
    inputs = torch.arange(20.0)[:, None]
    chosen = SVGP.choose_inducing_inputs(inputs, 8, seed=1)
    assert chosen.shape == (8, 1)
    assert len(set(chosen[:, 0].tolist()) & set(range(20))) == 8
    assert torch.equal(chosen, SVGP.choose_inducing_inputs(inputs, 8, seed=1))
    assert not torch.equal(chosen, SVGP.choose_inducing_inputs(inputs, 8, seed=2))
    with pytest.raises(ValueError, match=r"between 1 and the number of rows \(20\), but is 21"):
        SVGP.choose_inducing_inputs(inputs, 21)
    with pytest.raises(ValueError, match="two-dimensional"):
        SVGP.choose_inducing_inputs(torch.arange(20.0), 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": "matern"}, "kernel must be 'linear' or 'rbf', but is 'matern'"),
        ({"initial_distribution": "random"}, "initial_distribution must be 'solved' or 'prior'"),
        ({"num_targets": 2}, "one target only, but num_targets is 2"),
        ({"num_data": 0}, "num_data must be at least 1"),
        ({"minimum_noise_variance": 0.0}, "minimum_noise_variance must be positive"),
        ({"inducing_inputs": torch.zeros(4)}, r"\(num_inducing, input_dim\).*shape \(4,\)"),
        ({"inducing_inputs": torch.zeros(0, 2)}, r"at least one of each.*shape \(0, 2\)"),
        ({"inducing_inputs": torch.zeros(4, 3)}, "2 columns of the inputs, but have 3"),
        ({"input_dim": 5}, "5 columns of the inputs, but have 2"),
        ({"inducing_inputs": torch.full((4, 2), math.nan)}, "inducing_inputs must be finite"),
    ],
)
def test_bad_arguments_are_named(changed, message):
    arguments = {"num_data": 10, "inducing_inputs": torch.zeros(4, 2), **changed}
    with pytest.raises(ValueError, match=message):
        SVGP(make_model(), **arguments)


def test_bad_data_are_named():
    rows = make_rows(12, "constant")
    algorithm = make_algorithm(rows)
    with pytest.raises(ValueError, match=r"targets \(rows, 1\), but got \(12, 2\)"):
        algorithm.gradient(rows._replace(targets=rows.targets.repeat(1, 2)))
    with pytest.raises(ValueError, match="have 2 columns, but got 3"):
        algorithm.predict(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="row 4, column 1"):
        algorithm.predict(torch.where(torch.arange(10).view(5, 2) == 9, math.nan, 0.0))


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(ImportError, match=r'pip install "finitegp\[peers\]"'):
        SVGP(make_model(), 10, inducing_inputs=torch.zeros(4, 2))
