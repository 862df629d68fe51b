"""Models, rows and dense textbook formulas that the tests of SVGP share."""

import torch
from torch import nn

from finitegp import FeatureGP
from finitegp.data import Rows
from finitegp.features import MLPFeatures
from finitegp.noise import InputNoise
from paper.svgp import SVGP

KERNELS = ["linear", "rbf"]
NOISES = ["constant", "input", "input and weights"]


def make_data(rows, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(rows, 2, generator=generator, dtype=torch.float64) - 1
    signal = torch.sin(3 * inputs[:, 0]) + inputs[:, 1] ** 2
    targets = signal + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    weights = 0.5 + torch.rand(rows, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), targets[:, None].to(dtype), weights.to(dtype)


def make_rows(rows, noise, seed=0, dtype=torch.float64):
    inputs, targets, weights = make_data(rows, seed, dtype)
    return Rows(inputs, targets, weights if "weights" in noise else None)


def make_model(noise="constant", variance=0.2, hidden=(16, 8), seed=1, dtype=torch.float64, **options):
    network = MLPFeatures(2, hidden=hidden, seed=seed)
    if "input" in noise:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = nn.Linear(hidden[-1], 1)
        return FeatureGP(network, noise_model=InputNoise(head, variance=variance), **options).to(dtype)
    return FeatureGP(network, variance, **options).to(dtype)


def make_algorithm(rows, noise="constant", kernel="linear", count=4, scrambled=True, **options):
    """An algorithm whose variational distribution, unless told otherwise, is a random one far from the prior."""
    model = options.pop("model", None) or make_model(noise)
    chosen = SVGP.choose_inducing_inputs(rows.inputs, count, seed=3)
    algorithm = SVGP(model, len(rows.inputs), inducing_inputs=chosen, kernel=kernel, **options)
    if scrambled:
        generator = torch.Generator().manual_seed(4)
        mean, root = variational_parameters(algorithm)
        with torch.no_grad():
            mean.copy_(torch.randn(mean.shape, generator=generator))
            root.copy_(0.3 * torch.randn(root.shape, generator=generator) + torch.eye(len(root)))
    return algorithm


def variational_parameters(algorithm):
    named = dict(algorithm.named_parameters())
    (mean,) = (value for name, value in named.items() if name.endswith("variational_mean"))
    (root,) = (value for name, value in named.items() if name.endswith("chol_variational_covar"))
    return mean, root


def kernel_matrix(algorithm, left, right, kernel):
    if kernel == "linear":
        return left @ right.T
    scale, length = algorithm.prior.covariance.outputscale, algorithm.prior.covariance.base_kernel.lengthscale
    return scale * torch.exp(-0.5 * torch.cdist(left, right).square() / length.square())


def textbook_posterior(algorithm, rows, kernel):
    """q(f) at each row and KL(q(u) | p(u)) with dense matrices from the definition, not whitened."""
    jitter = algorithm.strategy.jitter_val
    with torch.no_grad():
        features, log_scale = algorithm.model(rows.inputs, rows.weights)
        inducing, _ = algorithm.model(algorithm.inducing_inputs)
        cross = kernel_matrix(algorithm, features, inducing, kernel)
        prior = kernel_matrix(algorithm, inducing, inducing, kernel) + jitter * torch.eye(len(inducing))
        factor = torch.linalg.cholesky(prior)
        mean, root = variational_parameters(algorithm)
        mean_u, root_u = factor @ mean, factor @ root.tril()
        covariance_u = root_u @ root_u.T
        solved = torch.linalg.solve(prior, cross.T).T
        own = kernel_matrix(algorithm, features, features, kernel).diagonal() + jitter
        variance = own + ((solved @ (covariance_u - prior)) * solved).sum(dim=1)
        divergence = torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(mean_u, covariance_u),
            torch.distributions.MultivariateNormal(torch.zeros_like(mean_u), prior),
        )
    return (
        solved @ mean_u,
        variance,
        torch.zeros((), dtype=torch.float64) if log_scale is None else log_scale,
        divergence,
    )


def batch_of(rows, index):
    return Rows(*(None if part is None else part[list(index)] for part in rows))
