"""SCGD: its schedules, its two forms, and what it tracks."""

import pytest
import torch
from algorithm_problems import (
    NUM_DATA,
    small_model,
    small_problem,
    tiny_problem,
)

from finitegp import FeatureGP
from finitegp.algorithms import SCGD
from finitegp.data import Rows
from finitegp.features import FourierFeatures
from finitegp.schedules import make_optimizer, theory_decay
from finitegp.training import train


def test_theory_schedules_of_scgd():
    data = small_problem()
    model = small_model()
    algorithm = SCGD(model, 128, tracking_rate="theory")
    before = model.nlml(data)
    optimizer = make_optimizer(algorithm, "sgd", learning_rate=0.1)
    train(algorithm, optimizer, data, epochs=20, batch_size=16, schedule=theory_decay())
    assert int(algorithm.steps) == 160
    assert model.nlml(data) < before


def test_scgd_steps_before_it_tracks(generator):
    """The gradient of a batch uses the Gram matrix tracked before it, and the tracked matrix is that of the theory."""
    model, rows = tiny_problem(generator)
    algorithm = SCGD(model, NUM_DATA, tracking_rate=0.9, input_dim=3)
    start = algorithm.tracked_gram.clone()
    found = algorithm.gradient(Rows(rows.inputs[:2], rows.targets[:2]))
    assert torch.equal(algorithm.tracked_gram, start)
    algorithm.track(Rows(rows.inputs[:2], rows.targets[:2]), found)
    features = model.feature_map(rows.inputs[:2]).detach()
    estimate = 3 * features.T @ features + model.noise_variance * torch.eye(4).double()
    torch.testing.assert_close(algorithm.tracked_gram, 0.1 * start + 0.9 * estimate)


@pytest.mark.parametrize("rate", [0.9, 0.99])
def test_scgd_as_rows_equals_scgd_as_a_matrix(generator, rate):
    """With many features the tracked matrix is kept as the rows it remembers: the same steps to 1e-7."""
    inputs = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    data = inputs, torch.sin(4 * inputs[:, 0]) + 0.3 * torch.randn(300, generator=generator)
    found = {}
    for rows in (True, False):
        model = FeatureGP(FourierFeatures(2, 256, seed=0), 0.1).double()
        algorithm = SCGD(model, 300, tracking_rate=rate)
        if not rows:
            algorithm._remembers_few_rows = lambda *_: False
        train(algorithm, make_optimizer(algorithm, "sgd", learning_rate=0.05), data, epochs=2, batch_size=4)
        assert (algorithm.recent is not None) == rows
        if rows:
            assert len(algorithm.recent.features) <= 256 / 3
            assert float(algorithm.recent.weights.min()) > 0.0
        found[rows] = dict(algorithm.named_parameters()) | {
            "trace": torch.tensor(
                algorithm._times_inverse(model.feature_map(inputs[:3]).detach(), model.noise_variance)[1]
            )
        }
    for name, value in found[False].items():
        torch.testing.assert_close(found[True][name], value, rtol=1e-7, atol=1e-7, msg=name)


@pytest.mark.parametrize(("features", "rate", "rows"), [(256, 0.9, True), (256, 0.1, False), (64, 0.9, False)])
def test_scgd_chooses_the_cheaper_form(features, rate, rows):
    data = small_problem()
    algorithm = SCGD(FeatureGP(FourierFeatures(1, features, seed=0), 0.1), 128, tracking_rate=rate)
    algorithm.initialize([Rows(data[0][:4], data[1][:4, None])] * 3)
    assert (algorithm.recent is not None) == rows


def test_scgd_tracks_with_the_noise_of_its_own_step(generator):
    """The optimizer changes the noise between gradient and tracking: the matrix takes the noise from before."""
    model, rows = tiny_problem(generator)
    algorithm = SCGD(model, NUM_DATA, tracking_rate=0.9, input_dim=3)
    start, noise = algorithm.tracked_gram.clone(), model.noise_variance
    features = model.feature_map(rows.inputs[:2]).detach()
    algorithm.step([Rows(rows.inputs[:2], rows.targets[:2])], make_optimizer(algorithm, "sgd", learning_rate=0.5))
    assert abs(model.noise_variance - noise) > 0.01
    expected = 0.1 * start + 0.9 * (3 * features.T @ features + noise * torch.eye(4).double())
    torch.testing.assert_close(algorithm.tracked_gram, expected, rtol=1e-10, atol=1e-10)
