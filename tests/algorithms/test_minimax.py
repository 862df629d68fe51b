"""Minimax settles at its saddle point; the paper's iteration keeps to its constraints."""

import numpy as np
import pytest
import torch
from algorithm_problems import NUM_DATA, small_model, small_problem, tiny_problem
from scipy.linalg import solve_discrete_lyapunov
from torch import nn

from finitegp import FeatureGP, Minimax, MLPFeatures, PaperMinimax, cosine_decay, fit_full_batch, make_optimizer, train
from finitegp.data import Rows


def test_paper_minimax_projects_only_when_needed(generator):
    model, _ = tiny_problem(generator)
    algorithm = PaperMinimax(model, NUM_DATA, input_dim=3)
    algorithm.project()
    assert algorithm.projections == 0
    floor = model.noise_variance / NUM_DATA
    algorithm.gram_estimate.data = torch.diag(torch.tensor([-1.0, 0.5 * floor, 1.0, 2.0]).double())
    algorithm.project()
    assert algorithm.projections == 1
    expected = torch.diag(torch.tensor([floor, floor, 1.0, 2.0]).double())
    torch.testing.assert_close(algorithm.gram_estimate.data, expected, rtol=1e-5, atol=1e-9)
    algorithm.project()
    assert algorithm.projections == 1
    with torch.no_grad():
        algorithm.weights.fill_(5e3)
        model.feature_map[0].weight.fill_(-5e3)
        algorithm.gram_estimate.copy_(4e3 * torch.eye(4).double() + 1e3)
    algorithm.project()
    assert float(algorithm.weights.detach().max()) == 1e3
    assert float(model.feature_map[0].weight.detach().min()) == -1e3
    # The box holds for the estimate, too, and does not take it out of the cone.
    torch.testing.assert_close(algorithm.gram_estimate.diagonal().detach(), torch.full((4,), 1e3).double())
    assert algorithm.projections == 1


def test_paper_minimax_dual_stays_in_the_ball_and_the_penalty_rises():
    data = small_problem()
    algorithm = PaperMinimax(small_model(), 128, penalty=1.0, penalty_growth=2.0, penalty_steps=8)
    train(algorithm, make_optimizer(algorithm, learning_rate=0.05), data, epochs=4, batch_size=16)
    assert float(algorithm.dual_matrix.detach().norm()) <= 1.0 + 1e-12
    assert float(algorithm.penalty) == 2.0**4


def fixed_features(generator, rows=400, features=16):
    """Frozen features whose Gram matrix has eigenvalues from 1 to 1e-4 per row, some of them far below the noise."""
    scales = torch.logspace(0, -2, features)
    inputs = torch.randn(rows, features, generator=generator) * scales
    model = FeatureGP(nn.Linear(features, features, bias=False), noise_variance=0.1)
    nn.init.orthogonal_(model.feature_map.weight, generator=generator)
    model.requires_grad_(False)
    return model, (inputs, torch.randn(rows, generator=generator))


@pytest.mark.parametrize("batch_size", [pytest.param(8, marks=pytest.mark.slow), 64])
@pytest.mark.parametrize(("penalty", "share"), [(2.0, 1.0), (1.5, 1.0), (0.25, 1 / 3)])
def test_minimax_settles_at_the_saddle_point(generator, batch_size, penalty, share):
    """A = F and P = F^-1 from a penalty of 1 on, with noise that falls with the window; below, a part of the term.

    At a fixed point A is a multiple of F with A P A - A + 2 (F - A) = 0, P at its bound of 0.25 A^-1: A = 8/11 F and
    tr(P F) = 11/32 d where all of it is bound, between 1/4 and 11/32 where not.
    """
    model, data = fixed_features(generator)
    errors = {}
    for window in (64 * 16, 512 * 16):
        algorithm = Minimax(model, 400, penalty=penalty, window=window, input_dim=16)
        optimizer = make_optimizer(algorithm, learning_rate=1e-3)
        train(algorithm, optimizer, data, epochs=120, batch_size=batch_size)
        gram = model.statistics(data).gram + 0.1 * torch.eye(16).double()
        assert float((algorithm.inverse_gram.double() * gram).sum()) / 16 == pytest.approx(share, rel=0.12)
        errors[window] = float((algorithm.gram_estimate - gram).norm() / gram.norm())
    if share == 1.0:
        assert errors[512 * 16] < 0.05
        assert errors[512 * 16] < errors[64 * 16] < 0.4


