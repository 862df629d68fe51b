"""Likelihood, gradient, posterior and leave-one-out against the dense textbook GP, for d < n, d = n, d > n."""

import copy
import math

import pytest
import torch
from reference import DenseGP
from torch import nn

from finitegp import (
    ArraySource,
    FeatureGP,
    FeatureStatistics,
    InputNoise,
    WeightPosterior,
    exact_gradient,
    negative_log_marginal_likelihood,
    optimal_noise,
)
from finitegp.data.sampling import Sampler
from finitegp.errors import FeatureMapError
from finitegp.features import LinearFeatures

SHAPES = [(40, 5), (12, 12), (7, 20)]  # (rows, features)


def relative_error(found, expected):
    found, expected = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (found, expected))
    return float((found - expected).abs().max() / expected.abs().max())


def make_model(generator, rows, width, noise):
    """A small float64 network with constant or input-dependent noise, data with weights, and the dense reference."""
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, width)).double()
    for parameter in network.parameters():
        parameter.data = 0.7 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    if noise == "input":
        head = nn.Linear(width, 1).double()
        for parameter in head.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        model = FeatureGP(network, noise_model=InputNoise(head, variance=0.3)).double()
    else:
        model = FeatureGP(network, noise_variance=0.3, output_scale=1.7, learn_output_scale=True).double()
    inputs = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    weights = 0.5 + torch.rand(rows, generator=generator, dtype=torch.float64) if noise != "constant" else None
    return model, inputs, targets, weights


def dense(model, inputs, targets, weights):
    """The dense GP of a model, differentiable in all parameters, written without FeatureGP.forward."""
    features = model.feature_map(inputs)
    noise = model.noise.log_variance.exp() * torch.ones(len(inputs), dtype=torch.float64)
    if isinstance(model.noise, InputNoise):
        bound = model.noise.max_log_scale
        noise = noise * torch.exp(bound * torch.tanh(model.noise.module(features)[:, 0] / bound))
    if weights is not None:
        noise = noise / weights
    return DenseGP(features * torch.exp(0.5 * model.log_output_scale), targets, noise)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("noise", ["constant", "weights", "input"])
def test_likelihood_and_gradient_equal_the_dense_formula(generator, tolerances, rows, width, noise):
    model, inputs, targets, weights = make_model(generator, rows, width, noise)
    source = ArraySource(inputs, targets, weights, chunk_size=5)
    expected = dense(model, inputs, targets, weights).total_nlml()
    assert relative_error(model.likelihood(source).total_nlml, expected) < tolerances["reference"]
    assert relative_error(model.nlml(source), expected / rows) < tolerances["reference"]

    parameters = [p for p in model.parameters() if p.requires_grad]
    expected_gradients = torch.autograd.grad(expected, parameters)
    found = exact_gradient(model, source)
    assert relative_error(found.likelihood.total_nlml, expected) < tolerances["reference"]
    for parameter, gradient in zip(parameters, expected_gradients, strict=True):
        assert relative_error(parameter.grad, gradient) < tolerances["reference"]
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected_gradients))
    assert found.gradient_norm == pytest.approx(norm, rel=tolerances["reference"])


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("noise", ["constant", "weights", "input"])
def test_prediction_and_leave_one_out_equal_the_dense_formula(generator, tolerances, rows, width, noise):
    model, inputs, targets, weights = make_model(generator, rows, width, noise)
    data = (inputs, targets) if weights is None else (inputs, targets, weights)
    fitted = model.condition(data)
    with torch.no_grad():
        reference = dense(model, inputs, targets, weights)
        new_inputs = torch.randn(9, 3, generator=generator, dtype=torch.float64)
        new = dense(model, new_inputs, torch.zeros(9, 2), None)
        mean, covariance = reference.predict(new.features)
        loo_mean, loo_variance = reference.leave_one_out()
    prediction = fitted.predict(new_inputs, return_covariance=True)
    assert relative_error(prediction.mean, mean) < tolerances["reference"]
    assert relative_error(prediction.covariance, covariance) < tolerances["reference"]
    assert relative_error(prediction.epistemic_variance, covariance.diagonal()) < tolerances["reference"]
    assert relative_error(prediction.noise_variance, new.noise) < tolerances["reference"]
    left_out = fitted.leave_one_out(data)
    assert relative_error(left_out.mean, loo_mean) < tolerances["reference"]
    assert relative_error(left_out.variance, loo_variance) < tolerances["reference"]


