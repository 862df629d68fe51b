"""Stationary kernels as finite features on landmark rows: exact there, with what is lost elsewhere as a variance."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..errors import NumericalError
from ..linalg import cholesky
from .composition import ConcatenatedFeatures, check_size

# A kernel is the characteristic function of its spectral density. For Matern nu that is the multivariate
# Student t with 2 nu degrees of freedom, and for the RBF kernel its limit, the normal distribution.
DEGREES_OF_FREEDOM: dict[str, float] = {"rbf": math.inf, "matern12": 1, "matern32": 3, "matern52": 5}
CORRELATIONS = ("rbf", "matern32", "matern52")
# Relative to the kernel's variance: far below any noise, and enough for landmarks that are nearly equal; the larger
# ones for thousands of them many length scales apart, whose distances carry the rounding of far larger squares.
_JITTERS = (1e-10, 1e-8, 1e-6)
# Relative to the kernel's variance, what is lost at landmarks themselves by jitter and rounding, and more: no loss.
_SEEN = 1e-8
_PIECE_ROWS = 32
# Next to nothing, so that the gradient of a root at a landmark is zero and not NaN.
_LEAST_SQUARE = 1e-300


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


class LandmarkFeatures(nn.Module):
    r"""Features :math:`\phi(x) = L^{-1} k(Z, x)` of a kernel k on landmarks Z, where :math:`LL' = k(Z, Z)`.

    Their inner product is the kernel itself wherever one of the two rows is a landmark: with all training rows as
    landmarks the GP is the exact one of the kernel. At other rows :math:`k(x, x) - |\phi(x)|^2` is lost
    (:meth:`residual_variance`), which :class:`~finitegp.FittedGP` adds to what is not known.

    Args:
        input_dim: Number of input columns.
        num_landmarks: Number of landmarks, and of features; :meth:`at` gives them their places.
        kernel: ``"rbf"``, ``"matern32"`` or ``"matern52"``.

    Example:
        >>> places = torch.tensor([[0.0], [1.0], [2.5]], dtype=torch.float64)
        >>> feature_map = LandmarkFeatures.at(places, kernel="rbf", length_scales=[1.0], variance=2.0)
        >>> features = feature_map(places)
        >>> torch.testing.assert_close(features @ features.T, feature_map.covariance(places, places))
    """

    input_dim: int
    num_features: int
    landmarks: Tensor
    log_length_scales: Tensor
    log_variance: Tensor

    def __init__(self, input_dim: int, num_landmarks: int, *, kernel: str = "matern52") -> None:
        super().__init__()
        if kernel not in CORRELATIONS:
            raise ValueError(f"kernel must be one of {list(CORRELATIONS)}, but is {kernel!r}.")
        self.input_dim = check_size("input_dim", input_dim)
        self.num_features = check_size("num_landmarks", num_landmarks)
        self.kernel = kernel
        self.register_buffer("landmarks", torch.zeros(self.num_features, self.input_dim, dtype=torch.float64))
        self.register_buffer("log_length_scales", torch.zeros(self.input_dim, dtype=torch.float64))
        self.register_buffer("log_variance", torch.zeros((), dtype=torch.float64))
        self._factor: Tensor | None = None
        self._jitter = _JITTERS[0]

    @classmethod
    def at(cls, landmarks: ArrayLike, *, kernel: str, length_scales: ArrayLike, variance: float) -> LandmarkFeatures:
        """Features with these landmarks, length scales per column and variance."""
        places = torch.as_tensor(landmarks, dtype=torch.float64)
        made = cls(places.shape[1], places.shape[0], kernel=kernel)
        made.landmarks = places.clone()
        made.log_length_scales = torch.as_tensor(length_scales, dtype=torch.float64).log().expand(places.shape[1])
        made.log_length_scales = made.log_length_scales.clone()
        made.log_variance = torch.tensor(math.log(variance), dtype=torch.float64)
        return made

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        return {"input_dim": self.input_dim, "num_landmarks": self.num_features, "kernel": self.kernel}

    def covariance(self, one: Tensor, other: Tensor) -> Tensor:
        """The kernel, ``(*batch, rows of one, rows of other)``."""
        scales = torch.exp(-self.log_length_scales)
        first, second = one * scales, other * scales
        # A few rows at a time stay in a core's cache through all steps: a third of the time.
        parts = [self._covariance(rows, second) for rows in torch.split(first, _PIECE_ROWS, dim=-2)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    def _covariance(self, one: Tensor, other: Tensor) -> Tensor:
        """Of rows in length scales."""
        squares = one.square().sum(-1)[..., None] + other.square().sum(-1)[..., None, :] - 2.0 * (one @ other.mT)
        return self.log_variance.exp() * correlation(self.kernel, squares.clamp_min(_LEAST_SQUARE).sqrt())

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of inputs ``(rows, input_dim)``."""
        cross = self.covariance(self.landmarks, inputs)
        solved: Tensor = torch.linalg.solve_triangular(self._lower(), cross, upper=False).mT
        return solved

    def combine(self, inputs: Tensor, weights: Tensor) -> Tensor:
        """Features times weights ``(num_features, k)``, as kernel times solved weights: no features are needed."""
        solved: Tensor = torch.linalg.solve_triangular(self._lower().mT, weights, upper=True)
        combined: Tensor = self.covariance(inputs, self.landmarks) @ solved
        return combined

    def _lower(self) -> Tensor:
        if self._factor is None:
            covariance = self.covariance(self.landmarks, self.landmarks)
            for jitter in _JITTERS:
                # The diagonal is known, and distances of a row to itself round to more than zero.
                covariance.diagonal().fill_(float(self.log_variance.exp()) * (1.0 + jitter))
                try:
                    self._factor, self._jitter = cholesky(covariance).lower, jitter
                    break
                except NumericalError:
                    if jitter == _JITTERS[-1]:
                        raise
        assert self._factor is not None
        return self._factor

    def residual_variance(self, features: Tensor) -> Tensor:
        """``(rows,)`` what the features lack of the kernel's variance; zero at landmarks."""
        return (self.log_variance.exp() - features.square().sum(dim=1)).clamp_min(0.0)

    def unseen_variance(self, features: Tensor) -> Tensor:
        """``(rows,)`` :meth:`residual_variance` but for what jitter and rounding make of it: zero at landmarks."""
        self._lower()  # which knows the jitter
        least = max(_SEEN, 4.0 * self._jitter) * self.log_variance.exp()
        return (self.residual_variance(features) - least).clamp_min(0.0)

    def residual_covariance(self, inputs: Tensor, features: Tensor) -> Tensor:
        """``(*batch, rows, rows)`` what the features lack of the kernel."""
        return self.covariance(inputs, inputs) - features @ features.mT

    def _apply(self, *arguments: object, **options: object) -> LandmarkFeatures:
        self._factor = None  # belongs to the tensors as they were
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: object, **options: object) -> None:
        self._factor = None
        super()._load_from_state_dict(*arguments, **options)


