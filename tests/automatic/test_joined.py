"""Joined features, and priors chosen by rescaled sums."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from finitegp.automatic.calibration import HeldOut, calibrate
from finitegp.automatic.joined import (
    Blocks,
    Prior,
    column_weights,
    make_joined_model,
    rescale,
    with_prior,
)
from finitegp.automatic.table import Table
from finitegp.error_shape import TailedShape
from finitegp.noise import ConstantNoise, InputNoise
from finitegp.posterior import WeightPosterior


def make_rows(count, seed, counts=False):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, 3))
    targets = np.tanh(inputs @ [1.0, -1.0, 0.0]) + 0.2 * rng.normal(size=count)
    return Table(inputs, targets, rng.integers(1, 4, size=count).astype(float) if counts else None)


def make_model(noise=None):
    networks = [nn.Sequential(nn.Linear(3, 6), nn.Tanh()), nn.Sequential(nn.Linear(3, 6), nn.Tanh())]
    return make_joined_model(networks, np.array([1.0, 0.5, 0.0]), 16, noise or ConstantNoise(0.1), seed=0)


def look(model, rows, excess=None):
    features, log_scale = model.checked_forward(next(iter(rows.source())))
    nothing = np.zeros(len(rows))
    return HeldOut(rows, features, log_scale, nothing if excess is None else excess, nothing)


@pytest.mark.parametrize("noise", [ConstantNoise(0.1), InputNoise(nn.Linear(3, 1), reads="inputs", bounds=(-0.5, 0.5))])
def test_rescaled_sums_are_those_of_direct_conditioning(noise):
    rows = make_rows(60, 0, counts=True)
    model, blocks = make_model(noise)
    sums = model.statistics(rows.source())
    fitted = with_prior(model, sums, blocks, Prior(0.01, 0.3, 0.05))
    direct = fitted.model.condition(rows.source())
    new = np.random.default_rng(1).normal(size=(20, 3))
    for name in ("mean", "epistemic_variance", "noise_variance"):
        found, expected = getattr(fitted.predict(new), name), getattr(direct.predict(new), name)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_prior_variances_are_those_of_the_blocks():
    """The kernel is the sum of the blocks' kernels, each times its prior variance; the line is not scaled."""
    model, blocks = make_model()
    inputs = torch.randn(5, 3, dtype=torch.float64)
    unit = model(inputs)[0]
    network, fourier, line = torch.split(unit, list(blocks), dim=1)
    expected = 0.01 * network @ network.T + 0.3 * fourier @ fourier.T + line @ line.T
    weights = torch.from_numpy(column_weights(np.array([1.0, 0.5, 0.0])))
    torch.testing.assert_close(line, torch.cat([inputs * weights, torch.ones(5, 1)], dim=1), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close((fourier @ fourier.T).diagonal(), torch.ones(5, dtype=torch.float64))
    fitted = with_prior(model, model.statistics((inputs, torch.zeros(5))), blocks, Prior(0.01, 0.3, 0.05))
    features = fitted.model(inputs)[0]
    torch.testing.assert_close(features @ features.T, expected)


def test_calibration_ends_at_the_best_density_of_its_neighbours():
    training, held = make_rows(400, 0), make_rows(300, 1)
    model, blocks = make_model()
    sums = model.statistics(training.source())
    rows = look(model, held)
    found = calibrate(sums, blocks, rows, None, noise_variance=1.0, heavy_tails=False)

    def density(prior):
        scales = blocks.scales(prior)
        prediction = WeightPosterior(rescale(sums, scales), prior.noise).predict(rows.features * scales)
        squares = (torch.from_numpy(held.targets) - prediction.mean).square()
        return float((0.5 * prediction.variance.log() + 0.5 * squares / prediction.variance).mean())

    here = density(found.prior)
    for name in ("network", "fourier", "noise"):
        for factor in (0.1, 10.0):
            other = found.prior._replace(**{name: getattr(found.prior, name) * factor})
            assert density(other) > here - 0.005
    # Means of squares are one, and the noise is about that of the rows.
    assert 0.03 < found.prior.noise < 0.06
    assert np.mean(found.scores**2) == pytest.approx(1.0, abs=0.1)


def test_heavy_tails_are_seen():
    rng = np.random.default_rng(0)
    training, held = make_rows(400, 0), make_rows(1000, 1)
    heavy = Table(held.inputs, held.targets + 0.2 * rng.standard_t(2.5, size=1000))
    model, blocks = make_model()
    sums = model.statistics(training.source())
    found = calibrate(sums, blocks, look(model, heavy), None, noise_variance=0.1)
    assert found.error_shape.degrees_of_freedom is not None
    assert np.mean(found.scores <= norm.ppf(0.95)) == pytest.approx(0.9, abs=0.03)


def test_a_share_of_larger_errors_is_seen():
    """Three quarters of the rows are hit almost exactly, the others are not: no single Student's t holds both."""
    rng = np.random.default_rng(0)
    training, held = make_rows(400, 0), make_rows(2000, 1)
    errors = np.where(rng.random(2000) < 0.25, 3.0, 0.02) * rng.normal(size=2000)
    model, blocks = make_model()
    sums = model.statistics(training.source())
    wild = Table(held.inputs, held.targets + errors)
    found = calibrate(sums, blocks, look(model, wild), None, noise_variance=0.1)
    assert isinstance(found.error_shape, TailedShape)
    assert found.error_shape.share == pytest.approx(0.25, abs=0.05)
    for coverage in (0.5, 0.9, 0.99):
        inside = np.mean(found.scores <= norm.ppf(0.5 + 0.5 * coverage))
        assert inside == pytest.approx(coverage, abs=0.03)


def test_intervals_are_widened_where_they_hold_less_than_they_promise():
    """A fifth of the errors are all about one: the densest Gaussian has 90 % intervals that hold four fifths."""
    rng = np.random.default_rng(0)
    training, held = make_rows(400, 0), make_rows(1000, 1)
    model, blocks = make_model()
    sums = model.statistics(training.source())
    options = {"noise_variance": 0.1, "heavy_tails": False}
    errors = np.where(rng.random(1000) < 0.2, rng.choice([-1.0, 1.0], 1000), 0.05 * rng.normal(size=1000))
    shaped = Table(held.inputs, held.targets + errors)
    found = calibrate(sums, blocks, look(model, shaped), None, **options)
    assert np.mean(found.scores <= norm.ppf(0.95)) == pytest.approx(0.9, abs=0.005)
    rows = look(model, make_rows(2000, 2))
    errors = np.where(rng.random(2000) < 0.2, rng.choice([-1.0, 1.0], 2000), 0.05 * rng.normal(size=2000))
    scales = blocks.scales(found.prior)
    prediction = WeightPosterior(rescale(sums, scales), found.prior.noise).predict(rows.features * scales)
    inside = np.abs(rows.rows.targets + errors - prediction.mean.numpy()) <= norm.ppf(0.95) * prediction.std.numpy()
    assert inside.mean() == pytest.approx(0.9, abs=0.03)
    assert found.record["widened_to_hold"] > 1.3
    assert calibrate(sums, blocks, look(model, held), None, **options).record["widened_to_hold"] == 1.0


def test_excess_is_not_scaled():
    training, held = make_rows(400, 0), make_rows(300, 1)
    model, blocks = make_model()
    sums = model.statistics(training.source())
    plain = calibrate(sums, blocks, look(model, held), None, noise_variance=0.1, heavy_tails=False)
    # Variance that is there anyhow takes the place of noise, by as much.
    with_excess = calibrate(
        sums, blocks, look(model, held, np.full(300, 0.01)), None, noise_variance=0.1, heavy_tails=False
    )
    assert with_excess.prior.noise == pytest.approx(plain.prior.noise - 0.01, rel=0.05)


def test_blocks_are_in_the_order_of_the_features():
    _, blocks = make_model()
    assert blocks == Blocks(networks=12, fourier=16, line=4)
