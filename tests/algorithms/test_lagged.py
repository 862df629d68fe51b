"""Lagged: which batches it uses, and its noise."""

import pytest
import torch
from algorithm_problems import (
    NUM_DATA,
    small_model,
    small_problem,
    tiny_problem,
)
from torch import nn

from finitegp import FeatureGP
from finitegp.algorithms import Lagged
from finitegp.data import Rows
from finitegp.schedules import make_optimizer
from finitegp.training import train


def test_lagged_uses_earlier_batches_only(generator):
    model, rows = tiny_problem(generator)
    algorithm = Lagged(model, NUM_DATA, block=2, window=2, noise_update="gradient", input_dim=3)
    optimizer = make_optimizer(algorithm, "sgd", learning_rate=1e-30)
    first, second = Rows(rows.inputs[:2], rows.targets[:2]), Rows(rows.inputs[2:4], rows.targets[2:4])
    start = algorithm.weights.clone()
    algorithm.step([first], optimizer)
    assert torch.equal(algorithm.weights, start)
    algorithm.step([second], optimizer)
    features = model.feature_map(rows.inputs[:4]).detach()
    gram = 1.5 * features.T @ features + model.noise_variance * torch.eye(4).double()
    expected = torch.linalg.solve(gram, 1.5 * features.T @ rows.targets[:4])
    torch.testing.assert_close(algorithm.weights, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(algorithm.inverse_gram, torch.linalg.inv(gram), rtol=1e-9, atol=1e-9)


def test_lagged_window_forgets(generator):
    """After many blocks of one batch the first batch's share is (1 - block / window)^blocks."""
    model, rows = tiny_problem(generator)
    algorithm = Lagged(model, NUM_DATA, block=1, window=4, input_dim=3)
    for _ in range(3):
        algorithm._take_up(model.feature_map(rows.inputs[:2]).detach(), rows.targets[:2], None)
    assert float(algorithm.tracked_rows) == pytest.approx(2 * (1 + 0.75 + 0.75**2))


@pytest.mark.parametrize("window", [400.0, 20.0])
def test_lagged_ends_with_the_optimal_noise(window):
    data = small_problem()
    model = small_model()
    algorithm = Lagged(model, 128, window=window)
    train(algorithm, make_optimizer(algorithm, learning_rate=1e-2), data, epochs=10, batch_size=16)
    trained = model.noise_variance
    assert trained == pytest.approx(model.optimize_noise(data).noise_variance, rel=1e-5)


def test_noise_of_lagged_from_residuals_is_right_for_fixed_features(generator):
    """Out of sample the weights of m rows add d/m to the squared residuals; that is taken off again."""
    inputs = torch.randn(50_000, 20, generator=generator)
    targets = inputs.sum(dim=1) + 0.5 * torch.randn(50_000, generator=generator)
    model = FeatureGP(nn.Identity(), noise_variance=1.0)
    model.feature_map.num_features = 20
    algorithm = Lagged(model, 50_000, block=5, window=5, input_dim=20)
    found = []
    for start in range(0, 50_000, 20):
        part = slice(start, start + 20)
        algorithm.step([Rows(inputs[part], targets[part, None])], make_optimizer(algorithm))
        found.append(model.noise_variance)
    # Each from 2000 rows; the mean of the later ones is good to two per cent. Uncorrected it is 0.25 * 1.2.
    assert sum(found[1000:]) / len(found[1000:]) == pytest.approx(0.25, rel=0.05)
