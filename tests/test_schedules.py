"""AdamW over one vector equals torch's."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from finitegp import FeatureGP, Lagged, train
from finitegp.callbacks import Checkpoint
from finitegp.features import MLPFeatures
from finitegp.schedules import FlatAdamW


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_steps_are_those_of_torch(weight_decay: float, max_norm: float | None) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    theirs = copy.deepcopy(ours)
    flat = FlatAdamW(ours.parameters(), learning_rate=0.05, weight_decay=weight_decay, max_gradient_norm=max_norm)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=weight_decay)
    inputs = torch.randn(20, 3, dtype=torch.float64)
    for step in range(30):
        for network, optimizer in ((ours, flat), (theirs, reference)):
            optimizer.param_groups[0]["lr"] = 0.05 * 0.9**step
            optimizer.zero_grad()
            (network(inputs)[:, 0] - 3.0 * inputs[:, 0]).square().sum().backward()
            if network is theirs and max_norm is not None:
                nn.utils.clip_grad_norm_(network.parameters(), max_norm)
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
    assert not torch.equal(ours[0].weight, nn.Linear(3, 5).weight)


def test_release_gives_each_parameter_its_own_memory() -> None:
    network = nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    optimizer = FlatAdamW(network.parameters(), learning_rate=0.1)
    assert network.weight.untyped_storage().data_ptr() == network.bias.untyped_storage().data_ptr()
    optimizer.release()
    assert network.weight.untyped_storage().data_ptr() != network.bias.untyped_storage().data_ptr()
    assert network.bias.untyped_storage().nbytes() == 2 * 4
    for parameter, old in zip(network.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_a_parameter_without_gradient_is_named() -> None:
    network = nn.Linear(3, 2)
    optimizer = FlatAdamW(network.parameters(), learning_rate=0.1)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) has no gradient"):
        optimizer.step()
    with pytest.raises(ValueError, match="at least one parameter"):
        FlatAdamW([], learning_rate=0.1)


def test_a_run_resumes_to_the_bit(tmp_path: Path) -> None:
    inputs = torch.linspace(-1, 1, 60)[:, None]
    data = inputs, torch.sin(3 * inputs[:, 0])

    def run(epochs: int, resume: Path | None = None) -> dict[str, torch.Tensor]:
        model = FeatureGP(MLPFeatures(1, hidden=(8, 8), seed=0), noise_variance=0.1)
        algorithm = Lagged(model, num_data=60, block=2, window=4)
        optimizer = FlatAdamW(algorithm.parameter_groups()[0]["params"], learning_rate=0.01)
        callbacks = [Checkpoint(tmp_path / "run.safetensors")] if resume is None else []
        train(algorithm, optimizer, data, epochs=epochs, batch_size=20, callbacks=callbacks, resume=resume)
        return algorithm.state_dict()

    whole = run(6)
    run(3)
    again = run(6, resume=tmp_path / "run.safetensors")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert not torch.equal(whole["model.feature_map.layers.0.weight"], run(3)["model.feature_map.layers.0.weight"])
