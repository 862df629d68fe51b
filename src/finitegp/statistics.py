"""``FeatureStatistics``: the row sums through which data enter likelihood and posterior, and how they are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from .arguments import check_arguments
from .errors import DataError
from .linalg import add_gram

Chunk = TypeVar("Chunk", covariant=True)


@check_arguments
@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    r"""Sums over rows that determine the exact GP: an additive value.

    With feature rows :math:`z_i \in R^d`, targets :math:`y_i \in R^t` and row noise scales :math:`v_i` (one unless
    the noise depends on the input or rows are weighted), scaled rows are :math:`z_i / \sqrt{v_i}`,
    :math:`y_i / \sqrt{v_i}`, and the sums are over scaled rows:

    ========================== ============ ==============================================
    attribute                  shape        sum over rows
    ========================== ============ ==============================================
    ``gram``                   ``(d, d)``   :math:`z_i z_i' / v_i`
    ``projected_targets``      ``(d, t)``   :math:`z_i y_i' / v_i`
    ``target_sum_of_squares``  ``(t,)``     :math:`y_i^2 / v_i`
    ``log_scale_sum``          scalar       :math:`\log v_i`
    ``num_data``               scalar       1
    ========================== ============ ==============================================

    A row with a count ``k`` enters every sum ``k`` times.

    All tensors are float64. Statistics add (``+``, ``sum``), subtract (``-``: forgetting rows) and scale (``*``: a
    batch standing in for all rows), so they stream, merge and all-reduce.

    Example:
        >>> features, targets = torch.randn(10, 3), torch.randn(10)
        >>> whole = FeatureStatistics.from_batch(features, targets)
        >>> parts = sum([FeatureStatistics.from_batch(features[:4], targets[:4]),
        ...              FeatureStatistics.from_batch(features[4:], targets[4:])])
        >>> bool(torch.allclose(whole.gram, parts.gram, rtol=1e-12)), parts.num_data
        (True, 10.0)
    """

    gram: Tensor
    projected_targets: Tensor
    target_sum_of_squares: Tensor
    log_scale_sum: Tensor
    num_data: float

    @classmethod
    def zeros(cls, num_features: int, num_targets: int = 1, *, device: torch.device | str = "cpu") -> FeatureStatistics:
        """The statistics of no rows: the start of a sum."""
        if num_features < 0 or num_targets < 0:
            raise DataError(f"num_features and num_targets cannot be negative: {num_features}, {num_targets}.")
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise DataError(f"device {device!r} is none that torch knows: {error}") from None

        def zero(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(
            gram=zero(num_features, num_features),
            projected_targets=zero(num_features, num_targets),
            target_sum_of_squares=zero(num_targets),
            log_scale_sum=zero(),
            num_data=0.0,
        )

    @classmethod
    def from_batch(
        cls,
        features: Tensor,
        targets: Tensor,
        log_noise_scale: Tensor | None = None,
        *,
        counts: Tensor | None = None,
        check: bool = True,
    ) -> FeatureStatistics:
        """The sums over one batch of rows.

        Args:
            features: ``(rows, d)``, any float type; sums are float64.
            targets: ``(rows,)`` or ``(rows, t)``.
            log_noise_scale: ``(rows,)``, the logarithm of each row's noise scale ``v``; None means one for all rows.
            counts: ``(rows,)``, how many equal rows each row stands for; None means one.
            check: Whether values that are not finite are an error; otherwise :meth:`is_finite` finds them.

        Raises:
            DataError: For shapes that do not fit, and for values that are not finite (naming the row).
        """
        sums = RunningSums()
        sums.add(features, targets, log_noise_scale, counts=counts, check=check)
        return sums.total()

    @property
    def num_features(self) -> int:
        """The number of features ``d``."""
        return self.gram.shape[0]

    @property
    def num_targets(self) -> int:
        """The number of target columns ``t``."""
        return self.projected_targets.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the sums live."""
        return self.gram.device

    def is_finite(self) -> bool:
        """Whether every sum is a finite number."""
        # One NaN or infinity in any row reaches the diagonal of the Gram matrix or the target's squares.
        total = self.gram.diagonal().sum() + self.target_sum_of_squares.sum() + self.log_scale_sum
        return bool(torch.isfinite(total))

    def to(self, device: torch.device | str) -> FeatureStatistics:
        """The same sums on another device."""
        try:
            torch.device(device)
        except RuntimeError:
            raise ValueError(f"device must be one that torch knows, such as 'cpu', but is {device!r}.") from None
        return self._map(lambda tensor: tensor.to(device), self.num_data)

    def clone(self) -> FeatureStatistics:
        """A copy that shares no memory."""
        return self._map(Tensor.clone, self.num_data)

    def __add__(self, other: FeatureStatistics) -> FeatureStatistics:
        if not isinstance(other, FeatureStatistics):
            return NotImplemented
        return self.clone().accumulate(other)

    def __sub__(self, other: FeatureStatistics) -> FeatureStatistics:
        if not isinstance(other, FeatureStatistics):
            return NotImplemented
        if other.num_data > self.num_data:
            raise DataError(
                f"Cannot subtract statistics of {other.num_data:g} rows from statistics of {self.num_data:g} rows."
            )
        return (other * -1.0).accumulate(self)

    def __radd__(self, other: object) -> FeatureStatistics:
        # `sum` starts from the integer 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, factor: float) -> FeatureStatistics:
        return self._map(lambda tensor: tensor * factor, self.num_data * factor)

    __rmul__ = __mul__

    def accumulate(self, other: FeatureStatistics) -> FeatureStatistics:
        """Add ``other`` into this object's own tensors and return the sum: no new memory, however long the stream.

        The tensors of ``self`` are overwritten; use ``+`` where they are still needed.
        """
        if (self.num_features, self.num_targets) != (other.num_features, other.num_targets):
            raise DataError(
                f"Statistics of {self.num_features} features and {self.num_targets} targets cannot be combined with "
                f"statistics of {other.num_features} features and {other.num_targets} targets."
            )
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            mine.add_(theirs)
        return replace(self, num_data=self.num_data + other.num_data)

    def flatten(self) -> Tensor:
        """All sums in one new vector, the number of rows last: one message, or one entry of a file."""
        rows = self.gram.new_tensor([self.num_data])
        return torch.cat([*(tensor.reshape(-1) for tensor in self._tensors()), rows])

    def unflatten(self, values: Tensor) -> FeatureStatistics:
        """Statistics of this shape out of what :meth:`flatten` gave."""
        sizes = [*(tensor.numel() for tensor in self._tensors()), 1]
        if values.shape != (sum(sizes),):
            raise DataError(f"values must have shape ({sum(sizes)},), but have {tuple(values.shape)}.")
        pieces = iter(torch.split(values, sizes))
        return self._map(lambda tensor: next(pieces).view(tensor.shape), float(values[-1]))

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.gram, self.projected_targets, self.target_sum_of_squares, self.log_scale_sum

    def _map(self, function: Callable[[Tensor], Tensor], num_data: float) -> FeatureStatistics:
        gram, projected_targets, target_sum_of_squares, log_scale_sum = map(function, self._tensors())
        return FeatureStatistics(gram, projected_targets, target_sum_of_squares, log_scale_sum, num_data)