def test_named_terms_add_up(generator):
    features = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, generator=generator, dtype=torch.float64)
    value = negative_log_marginal_likelihood(FeatureStatistics.from_batch(features, targets), 0.2)
    reference = DenseGP(features, targets, 0.2)
    _, log_determinant = torch.linalg.slogdet(reference.covariance)
    assert value.complexity == pytest.approx(0.5 * float(log_determinant), rel=1e-12)
    assert value.constant == pytest.approx(15 * math.log(2 * math.pi), rel=1e-15)
    assert value.total_nlml == pytest.approx(float(reference.total_nlml()), rel=1e-12)
    assert value.nlml == pytest.approx(value.total_nlml / 30, rel=1e-15)


def test_several_targets_equal_single_ones(generator):
    model, inputs, targets, _ = make_model(generator, 40, 5, "constant")
    both = model.condition((inputs, targets))
    total = 0.0
    for column in range(2):
        single = model.condition((inputs, targets[:, column]))
        total += model.nlml((inputs, targets[:, column]))
        found = both.predict(inputs)
        expected = single.predict(inputs)
        assert expected.mean.shape == (40,)
        torch.testing.assert_close(found.mean[:, column], expected.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.variance, expected.variance, rtol=1e-12, atol=1e-12)
    assert model.nlml((inputs, targets)) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("optimize_output_scale", [False, True])
def test_optimal_noise_is_the_optimum(generator, rows, width, optimize_output_scale):
    features = torch.randn(rows, width, generator=generator, dtype=torch.float64) / math.sqrt(width)
    log_scale = 0.3 * torch.randn(rows, generator=generator, dtype=torch.float64)
    # Many targets drawn from the model itself: signal and noise are both identified, the optimum is inside the range.
    noise = torch.exp(0.5 * log_scale)[:, None] * torch.randn(rows, 30, generator=generator, dtype=torch.float64)
    targets = features @ torch.randn(width, 30, generator=generator, dtype=torch.float64) + noise
    statistics = FeatureStatistics.from_batch(features, targets, log_scale)
    found = optimal_noise(statistics, optimize_output_scale=optimize_output_scale)
    assert not found.at_floor

    def nlml(log_noise, log_output_scale):
        scaled = features * torch.exp(0.5 * log_output_scale)
        return DenseGP(scaled, targets, (log_noise + log_scale).exp()).total_nlml() / rows

    point = [torch.tensor(math.log(v), dtype=torch.float64) for v in (found.noise_variance, found.output_scale)]
    for coordinate in point:
        coordinate.requires_grad_(True)
    value = nlml(*point)
    assert found.nlml == pytest.approx(float(value.detach()), rel=1e-9)
    gradient = torch.autograd.grad(value, point)
    assert abs(float(gradient[0])) < 1e-9 * float(value.detach())
    if optimize_output_scale:
        assert abs(float(gradient[1])) < 1e-9 * float(value.detach())
    else:
        assert found.output_scale == 1.0


def test_noise_free_targets_stop_at_the_floor(generator):
    features = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    statistics = FeatureStatistics.from_batch(features, features.sum(dim=1))
    found = optimal_noise(statistics)
    assert found.at_floor
    assert found.noise_variance == pytest.approx(1e-10 * 3, rel=0.5)


