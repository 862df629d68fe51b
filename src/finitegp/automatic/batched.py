"""Several networks of one shape as one: a layer of all of them is one batched product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..devices import CPU
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding
from ..features.network import WRITTEN_OUT


class BatchedNetworks:
    r"""Networks that are trained side by side, with the backward pass written out.

    A small network's step is mostly the overhead of many small operations; all members together take hardly more of
    it than one. Members do not know of each other: each has its own rows, and its outputs and gradients are what it
    would have alone, to rounding.

    Args:
        networks: Maps of one shape: a :class:`PeriodicEmbedding`, then :class:`MLPFeatures` with an activation after
            every layer. Their values are copied; :meth:`write_back` returns them.
        outputs: Whether each member gets a last linear layer to one number, which starts at zero.
        device: Where they are trained; the networks themselves stay where they are.

    Attributes:
        parameters: What is trained, the members' values stacked in the first dimension.

    Example:
        >>> maps = [ComposedFeatures(PeriodicEmbedding(2, seed=k), MLPFeatures(8, (5,), seed=k)) for k in (0, 1)]
        >>> rows = torch.randn(2, 3, 2)
        >>> together = BatchedNetworks(maps).forward(rows)
        >>> bool(torch.allclose(together[1], maps[1](rows[1]), atol=1e-6))
        True
    """

    def __init__(
        self, networks: Sequence[ComposedFeatures], *, outputs: bool = False, device: torch.device = CPU
    ) -> None:
        self._networks = list(networks)
        embeddings = [_embedding(network) for network in networks]
        layers = [_linears(network) for network in networks]
        first = networks[0].second
        assert isinstance(first, MLPFeatures)
        assert first.activation is not None
        self._activate, self._activation_backward = WRITTEN_OUT[first.activation]
        self._columns, self._width = embeddings[0].input_dim, embeddings[0].width
        self.members, self.num_features = len(networks), first.num_features

        def stack(tensors: Sequence[Tensor]) -> nn.Parameter:
            return nn.Parameter(torch.stack([tensor.detach() for tensor in tensors]).to(device))

        names = ("frequencies", "phases", "weights", "offsets")
        self._embedding = [stack([getattr(each, name) for each in embeddings]) for name in names]
        # (in, out), as the forward product takes them.
        self._weights = [stack([linear.weight.t() for linear in layer]) for layer in zip(*layers, strict=True)]
        self._biases = [stack([linear.bias[None] for linear in layer]) for layer in zip(*layers, strict=True)]
        self._head = [
            nn.Parameter(torch.zeros(self.members, self.num_features, 1, device=device)),
            nn.Parameter(torch.zeros(self.members, 1, 1, device=device)),
        ]
        self._head = self._head if outputs else []
        self.parameters = [*self._embedding, *self._weights, *self._biases, *self._head]

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(members, rows, width)``, or outputs ``(members, rows, 1)``, of ``(members, rows, columns)``."""
        frequencies, phases, weights, offsets = (self._by_column(parameter) for parameter in self._embedding)
        members, rows, columns = inputs.shape
        # Each column of each member is one matrix of a batched product. Rows come last here: products of a few outputs
        # with many rows take a fifth of the time of those of many rows with a few outputs.
        self._inputs = inputs.transpose(1, 2).reshape(members * columns, 1, rows)
        self._angles = torch.addcmul(phases.mT, self._inputs, frequencies.mT, value=2.0 * math.pi)
        self._cosines = self._angles.cos()
        embedded = torch.cat((self._inputs, torch.baddbmm(offsets.mT, weights.mT, self._cosines)), dim=1)
        self._outputs = [embedded.view(members, columns * self._width, rows).mT]
        self._kept = []
        for weight, bias in zip(self._weights, self._biases, strict=True):
            output, kept = self._activate(torch.baddbmm(bias, self._outputs[-1], weight))
            self._outputs.append(output)
            self._kept.append(kept)
        if self._head:
            return times_vector(self._outputs[-1], self._head[0]).add_(self._head[1])
        return self._outputs[-1]

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Set ``.grad`` of all parameters from the gradient in what the last :meth:`forward` returned."""
        if self._head:
            self._head[0].grad = times_vector(self._outputs[-1].mT, gradient)
            self._head[1].grad = gradient.sum(dim=1, keepdim=True)
            gradient = gradient * self._head[0].mT
        for layer in range(len(self._weights) - 1, -1, -1):
            gradient = self._activation_backward(gradient, self._kept[layer])
            self._weights[layer].grad = torch.bmm(self._outputs[layer].mT, gradient)
            self._biases[layer].grad = gradient.sum(dim=1, keepdim=True)
            if layer:
                gradient = torch.bmm(gradient, self._weights[layer].mT)
        self._embedding_backward(torch.bmm(self._weights[0], gradient.mT))

    def _embedding_backward(self, gradient: Tensor) -> None:
        """From the gradient in what is embedded, ``(members, columns * width, rows)``."""
        by_output = gradient.view(self.members * self._columns, self._width, -1)[:, 1:]
        weights = self._by_column(self._embedding[2])
        by_angle = torch.bmm(weights, by_output).mul_(self._angles.sin_()).neg_()
        gradients = (
            torch.bmm(by_angle, self._inputs.mT).mul_(2.0 * math.pi),
            by_angle.sum(dim=2),
            torch.bmm(self._cosines, by_output.mT),
            by_output.sum(dim=2),
        )
        for parameter, found in zip(self._embedding, gradients, strict=True):
            parameter.grad = found.view(parameter.shape)

    def _by_column(self, parameter: Tensor) -> Tensor:
        return parameter.view(self.members * self._columns, *parameter.shape[2:])

    def heads(self) -> list[tuple[Tensor, Tensor]]:
        """Weight ``(1, width)`` and bias ``(1,)`` of each member's last layer, on the CPU."""
        weight, bias = (parameter.detach().cpu() for parameter in self._head)
        return [(weight[member].t().clone(), bias[member, 0].clone()) for member in range(self.members)]

    @torch.no_grad()
    def write_back(self) -> list[ComposedFeatures]:
        """Put the trained values into the networks that this was made of, and return these."""
        for member, network in enumerate(self._networks):
            embedding = _embedding(network)
            targets = [embedding.frequencies, embedding.phases, embedding.weights, embedding.offsets]
            for target, parameter in zip(targets, self._embedding, strict=True):
                target.copy_(parameter[member])
            for linear, weight, bias in zip(_linears(network), self._weights, self._biases, strict=True):
                linear.weight.copy_(weight[member].t())
                linear.bias.copy_(bias[member, 0])
        return self._networks


def times_vector(matrices: Tensor, vectors: Tensor) -> Tensor:
    """``(members, n, k)`` times ``(members, k, 1)``; vectors first, this takes a quarter of the time."""
    return torch.bmm(vectors.mT, matrices.mT).mT


def _embedding(network: ComposedFeatures) -> PeriodicEmbedding:
    assert isinstance(network.first, PeriodicEmbedding)
    return network.first


def _linears(network: ComposedFeatures) -> list[nn.Linear]:
    assert isinstance(network.second, MLPFeatures)
    return [layer for layer in network.second.layers if isinstance(layer, nn.Linear)]
