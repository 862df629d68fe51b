"""A source whose columns are standardised as they pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..arguments import check_arguments
from ..errors import DataError
from ..statistics import Share
from .iterables import as_source
from .row_files import Index
from .scaling import Moments, Standardizer
from .sources import Data, Rows, WrappedSource


@check_arguments
@dataclass(frozen=True, eq=False)
class Scaling:
    """The standardisers of the inputs and the targets of a source.

    Attributes:
        inputs: Of the inputs.
        targets: Of the targets.

    Example:
        >>> import numpy as np
        >>> scaling = Scaling.measure((np.array([[1.0], [3.0]]), np.array([10.0, 30.0])))
        >>> scaling.inputs.mean.tolist(), scaling.targets.scale.tolist()
        ([2.0], [10.0])
    """

    inputs: Standardizer
    targets: Standardizer

    @classmethod
    def measure(cls, data: Data) -> Scaling:
        """One pass over any source, in float64 and in memory that does not depend on the number of rows.

        A row of count ``k`` enters ``k`` times; weights make no difference.
        """
        inputs: Moments | int = 0
        targets: Moments | int = 0
        for rows in as_source(data):
            counts = None if rows.counts is None else rows.counts.numpy()
            inputs += Moments.of(rows.inputs.numpy(), counts)
            targets += Moments.of(rows.observed.numpy(), counts)
        if not isinstance(inputs, Moments) or not isinstance(targets, Moments):
            raise DataError("There are no rows to standardise.")
        return cls(inputs.standardizer(), targets.standardizer())


@check_arguments
class ScaledSource(WrappedSource):
    """The rows of another source, standardised in float64.

    Standardise *before* spooling: the spool keeps inputs in float32, which has no room for the variation of a column
    such as a time in microseconds since 1970, and standardised ones have.

    Args:
        data: Data source.
        scaling: From :meth:`Scaling.measure`, of these or of other rows.

    Example:
        >>> import numpy as np
        >>> data = np.array([[1.0], [3.0]]), np.array([10.0, 30.0])
        >>> [rows.inputs.tolist() for rows in ScaledSource(data, Scaling.measure(data))]
        [[[-1.0], [1.0]]]
    """

    def __init__(self, data: Data, scaling: Scaling) -> None:
        super().__init__(as_source(data))
        self.scaling = scaling
        self.fits_memory = False  # the rows are computed as they are read

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, as the other source divides them."""
        return map(self._scaled, self._source.part(share))

    def take(self, indices: Index) -> Rows:
        """The rows of these numbers, in this order, if the other source can take them."""
        return self._scaled(self._source.take(indices))

    def with_chunks(self, chunk_size: int) -> ScaledSource:
        """The same rows in chunks of at most ``chunk_size`` rows; this source stays as it is."""
        return ScaledSource(self._source.with_chunks(chunk_size), self.scaling)

    def fingerprint(self) -> dict[str, object] | None:
        """The fingerprint of the source, with the scaling."""
        inner = self._source.fingerprint()
        if inner is None:
            return None
        both = (self.scaling.inputs, self.scaling.targets)
        parts = [[s.mean, s.scale, *(s.logarithms or ())] for s in both]
        limits = self.scaling.targets.limits
        found: dict[str, object] = {} if limits is None else {"limits": list(limits)}
        return found | {"kind": "scaled", "of": inner, "scaling": [[part.tolist() for part in each] for each in parts]}

    def _scaled(self, rows: Rows) -> Rows:
        width = self.scaling.inputs.num_columns
        if rows.inputs.shape[1] != width:
            raise DataError(f"The scaling is for {width} input columns, but there are {rows.inputs.shape[1]}.")
        targets = None if rows.targets is None else self.scaling.targets.transform(rows.targets.numpy())
        return rows._replace(
            inputs=torch.from_numpy(self.scaling.inputs.transform(rows.inputs.numpy())),
            targets=None if targets is None else torch.from_numpy(targets),
        )