def test_model_takes_the_optimum(generator):
    model, inputs, targets, _ = make_model(generator, 40, 5, "constant")
    before = model.nlml((inputs, targets))
    found = model.optimize_noise((inputs, targets), optimize_output_scale=True)
    after = model.nlml((inputs, targets))
    assert after < before
    assert after == pytest.approx(found.nlml, rel=1e-9)


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_update_forget_and_merge_are_exact(generator, noise):
    model, inputs, targets, weights = make_model(generator, 40, 5, noise)

    def rows(index):
        parts = (inputs, targets) if weights is None else (inputs, targets, weights)
        return tuple(part[index] for part in parts)

    whole = model.condition(rows(slice(None)))
    head, tail = model.condition(rows(slice(0, 25))), model.condition(rows(slice(25, None)))
    for other in (head.update(rows(slice(25, None))), head.merge(tail), tail.merge(head)):
        torch.testing.assert_close(other.predict(inputs).mean, whole.predict(inputs).mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            other.predict(inputs).variance, whole.predict(inputs).variance, rtol=1e-10, atol=1e-12
        )
    forgotten = whole.forget(rows(slice(25, None)))
    torch.testing.assert_close(forgotten.predict(inputs).mean, head.predict(inputs).mean, rtol=1e-10, atol=1e-12)
    assert forgotten.posterior.statistics.num_data == 25


def test_weight_space_samples_are_functions_with_the_right_moments(generator):
    model, inputs, targets, _ = make_model(generator, 40, 5, "constant")
    fitted = model.condition((inputs, targets[:, 0]))
    functions = fitted.sample(20000, seed=3)
    points = inputs[:4]
    values = functions(points)
    assert values.shape == (20000, 4)
    assert torch.equal(values, functions(points))
    torch.testing.assert_close(values[:, :2], functions(points[:2]), rtol=1e-13, atol=1e-13)
    prediction = fitted.predict(points, return_covariance=True)
    # Five standard errors of a mean and of a covariance over 20000 draws.
    deviation = prediction.epistemic_variance.sqrt()
    assert bool(((values.mean(dim=0) - prediction.mean).abs() < 5 * deviation / math.sqrt(20000)).all())
    allowed = 5 * torch.outer(deviation, deviation) * math.sqrt(2 / 20000)
    assert bool(((torch.cov(values.T) - prediction.covariance).abs() < allowed).all())
    assert not torch.equal(values, fitted.sample(20000, seed=4)(points))
    two = model.condition((inputs, targets)).sample(3)(points)
    assert two.shape == (3, 4, 2)


def test_conditioned_model_does_not_follow_later_training(generator):
    model, inputs, targets, _ = make_model(generator, 40, 5, "constant")
    fitted = model.condition((inputs, targets))
    before = fitted.predict(inputs).mean
    for parameter in model.parameters():
        parameter.data += 1.0
    assert torch.equal(fitted.predict(inputs).mean, before)


def test_two_pass_gradient_does_not_depend_on_chunks(generator):
    model, inputs, targets, _ = make_model(generator, 40, 5, "constant")
    gradients = []
    for chunk in (1, 7, 40):
        exact_gradient(model, ArraySource(inputs, targets, chunk_size=chunk))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rows", [40, 3])
