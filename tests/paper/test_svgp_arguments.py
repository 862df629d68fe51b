"""SVGP: the choice of inducing inputs, and arguments and data that it refuses."""

import math
import sys

import pytest
import torch
from svgp_problems import make_algorithm, make_model, make_rows

from paper.svgp import SVGP

pytest.importorskip("gpytorch", reason="SVGP needs GPyTorch: install the extra finitegp[peers]")


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
