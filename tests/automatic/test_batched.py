"""Networks side by side are the networks alone."""

import pytest
import torch
from torch import nn

from finitegp.automatic.lagged_training import BatchedNetworks
from finitegp.features import ComposedFeatures, MLPFeatures, PeriodicEmbedding


def make_networks(count, activation="mish"):
    return [
        ComposedFeatures(
            PeriodicEmbedding(3, 5, 4, frequency_scale=0.5, seed=seed),
            MLPFeatures(12, hidden=(7, 6), activation=activation, seed=seed),
        ).double()
        for seed in range(count)
    ]


@pytest.mark.parametrize("activation", ["mish", "relu"])
def test_features_and_gradients_are_those_of_autograd(activation, generator):
    networks = make_networks(3, activation)
    inputs = torch.randn(3, 10, 3, generator=generator, dtype=torch.float64)
    gradient = torch.randn(3, 10, 6, generator=generator, dtype=torch.float64)
    batched = BatchedNetworks(networks)
    torch.testing.assert_close(
        batched.forward(inputs), torch.stack([n(x) for n, x in zip(networks, inputs, strict=True)])
    )
    batched.backward(gradient)
    for parameter in batched.parameters:
        parameter.data.sub_(0.01 * parameter.grad)
    expected = []
    for member, network in enumerate(networks):
        network(inputs[member]).backward(gradient[member])
        expected.append([parameter.detach() - 0.01 * parameter.grad for parameter in network.parameters()])
    for network, values in zip(batched.write_back(), expected, strict=True):
        for parameter, value in zip(network.parameters(), values, strict=True):
            torch.testing.assert_close(parameter.detach(), value)


def test_the_last_layer_is_a_linear_one(generator):
    (network,) = make_networks(1, "relu")
    inputs = torch.randn(1, 10, 3, generator=generator, dtype=torch.float64)
    batched = BatchedNetworks([network], outputs=True)
    head = batched.parameters[-2:]
    for parameter in head:
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    last = nn.Linear(6, 1).double()
    weight, bias = batched.heads()[0]
    last.weight, last.bias = nn.Parameter(weight), nn.Parameter(bias)
    outputs = last(network(inputs[0]))
    torch.testing.assert_close(batched.forward(inputs)[0], outputs.detach())
    gradient = torch.randn(10, 1, generator=generator, dtype=torch.float64)
    outputs.backward(gradient)
    batched.backward(gradient[None])
    torch.testing.assert_close(head[0].grad[0].t(), last.weight.grad)
    torch.testing.assert_close(head[1].grad[0, 0], last.bias.grad)
    torch.testing.assert_close(batched.parameters[4].grad[0].t(), network.second.layers[0].weight.grad)
