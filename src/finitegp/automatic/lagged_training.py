"""Networks of one shape trained side by side on batches of their own rows, by the objective of ``Lagged``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..devices import CPU, exact_device, in_float64
from ..errors import NumericalError
from ..features import ComposedFeatures, MLPFeatures, PeriodicEmbedding
from ..features.network import WRITTEN_OUT
from ..linalg import CholeskyFactor, cholesky
from ..schedules import FlatAdamW, cosine_decay
from .settings import AutoSettings
from .table import Index

# Beyond this number of rows, steps grow with the rows to this power.
_FEW_ROWS, _GROWTH = 2000, 0.4
# As in Lagged: batches between refreshes, batches that the statistics cover, and rows that the noise comes from.
BLOCK, _WINDOW, _RESIDUAL_ROWS = 5, 100, 2000
_SMALLEST_NOISE = 1e-8
# Rows are weighted by their noise variance to the power of minus this, within these limits.
_WEIGHT_POWER, _WEIGHT_LIMITS = 0.5, (0.05, 20.0)
# The variance of the logarithm of a squared standard normal, pi^2 / 2; and how often the noise of rows is solved again.
_LOG_VARIANCE, _BLOCKS_PER_SOLUTION = 4.93, 5
# The smallest squared residual relative to the noise, whose logarithm is taken.
_SMALLEST_SQUARE = 1e-4
# Shares of the mean diagonal that are added, one after the other, where a factor fails.
_RIDGES = (0.0, 1e-9, 1e-7, 1e-5)
_WARM_UP = 0.1
# Residuals farther off, in standard deviations of the noise, pull no harder.
_FARTHEST_PULL = 4.0
# The share of steps before rows are weighted by their noise: what is not learned yet is no noise.
_UNWEIGHTED = 0.2


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


def count_steps(rows: int, settings: AutoSettings) -> int:
    """Steps of a member that is trained on this many rows: more rows are worth more steps, but ever fewer more.

    Example:
        >>> [count_steps(rows, AutoSettings()) for rows in (1_500, 10_000, 40_000, 1_000_000)]
        [1700, 3236, 5635, 6000]
    """
    wanted: float = settings.steps * max(rows / _FEW_ROWS, 1.0) ** _GROWTH
    return min(round(wanted), settings.max_steps)


def draw_batches(rows: Sequence[Index], batch_size: int, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Row numbers ``(members, batch_size)``, for ever: each member passes over its own rows in an order of its own."""
    streams = [_shuffled(numbers, batch_size, seed) for numbers, seed in zip(rows, seeds, strict=True)]
    while True:
        yield torch.stack([next(stream) for stream in streams])


def _shuffled(rows: Index, batch_size: int, seed: int) -> Iterator[Tensor]:
    numbers, generator = torch.from_numpy(rows), torch.Generator().manual_seed(seed)
    while True:
        order = numbers[torch.randperm(len(numbers), generator=generator)]
        # The rest, less than a batch, stays out of this pass; another rest stays out of the next.
        yield from torch.split(order[: len(order) - len(order) % batch_size], batch_size)