def test_the_exact_gradient_of_the_noise_needs_none_of_the_features(generator, rows):
    def gradients(frozen):
        torch.manual_seed(0)
        noise = InputNoise(nn.Linear(3, 1), reads="inputs")
        model = FeatureGP(nn.Linear(3, 5).requires_grad_(not frozen), noise_model=noise).double()
        exact_gradient(model, (inputs, targets))
        return [parameter.grad for parameter in model.noise.parameters()]

    inputs, targets = torch.randn(rows, 3, generator=generator), torch.randn(rows, generator=generator)
    for found, expected in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_exact_passes_see_a_module_in_evaluation_mode(generator):
    network = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    model = FeatureGP(network, 0.1)
    inputs, targets = torch.randn(20, 3, generator=generator), torch.randn(20, generator=generator)
    state = copy.deepcopy(model.state_dict())
    assert model.nlml((inputs, targets)) == model.nlml((inputs, targets))
    exact_gradient(model, (inputs, targets))
    assert model.training
    assert network[1].training
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize("noise_variance", [1e-2, 1e-4, 1e-6, 1e-8])
def test_float32_network_reports_the_float64_likelihood(generator, noise_variance):
    """Targets of variance one that the features explain almost entirely, unscaled inputs, float32 parameters."""
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    inputs = 3 * torch.randn(3000, 4, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        features = copy.deepcopy(network).double()(inputs)
        signal = features @ torch.randn(32, generator=generator, dtype=torch.float64)
        noise = torch.randn(3000, generator=generator, dtype=torch.float64)
        targets = signal / signal.std() + math.sqrt(noise_variance) * noise
        expected = DenseGP(features, targets, noise_variance).total_nlml() / 3000
    model = FeatureGP(network, noise_variance)
    assert model.nlml((inputs, targets)) == pytest.approx(float(expected), rel=1e-4)


def test_posterior_rejects_what_does_not_fit(generator):
    features = torch.randn(10, 3, generator=generator, dtype=torch.float64)
    statistics = FeatureStatistics.from_batch(features, features.sum(dim=1))
    posterior = WeightPosterior(statistics, 0.1)
    with pytest.raises(ValueError, match=r"features must have shape \(rows, 3\)"):
        posterior.predict(features[:, :2])
    with pytest.raises(ValueError, match="not among the rows"):
        posterior.forget(FeatureStatistics.from_batch(100 * features[:5], torch.ones(5)))
    targets = features.sum(dim=1)
    with pytest.raises(ValueError, match=r"not among the rows.*negative sum of squared residuals"):
        posterior.forget(FeatureStatistics.from_batch(features[:5], 1000.0 * targets[:5]))
    with pytest.raises(ValueError, match=r"not among the rows.*negative sum of squared residuals"):
        posterior.forget(FeatureStatistics.from_batch(features[:5], targets[:5] + 3.0))
    fewer = posterior.forget(FeatureStatistics.from_batch(features[:5], targets[:5]))
    with pytest.raises(ValueError, match="not among the rows"):
        fewer.forget(FeatureStatistics.from_batch(features[:5], targets[:5]))
    assert fewer.forget(FeatureStatistics.from_batch(features[5:], targets[5:])).weight_mean.abs().max() < 1e-12
    with pytest.raises(ValueError, match="different noise variances"):
        posterior.merge(WeightPosterior(statistics, 0.2))
    with pytest.raises(ValueError, match="num_samples"):
        posterior.sample_weights(0)
    with pytest.raises(ArithmeticError, match="not among the training rows"):
        posterior.leave_one_out(1e3 * features, features.sum(dim=1))
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="noise_variance must be positive"):
            WeightPosterior(statistics, bad)


