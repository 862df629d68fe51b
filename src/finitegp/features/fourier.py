"""Cosines and sines of the inputs, whose kernel approximates a stationary one: random Fourier features."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from ..arguments import check_arguments
from .composition import Pullback, accumulate, check_size, check_width, log_of_number, log_of_positive
from .landmarks import DEGREES_OF_FREEDOM, check_kernel, correlation

SAMPLINGS = ("iid", "orthogonal", "sobol")


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


@check_arguments
class SpectralFeatures(nn.Module, ABC):
    r"""The common part of features from a sum over frequencies: scales, magnitude, forward pass, exact kernel.

    .. math:: \phi(x) = [a_i \cos(w_i' (x / l)),\ a_i \sin(w_i' (x / l))]_i, \qquad
        k(x, x') \approx \sum_i a_i^2 \cos(w_i' ((x - x') / l)).

    A subclass sets ``frequencies`` ``(num_features / 2, input_dim)`` and the amplitudes.
    """

    input_dim: int
    num_features: int
    kernel: str
    frequencies: Tensor
    log_length_scales: Tensor
    log_magnitude: Tensor

    def __init__(
        self,
        input_dim: int,
        kernel: str,
        length_scales: float | Sequence[float] | Tensor,
        ard: bool,
        magnitude: float,
        learn_length_scales: bool,
        learn_magnitude: bool,
    ) -> None:
        super().__init__()
        self.input_dim = check_size("input_dim", input_dim)
        self.kernel = check_kernel(kernel)
        log_magnitude = log_of_number("magnitude", magnitude)
        log_length_scales = _log_length_scales(length_scales, self.input_dim if ard else 1)
        self._register("log_length_scales", log_length_scales, learn_length_scales)
        self._register("log_magnitude", log_magnitude, learn_magnitude)

    @property
    def length_scales(self) -> Tensor:
        """The length scales, ``(input_dim,)``, or ``(1,)`` if the inputs share one."""
        return self.log_length_scales.exp()

    @property
    def magnitude(self) -> Tensor:
        """The kernel's variance."""
        return self.log_magnitude.exp()

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of inputs ``(rows, input_dim)``: the cosines, then the sines."""
        check_width(inputs, self.input_dim)
        angles = F.linear(inputs / self.length_scales, self.frequencies)
        return torch.cat((angles.cos(), angles.sin()), dim=1) * self._amplitudes()

    def exact_kernel(self, inputs: Tensor, other: Tensor) -> Tensor:
        """The kernel that is approximated, ``(rows of inputs, rows of other)``."""
        check_width(inputs, self.input_dim)
        check_width(other, self.input_dim)
        scales = self.length_scales
        # Through a matrix product small distances would cancel.
        distance = torch.cdist(inputs / scales, other / scales, compute_mode="donot_use_mm_for_euclid_dist")
        return self.magnitude * correlation(self.kernel, distance)

    @abstractmethod
    def _amplitudes(self) -> Tensor:
        """The factor on cosines and sines: one number, or ``(num_features,)``."""

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        names = ("length_scales", "magnitude")
        learned = {f"learn_{name}": isinstance(getattr(self, f"log_{name}"), nn.Parameter) for name in names}
        return {"input_dim": self.input_dim, **learned}

    def _register(self, name: str, value: Tensor, learn: bool) -> None:
        # What is not learned is a buffer: saved and moved with the module, but out of an optimizer's reach.
        if learn:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)


@check_arguments
class FourierFeatures(SpectralFeatures):
    r"""Random Fourier features of a stationary kernel.

    .. math:: \phi(x) = \sqrt{\tfrac{m}{M}}\, [\cos(W (x / l)),\ \sin(W (x / l))], \qquad
        E[\phi(x)'\phi(x')] = k(x, x') = m\, \rho(|(x - x') / l|),

    with ``magnitude`` :math:`m`, ``length_scales`` :math:`l` and :math:`M` = ``num_features / 2``
    frequencies, the rows of :math:`W`, drawn once from the spectral density of :math:`\rho`. The kernel error
    falls like :math:`1 / \sqrt M`. Maps ``(rows, input_dim)`` to ``(rows, num_features)``.

    Args:
        input_dim: Number of input columns.
        num_features: Even; half are cosines, half sines.
        kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
        length_scales: One number, or one per input.
        ard: Whether each input has its own length scale (automatic relevance determination) or all share one.
        magnitude: The kernel's variance.
        sampling: ``"iid"``, ``"orthogonal"`` (frequencies orthogonal in blocks of ``input_dim``) or
            ``"sobol"`` (quasi-Monte-Carlo, best with few inputs and a power of two as number of frequencies).
        learn_length_scales: Whether ``log_length_scales`` is a parameter or a fixed buffer.
        learn_magnitude: Whether ``log_magnitude`` is a parameter or a fixed buffer.
        learn_frequencies: Whether ``frequencies`` is a parameter (the "a la carte" kernel) or a fixed buffer.
        seed: Determines the frequencies; torch's global random state is neither used nor changed.

    Example:
        >>> feature_map = FourierFeatures(input_dim=2, num_features=1000, length_scales=[0.5, 2.0], seed=0)
        >>> inputs = torch.linspace(-1, 1, 20).reshape(10, 2)
        >>> error = feature_map(inputs) @ feature_map(inputs).T - feature_map.exact_kernel(inputs, inputs)
        >>> bool((error.abs() < 0.15).all())
        True
    """

    def __init__(
        self,
        input_dim: int,
        num_features: int = 1000,
        kernel: str = "rbf",
        length_scales: float | Sequence[float] | Tensor = 1.0,
        ard: bool = True,
        magnitude: float = 1.0,
        sampling: str = "iid",
        learn_length_scales: bool = True,
        learn_magnitude: bool = True,
        learn_frequencies: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(input_dim, kernel, length_scales, ard, magnitude, learn_length_scales, learn_magnitude)
        self.num_features = check_size("num_features", num_features)
        if self.num_features % 2:
            raise ValueError(
                f"num_features must be even (each frequency gives a cosine and a sine), "
                f"but is {num_features}: use {self.num_features + 1}."
            )
        self.sampling = sampling
        frequencies = draw_frequencies(kernel, self.num_features // 2, self.input_dim, sampling, seed)
        self._register("frequencies", frequencies.to(self.log_magnitude), learn_frequencies)

    def config(self) -> dict[str, object]:
        """The arguments that make this map again, but for the values of its tensors."""
        return {
            **super().config(),
            "num_features": self.num_features,
            "kernel": self.kernel,
            "ard": self.log_length_scales.numel() == self.input_dim,
            "sampling": self.sampling,
            "learn_frequencies": isinstance(self.frequencies, nn.Parameter),
        }

    def _amplitudes(self) -> Tensor:
        return (0.5 * self.log_magnitude).exp() / math.sqrt(self.num_features // 2)

    has_pullback = True

    def forward_with_pullback(self, inputs: Tensor, *, inputs_need_gradient: bool = False) -> tuple[Tensor, Pullback]:
        """The same features without autograd, with the backward pass written out."""
        check_width(inputs, self.input_dim)
        with torch.no_grad():
            length_scales = self.length_scales
            scaled = inputs / length_scales
            angles = scaled @ self.frequencies.t()
            features = torch.cat((angles.cos(), angles.sin()), dim=1) * self._amplitudes()

        @torch.no_grad()
        def pullback(gradient: Tensor) -> Tensor | None:
            # The features hold the cosines and sines that the derivative needs, with their amplitude.
            cosines, sines = features.chunk(2, dim=1)
            by_cosines, by_sines = gradient.chunk(2, dim=1)
            by_angles = (by_sines * cosines).addcmul_(by_cosines, sines, value=-1.0)
            if self.log_magnitude.requires_grad:
                accumulate(self.log_magnitude, 0.5 * (gradient * features).sum())
            if self.frequencies.requires_grad:
                accumulate(self.frequencies, by_angles.t() @ scaled)
            if not (inputs_need_gradient or self.log_length_scales.requires_grad):
                return None
            by_scaled = by_angles @ self.frequencies
            if self.log_length_scales.requires_grad:
                by_column = (by_scaled * scaled).sum(dim=0).neg_()
                shared = self.log_length_scales.numel() == 1
                accumulate(self.log_length_scales, by_column.sum() if shared else by_column)
            return by_scaled / length_scales if inputs_need_gradient else None

        return features, pullback


def _log_length_scales(length_scales: float | Sequence[float] | Tensor, count: int) -> Tensor:
    logs = log_of_positive("length_scales", length_scales)
    if logs.numel() == 1 and logs.ndim <= 1:
        return logs.expand(count).clone()
    if logs.shape != (count,):
        wanted = f"one number or {count} numbers, one per input" if count > 1 else "one number"
        raise ValueError(
            f"length_scales must be {wanted}, but has shape {tuple(logs.shape)}"
            + ("." if count > 1 else " (one per input needs ard=True and as many inputs).")
        )
    return logs