@torch.no_grad()
def train_lagged(
    batched: BatchedNetworks,
    inputs: Tensor,
    targets: Tensor,
    counts: Tensor | None,
    rows: Sequence[Index],
    settings: AutoSettings,
    *,
    weight_decay: float,
    seeds: Sequence[int],
) -> None:
    """Train each member by the objective of :class:`~finitegp.algorithms.Lagged`, rows weighted by their noise.

    Args:
        batched: The members; their parameters are changed.
        inputs: ``(all rows, columns)``, float32, on the device of the members.
        targets: ``(all rows,)``, float32.
        counts: ``(all rows,)`` weights of the rows with a mean of about one, or None.
        rows: The numbers of each member's rows.
        settings: Batch size, steps and rates.
        weight_decay: Decoupled, of all parameters.
        seeds: Of each member's batches.
    """
    fewest = min(len(numbers) for numbers in rows)
    batch_size = min(settings.batch_size, fewest)
    steps = count_steps(fewest, settings)
    factor = cosine_decay(steps, warmup_steps=max(1, int(_WARM_UP * steps)))
    optimizer = FlatAdamW(batched.parameters, learning_rate=settings.learning_rate, weight_decay=weight_decay)
    heads = LaggedHeads(batched.members, batched.num_features, [len(numbers) for numbers in rows], inputs.device)
    batches = draw_batches(rows, batch_size, seeds)

    def read() -> tuple[Tensor, Tensor, Tensor | None]:
        batch = next(batches).to(inputs.device)
        return inputs[batch], targets[batch], None if counts is None else counts[batch]

    for _ in range(max(2, 10 * batched.num_features // batch_size)):
        seen, observed, weight = read()
        heads.take_up(batched.forward(seen), observed, weight)
    heads.refresh()
    for step in range(steps):
        seen, observed, weight = read()
        features = batched.forward(seen)
        if settings.input_noise and step >= _UNWEIGHTED * steps:
            weight = heads.row_weights(features, weight)
        batched.backward(heads.gradient(features, observed, weight))
        optimizer.param_groups[0]["lr"] = settings.learning_rate * factor(step)
        optimizer.step()
        heads.take_up(features, observed, weight)
        if (step + 1) % BLOCK == 0:
            heads.refresh()
    optimizer.release()


class LaggedHeads:
    """The weights, inverse Gram matrices and noise of several members, solved from their earlier batches.

    What :class:`~finitegp.algorithms.Lagged` tracks, for several networks of one shape at once. How noisy a row is, is
    tracked beside: the logarithm of its variance is linear in its features, by ridge regression of the logarithms of
    squared residuals on the same row sums. With constant noise, networks spend their effort where residuals are large,
    which is where the noise is; with the full weights of the likelihood, rows with much noise hardly count, and the
    squared error grows.

    Args:
        members: How many.
        width: Features of each.
        num_data: Rows of each.
        device: Of the features; sums, factors and noise are float64, on :func:`~finitegp.devices.exact_device`.

    Attributes:
        weights: ``(members, width, 1)``.
        inverse: ``(members, width, width)``.
        noise_variance: ``(members,)``, of a row of weight one.
        log_slopes: ``(members, width, 1)``, of the logarithm of the noise variance in the features; None at first.
    """

    def __init__(self, members: int, width: int, num_data: Sequence[int], device: torch.device = CPU) -> None:
        self._exact = exact_device(device)
        exact: dict[str, Any] = {"dtype": torch.float64, "device": self._exact}
        self.weights = torch.zeros(members, width, 1, device=device)
        self.inverse = torch.zeros(members, width, width, device=device)
        self.noise_variance = torch.full((members,), 0.1, **exact)
        self._rows = torch.tensor(num_data, **exact)
        self._gram = torch.zeros(members, width, width, **exact)
        self._projection = torch.zeros(members, width, 1, **exact)
        self._tracked_rows = 0.0
        self._traces = torch.zeros(members, **exact)
        self._residual_squares = torch.zeros(members, **exact)
        self._residual_rows = 0.0
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._pending_squares: list[Tensor] = []
        self.log_slopes: Tensor | None = None
        self._logs: Tensor | None = None
        self._mean_log = torch.zeros(members, 1, device=device)
        self._log_projection = torch.zeros(members, width, 1, **exact)
        self._pending_logs: list[Tensor] = []
        self._refreshes = 0

    def row_weights(self, features: Tensor, counts: Tensor | None) -> Tensor | None:
        """``(members, rows)`` counts times weights by noise, which have a mean of one."""
        if self.log_slopes is None:
            return counts
        logs = times_vector(features, self.log_slopes)[:, :, 0]
        weights = logs.mul_(-_WEIGHT_POWER).exp_().clamp_(*_WEIGHT_LIMITS)
        weights = weights.div_(weights.mean(dim=1, keepdim=True))
        return weights if counts is None else weights * counts

    def gradient(self, features: Tensor, targets: Tensor, counts: Tensor | None) -> Tensor:
        """Of the mean over the batch of the NLML per row, in the features ``(members, rows, width)``."""
        residuals = times_vector(features, self.weights).sub_(targets[:, :, None])
        scale = 1.0 / features.shape[1] if counts is None else counts[:, :, None] / features.shape[1]
        squares = residuals.square() if counts is None else residuals.square() * counts[:, :, None]
        self._pending_squares.append(squares.mean(dim=(1, 2)))
        noise = self.noise_variance.to(features)[:, None, None]
        relative = residuals.square().div_(noise)
        self._logs = relative.clamp_(min=_SMALLEST_SQUARE).log_()[:, :, 0]
        # Errors far beyond the noise pull no harder: one of them would undo what many steps have learned.
        deviations = noise.sqrt()
        slopes = residuals.div_(deviations).clamp_(-_FARTHEST_PULL, _FARTHEST_PULL).div_(deviations)
        return torch.bmm(features, self.inverse).addcmul_(slopes, self.weights.mT).mul_(scale)

    def take_up(self, features: Tensor, targets: Tensor, counts: Tensor | None) -> None:
        """Keep a batch for the next refresh."""
        targets = targets[:, :, None]
        if counts is not None:
            root = counts.sqrt()[:, :, None]
            features, targets = features * root, targets * root
        self._pending.append((features, targets))
        if self._logs is None:
            return
        mean = self._logs.mean(dim=1, keepdim=True)
        self._mean_log.lerp_(mean, 1.0 / min(max(self._refreshes, 1) * BLOCK, _WINDOW))
        logs = (self._logs - self._mean_log)[:, :, None]
        logs = logs if counts is None else logs * root
        self._pending_logs.append(times_vector(features.mT, logs))
        self._logs = None

    def refresh(self) -> None:
        """Solve weights and inverses again, with the batches since the last time."""
        features = torch.cat([part[0] for part in self._pending], dim=1)
        targets = torch.cat([part[1] for part in self._pending], dim=1)
        forget, rows = 1.0 - min(len(self._pending) / _WINDOW, 1.0), float(features.shape[1])
        if self._pending_squares:
            self._set_noise(rows, forget)
        self._gram.mul_(forget).add_(torch.bmm(features.mT, features).to(self._exact))
        self._projection.mul_(forget).add_(times_vector(features.mT, targets).to(self._exact))
        for product in self._pending_logs:
            self._log_projection.mul_(1.0 - 1.0 / _WINDOW).add_(product.to(self._exact))
        self._tracked_rows = self._tracked_rows * forget + rows
        for member, noise in enumerate(self.noise_variance.tolist()):
            scale = float(self._rows[member]) / self._tracked_rows
            regularized = self._gram[member] * scale
            regularized.diagonal().add_(noise)
            factor = _factor(regularized, noise)
            inverse = factor.inverse()
            self.weights[member] = factor.solve(self._projection[member] * scale)
            self.inverse[member] = inverse
            self._traces[member] = inverse.trace()
        self._refreshes += 1
        if self._refreshes % _BLOCKS_PER_SOLUTION == 0:
            self._solve_logs()
        self._pending.clear()
        self._pending_squares.clear()
        self._pending_logs.clear()

    def _solve_logs(self) -> None:
        scale = (self._rows / self._tracked_rows)[:, None, None]
        regularized = self._gram * scale
        regularized.diagonal(dim1=1, dim2=2).add_(_LOG_VARIANCE)
        factor, info = torch.linalg.cholesky_ex(regularized)
        if not bool(info.any()):
            self.log_slopes = torch.cholesky_solve(self._log_projection * scale, factor).to(self.weights)

    def _set_noise(self, rows: float, forget: float) -> None:
        """From residuals that the weights had not seen, as in Lagged."""
        forget = min(forget, 1.0 - min(rows / _RESIDUAL_ROWS, 1.0))
        squares = in_float64(torch.stack(self._pending_squares)).mean(dim=0) * rows
        self._residual_squares = self._residual_squares * forget + squares
        self._residual_rows = self._residual_rows * forget + rows
        behind = max(self._tracked_rows, 1.0)
        own = (behind / self._rows).clamp(max=1.0)
        determined = self.weights.shape[1] - self.noise_variance * self._traces
        expected = 1.0 + determined * ((1.0 - own) / behind - own / self._rows)
        found = self._residual_squares / self._residual_rows / expected.clamp(min=0.1)
        self.noise_variance = found.clamp(min=_SMALLEST_NOISE)


def _factor(regularized: Tensor, noise: float) -> CholeskyFactor:
    """A factor for one more step of training: sums of float32 products may lie below zero by more than the noise."""
    size = float(regularized.diagonal().mean())
    for ridge in _RIDGES:
        try:
            return cholesky(regularized if ridge == 0.0 else _raised(regularized, ridge * size), noise_variance=noise)
        except NumericalError:
            continue
    return cholesky(_raised(regularized, size), noise_variance=noise)


def _raised(matrix: Tensor, ridge: float) -> Tensor:
    raised = matrix.clone()
    raised.diagonal().add_(ridge)
    return raised
