"""Deterministic features of the RBF kernel for few inputs: quadrature of its spectral integral."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arguments import check_arguments
from ..lite.modules import half_of_tensor_grid, keep_heavy, normal_quadrature
from .composition import check_size, log_of_number
from .fourier import SpectralFeatures

# By input_dim: enough for scaled distances up to 8, 8 and 3.
DEFAULT_NODES = {1: 38, 2: 38, 3: 24}


@check_arguments
class GaussLegendreFeatures(SpectralFeatures):
    r"""Features of the RBF kernel for one to three inputs, from quadrature instead of random draws.

    With :math:`\delta = (x - x') / l` and ``magnitude`` :math:`m`,

    .. math:: k(x, x') = m\, e^{-|\delta|^2 / 2} = m \int N(w; 0, I) \cos(w'\delta)\, dw
        \approx m \sum_i a_i^2 \cos(w_i'\delta), \qquad
        \phi(x) = \sqrt m\, [a_i \cos(w_i' (x / l)),\ a_i \sin(w_i' (x / l))]_i.

    The :math:`w_i` are the tensor grid of Gauss-Legendre nodes on ``[-frequency_cutoff, frequency_cutoff]``
    in each dimension, of which the symmetry :math:`w \to -w` leaves one half, and :math:`a_i^2` is twice the
    node's weight times the density. The lightest nodes, in the corners of the grid, are left out as long as
    they weigh less than a quarter of ``tolerance`` together. Maps ``(rows, input_dim)`` to
    ``(rows, num_features)``.

    The nodes resolve the cosines only up to some distance: wherever :math:`|x_j - x_j'| / l_j` is at most
    ``max_scaled_distance`` in every input :math:`j`, the kernel error is at most ``tolerance * magnitude``.
    Beyond that box, which shrinks in the inputs' own units as shorter length scales are learned, far points
    may be taken for near ones.

    Measured in float64 with the default cutoff and ``tolerance=1e-6`` (largest error over a dense grid and
    random points of the box; in float32, rounding adds about 1e-6):

    ===== ===== ======== =================== ================= =================================
    dim   nodes features max_scaled_distance error in that box error up to a distance of 8, 8, 3
    ===== ===== ======== =================== ================= =================================
    1     22    20       2.8                 8.9e-7            5.7e-1
    1     26    24       4.3                 6.9e-7            5.8e-2
    1     32    30       6.5                 9.3e-7            1.7e-4
    **1** 38    36       8.6                 9.7e-7            5.7e-7
    1     48    44       12.3                8.7e-7            6.6e-7
    1     64    58       18.3                6.9e-7            6.9e-7
    2     26    402      3.8                 7.5e-7            9.4e-2
    2     32    606      5.8                 7.5e-7            4.2e-4
    **2** 38    852      8.1                 7.5e-7            7.5e-7
    2     48    1344     11.7                7.5e-7            7.5e-7
    3     20    2724     1.6                 7.5e-7            9.0e-5
    **3** 24    4654     3.0                 7.5e-7            7.5e-7
    3     28    7346     4.3                 7.5e-7            7.5e-7
    3     32    10862    5.6                 7.5e-7            7.5e-7
    ===== ===== ======== =================== ================= =================================

    The rows in bold are the defaults.

    Args:
        input_dim: Number of input columns, 1 to 3; the number of features grows like
            ``nodes_per_dimension**input_dim``.
        nodes_per_dimension: Even. More nodes widen the box (``max_scaled_distance``). None takes 38, 38 and
            24 for one, two and three inputs, for a box of 8, 8 and 3.
        length_scales: One number, or one per input.
        magnitude: The kernel's variance.
        frequency_cutoff: Where the spectral integral is cut off. None takes the point beyond which half of
            ``tolerance`` lies.
        learn_length_scales: Whether ``log_length_scales`` is a parameter or a fixed buffer.
        learn_magnitude: Whether ``log_magnitude`` is a parameter or a fixed buffer.
        tolerance: The kernel error allowed within the box, relative to ``magnitude``.

    Attributes:
        max_scaled_distance: The box in which ``tolerance`` holds, computed from the nodes in float64.

    Raises:
        ValueError: Also if nodes and cutoff do not reach ``tolerance`` at any distance.

    Example:
        >>> feature_map = GaussLegendreFeatures(input_dim=1, length_scales=0.5).double()
        >>> inputs = torch.linspace(-2, 2, 50, dtype=torch.float64)[:, None]
        >>> bool(feature_map.max_scaled_distance >= 8.0)
        True
        >>> error = feature_map(inputs) @ feature_map(inputs).T - feature_map.exact_kernel(inputs, inputs)
        >>> bool((error.abs() <= 1e-6).all())
        True
    """

    max_scaled_distance: float
    root_weights: Tensor

    def __init__(
        self,
        input_dim: int,
        nodes_per_dimension: int | None = None,
        length_scales: float | Sequence[float] | Tensor = 1.0,
        magnitude: float = 1.0,
        frequency_cutoff: float | None = None,
        learn_length_scales: bool = True,
        learn_magnitude: bool = True,
        tolerance: float = 1e-6,
    ) -> None:
        if check_size("input_dim", input_dim) > 3:
            raise ValueError(
                f"input_dim must be 1, 2 or 3 (the number of nodes is a power of it), but is {input_dim}: "
                "use FourierFeatures for more inputs."
            )
        super().__init__(input_dim, "rbf", length_scales, True, magnitude, learn_length_scales, learn_magnitude)
        if nodes_per_dimension is None:
            nodes_per_dimension = DEFAULT_NODES[self.input_dim]
        self.nodes_per_dimension = check_size("nodes_per_dimension", nodes_per_dimension)
        if self.nodes_per_dimension % 2:
            raise ValueError(
                f"nodes_per_dimension must be even (nodes are used in pairs w, -w), "
                f"but is {nodes_per_dimension}: use {self.nodes_per_dimension + 1}."
            )
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, but is {tolerance!r}.")
        if frequency_cutoff is None:
            frequency_cutoff = -NormalDist().inv_cdf(tolerance / (4 * self.input_dim))
        log_of_number("frequency_cutoff", frequency_cutoff)  # only the check
        self.frequency_cutoff = float(frequency_cutoff)
        self.tolerance = float(tolerance)

        nodes, weights = normal_quadrature(self.nodes_per_dimension, self.frequency_cutoff)
        grid, grid_weights = half_of_tensor_grid(nodes, weights, self.input_dim)
        kept, dropped_weight = keep_heavy(grid_weights, self.tolerance / 4)
        self.max_scaled_distance = _largest_distance(nodes, weights, self.input_dim, self.tolerance - dropped_weight)
        if self.max_scaled_distance == 0:
            raise ValueError(
                f"nodes_per_dimension={self.nodes_per_dimension} with "
                f"frequency_cutoff={self.frequency_cutoff:.3g} does not reach tolerance={self.tolerance:g} "
                "at any distance: use more nodes (and the default cutoff), or a larger tolerance."
            )
        self._exact_nodes = grid[kept]
        self._exact_root_weights = np.sqrt(grid_weights[kept])
        self.num_features = 2 * len(self._exact_nodes)
        # Not in the state dict: the arguments determine them, and a float32 file must not round them.
        self.register_buffer("frequencies", None, persistent=False)
        self.register_buffer("root_weights", None, persistent=False)
        self._round_nodes()

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        return {
            **super().config(),
            "nodes_per_dimension": self.nodes_per_dimension,
            "frequency_cutoff": self.frequency_cutoff,
            "tolerance": self.tolerance,
        }

    def _amplitudes(self) -> Tensor:
        return (0.5 * self.log_magnitude).exp() * self.root_weights

    def _round_nodes(self) -> None:
        """Nodes and weights in dtype and on device of the other tensors, from their float64 values."""
        like = self.log_magnitude
        self.frequencies = torch.tensor(self._exact_nodes, dtype=like.dtype, device=like.device)
        # One weight for the cosine of each frequency and the same for its sine.
        root_weights = np.tile(self._exact_root_weights, 2)
        self.root_weights = torch.tensor(root_weights, dtype=like.dtype, device=like.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GaussLegendreFeatures:
        # Behind .to(), .double(), .cuda(). Nodes once cast to float32 would have seven digits for good.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._round_nodes()
        return self


def _largest_distance(
    nodes: NDArray[np.float64], weights: NDArray[np.float64], input_dim: int, tolerance: float
) -> float:
    """Up to where the full tensor rule is within ``tolerance`` of the kernel, or zero if nowhere."""
    # Beyond this distance a cosine has fewer nodes per period than quadrature can do with.
    limit = math.pi * len(nodes) / nodes[-1]
    distances = np.arange(0.0, limit, 0.01)
    errors = np.abs(np.cos(np.outer(distances, nodes)) @ weights - np.exp(-0.5 * distances**2))
    # Rule and kernel are products over dimensions, with factors of at most 1 + error and 1.
    bound = (1 + errors) ** input_dim - 1
    beyond = np.flatnonzero(bound > tolerance)
    first_beyond = int(beyond[0]) if len(beyond) else len(distances)
    return float(distances[max(first_beyond - 1, 0)])
