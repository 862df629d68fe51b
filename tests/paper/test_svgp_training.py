"""SVGP: unbiased and right gradients, and a trainer that works and can be resumed."""

import copy
import itertools
import math

import pytest
import torch
from algorithm_problems import check_algorithm
from svgp_problems import (
    KERNELS,
    NOISES,
    batch_of,
    make_algorithm,
    make_data,
    make_model,
    make_rows,
    textbook_posterior,
)

from finitegp.algorithms.base import Algorithm
from paper.svgp import SVGP

pytest.importorskip("gpytorch", reason="SVGP needs GPyTorch: install the extra finitegp[peers]")


def test_shared_check():
    check_algorithm(lambda model, data: SVGP(model, len(data[0]), inducing_inputs=data[0][:16].clone()))


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
