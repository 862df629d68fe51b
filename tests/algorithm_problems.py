"""Small problems that the tests of the algorithms share."""

import torch
from torch import nn

from finitegp import FeatureGP, FourierFeatures, InputNoise
from finitegp.data import Rows

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
