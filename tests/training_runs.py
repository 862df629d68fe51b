"""A small problem and algorithms on it, which the tests of training share."""

import torch

from finitegp import FeatureGP
from finitegp.algorithms import Lagged
from finitegp.features import MLPFeatures

ROWS = 300


def make_data():
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(ROWS, 3, generator=generator)
    return inputs, torch.sin(2 * inputs[:, 0]) + 0.2 * torch.randn(ROWS, generator=generator)


def make(kind=Lagged, seed=0, double=False, **options):
    features = MLPFeatures(3, hidden=(16, 8), seed=seed)
    model = FeatureGP(features.double() if double else features, 0.5)
    return kind(model, ROWS, **options)


def state_of(algorithm):
    return {name: tensor.clone() for name, tensor in algorithm.state_dict().items()}


def assert_same_state(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