def test_prediction_intervals_and_densities():
    normal = torch.distributions.Normal(torch.tensor([1.0, 2.0]).double(), torch.tensor([0.5, 2.0]).double())
    prediction = WeightPosterior(FeatureStatistics.zeros(1), 1.0).predict(torch.zeros(2, 1))
    prediction = type(prediction)(normal.mean, 0.36 * normal.variance, 0.64 * normal.variance)
    targets = torch.tensor([0.3, 5.0]).double()
    torch.testing.assert_close(prediction.log_density(targets), normal.log_prob(targets))
    low, high = prediction.interval(0.8)
    torch.testing.assert_close(normal.cdf(high) - normal.cdf(low), torch.full((2,), 0.8).double())
    with pytest.raises(ValueError, match="coverage"):
        prediction.interval(1.0)
    with pytest.raises(ValueError, match="shape of the mean"):
        prediction.log_density(targets[:1])


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_a_count_equals_repeated_rows(generator, noise, tolerances):
    model, inputs, targets, _ = make_model(generator, 12, 5, noise)
    counts = torch.tensor([1, 3, 2, 1, 4, 1, 1, 2, 5, 1, 1, 2])
    counted = ArraySource(inputs, targets, counts=counts, chunk_size=5)
    repeated = inputs.repeat_interleave(counts, dim=0), targets.repeat_interleave(counts, dim=0)
    assert relative_error(model.likelihood(counted).total_nlml, model.likelihood(repeated).total_nlml) < 1e-10
    gradients = []
    for rows in (counted, repeated):
        exact_gradient(model, rows)
        gradients.append(torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None]))
    assert relative_error(gradients[0], gradients[1]) < tolerances["reference"]
    one, two = model.condition(counted).posterior, model.condition(repeated).posterior
    assert one.statistics.num_data == two.statistics.num_data == 24
    assert relative_error(one.weight_mean, two.weight_mean) < tolerances["reference"]
    assert relative_error(one.weight_covariance, two.weight_covariance) < tolerances["reference"]
    # Nearly no noise: the likelihood is evaluated with a second pass.
    model.noise.set_variance(1e-9)
    assert relative_error(model.likelihood(counted).total_nlml, model.likelihood(repeated).total_nlml) < 1e-7


def test_batches_carry_counts_as_relative_weights():
    source = ArraySource(torch.zeros(3, 1), torch.zeros(3), torch.tensor([1.0, 1.0, 2.0]), counts=[1, 2, 3])
    assert Sampler(source, 3).kept.weights.tolist() == [0.5, 1.0, 3.0]


@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize("counted", [False, True])
def test_few_rows_through_rows_equal_two_passes_through_features(generator, noise, counted, tolerances):
    model, inputs, targets, weights = make_model(generator, 7, 20, noise)
    counts = torch.tensor([1.0, 3.0, 2.5, 1.0, 0.5, 1.0, 7.0]) if counted else None
    found = []
    for chunk_size in (7, 4):  # one chunk of fewer rows than features; two chunks
        result = exact_gradient(model, ArraySource(inputs, targets, weights, counts=counts, chunk_size=chunk_size))
        gradient = torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None])
        found.append((result, gradient.clone()))
    (rows, by_rows), (features, by_features) = found
    assert relative_error(by_rows, by_features) < tolerances["reference"]
    for name in ("fit", "complexity", "constant", "num_data"):
        expected = getattr(features.likelihood, name)
        assert getattr(rows.likelihood, name) == pytest.approx(expected, rel=tolerances["reference"])
    assert rows.gradient_norm == pytest.approx(features.gradient_norm, rel=tolerances["reference"])


def test_few_rows_name_a_feature_that_is_not_finite():
    class Bad(nn.Module):
        def forward(self, inputs):
            return torch.where(inputs > 2, torch.nan, inputs).expand(-1, 9)

    with pytest.raises(FeatureMapError, match="row 3, column 0"):
        exact_gradient(FeatureGP(Bad()), (torch.arange(4.0)[:, None], torch.zeros(4)))


def test_noise_optimised_while_conditioning_is_that_of_two_passes(generator):
    inputs = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    targets = inputs[:, 0] + 0.3 * torch.randn(80, generator=generator, dtype=torch.float64)
    one, two = (FeatureGP(LinearFeatures(2), noise_variance=3.0).double() for _ in range(2))
    fitted = one.condition((inputs, targets), optimize_noise=True)
    two.optimize_noise((inputs, targets))
    expected = two.condition((inputs, targets))
    assert one.noise_variance == pytest.approx(two.noise_variance, rel=1e-12)
    torch.testing.assert_close(fitted.posterior.weight_mean, expected.posterior.weight_mean, rtol=1e-12, atol=1e-12)
    assert fitted.posterior.noise_variance == pytest.approx(two.noise_variance, rel=1e-12)
    features, scales = fitted.features(inputs, chunk_size=30)
    assert scales is None
    torch.testing.assert_close(fitted.posterior.predict(features).mean, expected.predict(inputs).mean)