class RunningSums:
    """Row sums of one batch after another, added into one matrix: no other one is made on the way.

    Example:
        >>> features, targets = torch.randn(10, 3), torch.randn(10)
        >>> sums = RunningSums()
        >>> for part in (slice(0, 4), slice(4, 10)):
        ...     sums.add(features[part], targets[part])
        >>> whole = FeatureStatistics.from_batch(features, targets)
        >>> bool(torch.allclose(sums.total().gram, whole.gram, rtol=1e-12))
        True
    """

    def __init__(self) -> None:
        self._joint: Tensor | None = None
        self._num_features = 0
        self._log_scale_sum = torch.zeros((), dtype=torch.float64)
        self._num_data = 0.0

    def add(
        self,
        features: Tensor,
        targets: Tensor,
        log_noise_scale: Tensor | None = None,
        *,
        counts: Tensor | None = None,
        check: bool = True,
    ) -> None:
        """Add the sums over one batch of rows; see :meth:`FeatureStatistics.from_batch`."""
        features, targets = features.detach(), targets.detach()
        if features.ndim != 2:
            raise DataError(f"features must be (rows, features), but have shape {tuple(features.shape)}.")
        if targets.ndim == 1:
            targets = targets[:, None]
        if targets.ndim != 2 or len(targets) != len(features):
            raise DataError(
                f"targets must have one row per row of features ({len(features)}), "
                f"but have shape {tuple(targets.shape)}."
            )
        targets = targets.to(device=features.device, dtype=torch.float64)
        log_scale_sum = torch.zeros((), dtype=torch.float64, device=features.device)
        row_scale = None
        num_data = float(len(features))
        if log_noise_scale is not None:
            log_scale = _one_per_row(log_noise_scale, "log_noise_scale", features)
            row_scale = torch.exp(-0.5 * log_scale)
            log_scale_sum = log_scale.sum()
        if counts is not None:
            counts = _one_per_row(counts, "counts", features)
            root = counts.sqrt()
            row_scale = root if row_scale is None else row_scale * root
            num_data = float(counts.sum())
            if log_noise_scale is not None:
                log_scale_sum = log_scale @ counts
        # One Gram matrix of features and targets side by side holds all three sums; so far below its diagonal.
        d, width = features.shape[1], features.shape[1] + targets.shape[1]
        if self._joint is None:
            self._joint = torch.zeros(width, width, dtype=torch.float64, device=features.device)
            self._num_features = d
            self._log_scale_sum = torch.zeros((), dtype=torch.float64, device=features.device)
        elif (d, width) != (self._num_features, len(self._joint)):
            raise DataError(
                f"A batch of {d} features and {width - d} targets cannot be added to sums of {self._num_features} "
                f"features and {len(self._joint) - self._num_features} targets."
            )
        add_gram(self._joint, features, targets, row_scale=row_scale)
        self._log_scale_sum += log_scale_sum
        self._num_data += num_data
        # One NaN or infinity in any row reaches the diagonal.
        if check and not bool(torch.isfinite(self._joint.diagonal().sum() + self._log_scale_sum)):
            _raise_not_finite(features, targets)

    def total(self) -> FeatureStatistics:
        """The sums so far.

        Raises:
            DataError: If nothing was added.
        """
        if self._joint is None:
            raise DataError("There are no rows: the data are empty.")
        d = self._num_features
        lower_half = self._joint[:d, :d]
        gram = lower_half + lower_half.mT
        gram.diagonal().mul_(0.5)
        return FeatureStatistics(
            gram=gram,
            projected_targets=self._joint[d:, :d].mT.contiguous(),
            target_sum_of_squares=self._joint[d:, d:].diagonal().clone(),
            log_scale_sum=self._log_scale_sum.clone(),
            num_data=self._num_data,
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return self._joint is None


def sum_statistics(parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
    """The sum of a stream of statistics, in memory for two of them, however many parts there are.

    Raises:
        DataError: If there are no parts.
    """
    total: FeatureStatistics | None = None
    for part in parts:
        total = part.clone() if total is None else total.accumulate(part)
        del part  # not kept while the next one is made
    if total is None:
        raise DataError("There are no rows: the data are empty.")
    return total


@dataclass(frozen=True)
class Share:
    """One of ``count`` shares of any number of rows, in order, that differ by at most one row.

    Attributes:
        index: Which share, from 0.
        count: The number of shares.

    Example:
        >>> [list(range(5))[Share(index, 3).cut(5)] for index in range(3)]
        [[0], [1, 2], [3, 4]]
    """

    index: int = 0
    count: int = 1

    def cut(self, rows: int) -> slice:
        """The numbers of this share's rows; there may be none."""
        return slice(rows * self.index // self.count, rows * (self.index + 1) // self.count)


WHOLE = Share()


class Chunks(Protocol[Chunk]):
    """The part of a source's interface that a pass needs."""

    def __iter__(self) -> Iterator[Chunk]:
        """One pass over all rows."""

    def part(self, share: Share) -> Iterator[Chunk]:
        """One pass over a share of the rows."""


class Sums:
    """How sums over a share of the rows become sums over all rows; here the share is all rows, and nothing is added.

    :class:`~finitegp.distributed.Ranks` adds over processes.

    Attributes:
        share: The rows to sum over.
    """

    share: Share = WHOLE

    def each_chunk(self, source: Chunks[Chunk], use: Callable[[Chunk], object]) -> None:
        """Call a function with each chunk of the share in turn."""
        for rows in source:
            use(rows)
            del rows  # not kept while the next chunk passes

    def sum_rows(self, source: Chunks[Chunk], add: Callable[[RunningSums, Chunk], object]) -> FeatureStatistics:
        """The sums over all rows in one pass over the share; ``add(sums, chunk)`` adds those of a chunk."""
        sums = RunningSums()
        self.each_chunk(source, partial(add, sums))
        return self.sum_statistics(() if sums.is_empty else (sums.total(),))

    def sum_statistics(self, parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
        """The sum of all parts of all shares."""
        return sum_statistics(parts)

    def add_number(self, number: float) -> float:
        """The sum of a number over shares."""
        return number

    def largest(self, number: float) -> float:
        """The largest of the shares' numbers."""
        return number

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add up gradients that are sums over rows."""


#: All rows are read here.
COMPLETE = Sums()


def _one_per_row(values: Tensor, name: str, features: Tensor) -> Tensor:
    if values.shape != (len(features),):
        raise DataError(f"{name} must be one number per row ({len(features)},), but has shape {tuple(values.shape)}.")
    return values.detach().to(device=features.device, dtype=torch.float64)


def _raise_not_finite(features: Tensor, targets: Tensor) -> None:
    for name, values in (("features", features), ("targets", targets)):
        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            row, column = (int(index) for index in bad[0])
            raise DataError(
                f"{name} must be finite, but row {row}, column {column} of this batch is {float(values[row, column])}."
            )
    raise DataError("The features are so large that their squares overflow: scale inputs and features to order one.")