def test_the_penalty_of_minimax_has_an_effect():
    """Without the complexity term the noise-free features grow: the NLML ends far above the optimum."""
    data = small_problem()
    optimum = fit_full_batch(small_model().double(), data).nlml
    model = small_model()
    algorithm = Minimax(model, 128, penalty=1e-6)
    optimizer = make_optimizer(algorithm, learning_rate=2e-2)
    train(algorithm, optimizer, data, epochs=250, batch_size=16, schedule=cosine_decay(2000))
    assert model.nlml(data) - optimum > 2 * 5e-3  # which is the most with the penalty, in test_every_algorithm.py


def test_minimax_estimate_stays_positive_and_bounded(generator):
    """Whatever the multiplier in its ball: at most twice the largest batch mean, never below zero."""
    model, data = fixed_features(generator)
    algorithm = Minimax(model, 400, window=16, input_dim=16)
    algorithm.initialize([Rows(data[0][:2], data[1][:2, None])])
    for step in range(200):
        algorithm.multiplier.copy_(2.0 * torch.eye(16) if step % 7 else torch.zeros(16, 16))
        for stream in range(2):
            index = torch.randint(400, (16,), generator=generator)
            algorithm._take_up(stream, [model(data[0][index])], 0.1)
        algorithm._move()
        eigenvalues = torch.linalg.eigvalsh(algorithm.gram_estimate)
        assert float(eigenvalues[0]) > 0.0
    largest = max(float(torch.linalg.eigvalsh(400 * row[:, None] * row).max()) for row in data[0].double()) + 0.1
    assert float(eigenvalues[-1]) < 2.0 * largest


def test_paper_minimax_does_not_depend_on_how_the_optimizer_groups_parameters():
    data = small_problem()
    algorithms = [PaperMinimax(small_model().double(), 128) for _ in range(2)]
    optimizers = [
        torch.optim.AdamW(algorithms[0].parameter_groups(), lr=1e-2),
        torch.optim.AdamW([p for p in algorithms[1].parameters() if p.requires_grad], lr=1e-2),
    ]
    for algorithm, optimizer in zip(algorithms, optimizers, strict=True):
        train(algorithm, optimizer, data, epochs=2, batch_size=16)
        assert len(optimizer.param_groups) in (1, 2)
    for (name, one), other in zip(algorithms[0].state_dict().items(), algorithms[1].state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


def test_paper_minimax_takes_the_batch_gram_through_row_products_in_float32(generator):
    """The estimate's gradient holds the batch's Gram matrix only as a sum over rows, in the network's own type."""
    model = FeatureGP(MLPFeatures(5, hidden=(64, 64), seed=0), noise_variance=1e-6)
    rows = Rows(torch.randn(32, 5, generator=generator), torch.randn(32, 1, generator=generator))
    algorithm = PaperMinimax(model, 1000)
    algorithm.initialize([Rows(torch.randn(32, 5, generator=generator), rows.targets)])
    dual = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    algorithm.dual_matrix.data = (dual + dual.T) / (dual + dual.T).norm()
    algorithm.estimate_inverse.zero_()  # up to 1e9 here: it would drown what is compared
    algorithm.gradient(rows)
    estimate, dual = algorithm.gram_estimate.detach(), algorithm.dual_matrix.detach()
    features = model.feature_map(rows.inputs).detach().double()
    gap = estimate - features.T @ features / 32 - 1e-9 * torch.eye(64).double()
    norm = estimate.norm()
    expected = -(dual * gap).sum() / norm**3 * estimate / 2000
    found = algorithm.gram_estimate.grad - dual / norm / 2000
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-12)


def test_noise_of_estimate_and_multiplier_as_the_docstring_has_it():
    """Linearised at the saddle point: the stationary variances times window over rows, for damping 2."""
    rate, damping = 2e-3, 2.0
    slow = 0.25 * rate * (damping - 1.0) ** 2
    move = np.array([[1.0 - rate * (damping - 1.0), rate], [-slow, 1.0]])
    variances = solve_discrete_lyapunov(move, np.diag([(rate * damping) ** 2, slow**2])).diagonal()
    # rate = 2 / window, in batches.
    np.testing.assert_allclose(variances * 2.0 / rate, [4.3, 1.3], rtol=0.03)
