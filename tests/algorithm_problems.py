"""Small problems that the tests of the algorithms share."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from finitegp import (
    FeatureGP,
    FeatureStatistics,
    FourierFeatures,
    InputNoise,
    exact_gradient,
)
from finitegp.algorithms import BSGD, SCGD, Exact, Lagged, Minimax, PaperMinimax
from finitegp.data import Rows
from finitegp.data.sampling import Sampler
from finitegp.likelihood import regularized_gram_factor
from finitegp.schedules import make_optimizer

NUM_DATA, BATCH = 6, 2


def tiny_problem(generator, noise="constant", targets=1):
    """Six rows and a float64 network of four features; row weights come with the input-dependent noise."""
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    if noise == "input":
        head = nn.Linear(4, 1).double()
        for parameter in head.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        model = FeatureGP(network, noise_model=InputNoise(head, variance=0.4)).double()
    else:
        model = FeatureGP(network, noise_variance=0.4).double()
    inputs = torch.randn(NUM_DATA, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(NUM_DATA, targets, generator=generator, dtype=torch.float64)
    weights = 0.5 + torch.rand(NUM_DATA, generator=generator, dtype=torch.float64) if noise == "input" else None
    return model, Rows(inputs, values, weights)


# One small fixed problem: 128 rows, ten Fourier features with learned scales.
def small_problem():
    generator = torch.Generator().manual_seed(5)
    inputs = 2 * torch.rand(128, 1, generator=generator) - 1
    targets = torch.sin(4 * inputs[:, 0]) + 0.3 * torch.randn(128, generator=generator)
    return inputs, targets


def small_model(seed=0):
    return FeatureGP(FourierFeatures(1, 10, sampling="sobol", seed=seed), 0.5)


def all_batches(rows):
    for index in itertools.combinations(range(NUM_DATA), BATCH):
        pick = list(index)
        yield Rows(rows.inputs[pick], rows.targets[pick], None if rows.weights is None else rows.weights[pick])


def gradients_of(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def mean_gradient(algorithm, rows):
    """The exact mean over all 15 batches of the gradient in every parameter of the algorithm."""
    total = {}
    for batch in all_batches(rows):
        for parameter in algorithm.parameters():
            parameter.grad = None
        algorithm.gradient(batch)
        for name, gradient in gradients_of(algorithm).items():
            total[name] = total.get(name, 0.0) + gradient / 15
    return total


def exact_mean_gradient(model, rows):
    exact_gradient(model, rows if rows.weights is not None else rows[:2])
    return {f"model.{name}": gradient / NUM_DATA for name, gradient in gradients_of(model).items()}


def exact_quantities(model, rows):
    """F, its inverse and the weights at the present parameters."""
    features, log_scale = model(rows.inputs, rows.weights)
    statistics = FeatureStatistics.from_batch(features, rows.targets, log_scale)
    factor = regularized_gram_factor(statistics, model.noise_variance)
    gram = statistics.gram + model.noise_variance * torch.eye(4).double()
    return gram, factor.inverse(), factor.solve(statistics.projected_targets)


def assert_same_gradients(found, expected, tolerance=1e-10):
    assert expected.keys() <= found.keys()
    for name, gradient in expected.items():
        error = float((found[name] - gradient).abs().max())
        assert error <= tolerance * max(1.0, float(gradient.abs().max())), (name, error)


ALGORITHMS = {
    "scgd": lambda model, data: SCGD(model, len(data[0]), tracking_rate=0.1),
    "scgd_one": lambda model, data: SCGD(model, len(data[0]), tracking_rate=1),
    "minimax": lambda model, data: Minimax(model, len(data[0])),
    "minimax_growing": lambda model, data: Minimax(
        model, len(data[0]), penalty=0.2, penalty_growth=2.0, penalty_steps=100, window=math.inf
    ),
    "minimax_paper": lambda model, data: PaperMinimax(model, len(data[0])),
    "bsgd": lambda model, data: BSGD(model, len(data[0])),
    "exact": lambda model, data: Exact(model, data),
    "lagged": lambda model, data: Lagged(model, len(data[0]), block=4, window=32),
    "lagged_trained": lambda model, data: Lagged(model, len(data[0]), block=4, window=32, weight_update="train"),
    "lagged_both": lambda model, data: Lagged(model, len(data[0]), block=4, window=32, weight_update="both"),
    "lagged_gradient_noise": lambda model, data: Lagged(
        model, len(data[0]), block=4, window=64, noise_update="gradient"
    ),
    "lagged_current": lambda model, data: Lagged(model, len(data[0]), block=1, window=64, include_current=True),
}


def check_algorithm(make):
    """What every algorithm must do, whatever it is."""
    data = small_problem()
    model = small_model()
    algorithm = make(model, data)
    optimizer = make_optimizer(algorithm, learning_rate=1e-2)
    sampler = Sampler(data, 16, seed=1)
    streams = list(zip(*(sampler.epoch(0, stream=k) for k in range(max(algorithm.batches_per_step, 1))), strict=True))
    algorithm.initialize([streams[-1][0], streams[-2][0]])

    # Finite loss; gradients reach every parameter that the optimizer is given.
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for batches in streams[:4]:
        assert math.isfinite(algorithm.step(batches, optimizer))
    for name, parameter in algorithm.named_parameters():
        if id(parameter) in trained:
            assert not torch.equal(parameter, before[name]), f"{name} did not move"
            assert bool(torch.isfinite(parameter).all()), name

    # A second object in the same state goes on identically.
    other = make(small_model(seed=9), data)
    other_optimizer = make_optimizer(other, learning_rate=1e-2)
    other.load_state_dict(algorithm.state_dict())
    other.load_pending_state({name: tensor.clone() for name, tensor in algorithm.pending_state().items()})
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the tensors
    for batches in streams[4:7]:
        assert algorithm.step(batches, optimizer) == other.step(batches, other_optimizer)
    for (name, mine), theirs in zip(algorithm.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name

    # The noise floor holds for noise that takes gradient steps; the closed form keeps it at the refresh.
    if id(model.noise.log_variance) not in trained:
        return
    with torch.no_grad():
        model.noise.log_variance.fill_(-100.0)
    algorithm.project()
    assert model.noise_variance == pytest.approx(1e-8, rel=1e-5)