def residual_variance(feature_map: nn.Module, features: Tensor, output_scale: float = 1.0) -> Tensor | None:
    """``(rows,)`` variance of the kernel that the features of a map lack, landmarks anywhere in it; None if nothing.

    The squares of the features, and the variance, have the factor ``output_scale``.
    """
    found: Tensor | None = None
    for part, mine in landmark_parts(feature_map, features / math.sqrt(output_scale)):
        lost = part.residual_variance(mine)
        found = lost if found is None else found + lost
    return None if found is None else output_scale * found


def unseen_variance(feature_map: nn.Module, features: Tensor) -> Tensor | None:
    """:func:`residual_variance` but for jitter and rounding, exactly zero at landmarks; None if nothing is lost."""
    parts = [part.unseen_variance(mine) for part, mine in landmark_parts(feature_map, features)]
    total = torch.stack(parts).sum(dim=0) if parts else None
    return total if total is not None and bool(total.any()) else None


def landmark_parts(feature_map: nn.Module, features: Tensor) -> Iterator[tuple[LandmarkFeatures, Tensor]]:
    """The landmark maps side by side in a feature map that see its inputs themselves, each with its features."""
    if isinstance(feature_map, LandmarkFeatures):
        yield feature_map, features
    elif isinstance(feature_map, ConcatenatedFeatures):
        pairs = zip(feature_map.maps, torch.split(features, feature_map.sizes, dim=-1), strict=True)
        for part, mine in pairs:
            yield from landmark_parts(part, mine)


def landmarks_of(feature_map: nn.Module) -> Tensor | None:
    """The landmarks of the first landmark map in a feature map, or None."""
    return next((part.landmarks for part in feature_map.modules() if isinstance(part, LandmarkFeatures)), None)
