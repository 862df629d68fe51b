"""Stationary kernels and random draws from their spectral densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from .arguments import check_size

# A kernel is the characteristic function of its spectral density. For Matern nu that is the multivariate
# Student t with 2 nu degrees of freedom, and for the RBF kernel its limit, the normal distribution.
DEGREES_OF_FREEDOM: dict[str, float] = {"rbf": math.inf, "matern12": 1, "matern32": 3, "matern52": 5}
SAMPLINGS = ("iid", "orthogonal", "sobol")


def check_kernel(kernel: str) -> str:
    """``kernel`` itself, or a ValueError that lists the known names."""
    if kernel not in DEGREES_OF_FREEDOM:
        raise ValueError(f"kernel must be one of {list(DEGREES_OF_FREEDOM)}, but is {kernel!r}.")
    return kernel


def correlation(kernel: str, distance: Tensor) -> Tensor:
    r"""The kernel with unit variance and length scale, as a function of the distance.

    ============ ==========================================================
    ``rbf``      :math:`\exp(-r^2 / 2)`
    ``matern12`` :math:`\exp(-r)`
    ``matern32`` :math:`(1 + \sqrt 3 r) \exp(-\sqrt 3 r)`
    ``matern52`` :math:`(1 + \sqrt 5 r + 5 r^2 / 3) \exp(-\sqrt 5 r)`
    ============ ==========================================================

    Example:
        >>> values = correlation("matern12", torch.tensor([0.0, 2.0]))
        >>> bool(torch.allclose(values, torch.tensor([1.0, math.exp(-2.0)])))
        True
    """
    degrees_of_freedom = DEGREES_OF_FREEDOM[check_kernel(kernel)]
    if math.isinf(degrees_of_freedom):
        return torch.exp(-0.5 * distance.square())
    scaled = math.sqrt(degrees_of_freedom) * distance
    polynomials = {1: torch.ones_like(scaled), 3: 1 + scaled, 5: 1 + scaled + scaled.square() / 3}
    return polynomials[int(degrees_of_freedom)] * torch.exp(-scaled)


def draw_frequencies(kernel: str, num_frequencies: int, input_dim: int, sampling: str, seed: int) -> Tensor:
    """Random frequencies ``(num_frequencies, input_dim)`` in float64 from the kernel's spectral density.

    Every row has that density, whatever the sampling, which decides how the rows depend on each other:

    - ``"iid"``: independent rows.
    - ``"orthogonal"``: rows in blocks of ``input_dim`` mutually orthogonal ones, with independent lengths.
    - ``"sobol"``: a scrambled Sobol sequence through the inverse distribution functions.

    The draw depends on ``seed`` alone and leaves torch's global random state as it is.

    Example:
        >>> frequencies = draw_frequencies("rbf", 8, input_dim=4, sampling="orthogonal", seed=0)
        >>> products = frequencies[:4] @ frequencies[:4].T
        >>> bool((products - products.diag().diag()).abs().max() < 1e-12)
        True
    """
    degrees_of_freedom = DEGREES_OF_FREEDOM[check_kernel(kernel)]
    check_size("num_frequencies", num_frequencies)
    check_size("input_dim", input_dim)
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling must be one of {list(SAMPLINGS)}, but is {sampling!r}.")
    if torch.get_default_device().type == "meta":  # the values will come from a file
        return torch.empty(num_frequencies, input_dim, dtype=torch.float64)
    student = math.isfinite(degrees_of_freedom)
    if sampling == "sobol":
        uniform = _sobol_uniform(num_frequencies, input_dim + student, seed)
        normal: Tensor = torch.special.ndtri(uniform[:, :input_dim])
        if not student:
            return normal
        from scipy.special import gammaincinv  # here, because SciPy is slow to import

        quantiles = gammaincinv(degrees_of_freedom / 2, uniform[:, input_dim:].numpy())
        chi_square = 2 * torch.as_tensor(quantiles, device="cpu")
    else:
        generator = torch.Generator(device="cpu").manual_seed(int(seed))
        if sampling == "iid":
            normal = _randn(num_frequencies, input_dim, generator=generator)
        else:
            normal = _orthogonal_normal(num_frequencies, input_dim, generator)
        if not student:
            return normal
        chi_square = _randn(num_frequencies, int(degrees_of_freedom), generator=generator)
        chi_square = chi_square.square().sum(dim=1, keepdim=True)
    return normal * (chi_square / degrees_of_freedom).rsqrt()


def _randn(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def _orthogonal_normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Rows that are each N(0, I), orthogonal to each other within blocks of ``columns`` rows."""
    blocks = math.ceil(rows / columns)
    rotation, triangle = torch.linalg.qr(_randn(blocks, columns, columns, generator=generator))
    # QR has its own convention for signs; with a positive diagonal of R the rotation is uniform (Haar).
    rotation = rotation * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    lengths = torch.linalg.vector_norm(_randn(rows, columns, generator=generator), dim=1, keepdim=True)
    normal: Tensor = rotation.reshape(-1, columns)[:rows] * lengths
    return normal


def _sobol_uniform(rows: int, columns: int, seed: int) -> Tensor:
    """Scrambled Sobol points, strictly inside the unit cube."""
    if columns > SobolEngine.MAXDIM:
        raise ValueError(
            f"input_dim must be less than {SobolEngine.MAXDIM} for sampling='sobol', but the points would "
            f"have {columns} dimensions: use sampling='orthogonal'."
        )
    engine = SobolEngine(columns, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    uniform = engine.draw(rows, dtype=torch.float64)
    # The points are multiples of 2^-30 and may be 0 (and rounded up to 1), where the inverses are infinite.
    half_a_step = 0.5**31
    return uniform.clamp(half_a_step, 1 - half_a_step)
