"""A source whose columns are standardised as they pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import DataError
from .any_source import as_source
from .moments import Moments
from .scaling import Standardizer
from .shares import WHOLE, Share
from .sources import Rows, Source


@dataclass(frozen=True, eq=False)
class Scaling:
    """What standardises the rows of a source.

    Attributes:
        inputs: For the inputs.
        targets: For the targets.

    Example:
        >>> import numpy as np
        >>> scaling = Scaling.measure((np.array([[1.0], [3.0]]), np.array([10.0, 30.0])))
        >>> scaling.inputs.mean.tolist(), scaling.targets.scale.tolist()
        ([2.0], [10.0])
    """

    inputs: Standardizer
    targets: Standardizer

    @classmethod
    def measure(cls, data: Any) -> Scaling:
        """One pass over any source, in float64 and in memory that does not depend on the number of rows.

        A row of count ``k`` enters ``k`` times; weights make no difference.
        """
        inputs: Moments | None = None
        targets: Moments | None = None
        for rows in as_source(data):
            counts = None if rows.counts is None else rows.counts.numpy()
            more_inputs, more_targets = (Moments.of(part.numpy(), counts) for part in (rows.inputs, rows.targets))
            inputs = more_inputs if inputs is None else inputs + more_inputs
            targets = more_targets if targets is None else targets + more_targets
        if inputs is None or targets is None:
            raise DataError("There are no rows to standardise.")
        return cls(inputs.standardizer(), targets.standardizer())


class ScaledSource(Source):
    """The rows of another source, standardised in float64.

    Standardise *before* spooling: the spool keeps inputs in float32, which has no room for the variation of a column
    such as a time in microseconds since 1970, and standardised ones have.

    Args:
        data: Any source.
        scaling: From :meth:`Scaling.measure`, of these or of other rows.

    Example:
        >>> import numpy as np
        >>> data = np.array([[1.0], [3.0]]), np.array([10.0, 30.0])
        >>> [rows.inputs.tolist() for rows in ScaledSource(data, Scaling.measure(data))]
        [[[-1.0], [1.0]]]
    """

    def __init__(self, data: Any, scaling: Scaling) -> None:
        self._source = as_source(data)
        self.scaling = scaling
        self.num_data = getattr(self._source, "num_data", None)
        self.column_names = getattr(self._source, "column_names", None)
        if hasattr(self._source, "locate"):
            self.locate = self._source.locate

    def __iter__(self) -> Iterator[Rows]:
        return self.part(WHOLE)

    def part(self, share: Share) -> Iterator[Rows]:
        """One pass over a share of the rows, as the other source shares them out."""
        width = len(self.scaling.inputs.mean)
        for inputs, targets, weights, counts in self._source.part(share):
            if inputs.shape[1] != width:
                raise DataError(f"The scaling is for {width} input columns, but there are {inputs.shape[1]}.")
            yield Rows(
                torch.from_numpy(self.scaling.inputs.transform(inputs.numpy())),
                torch.from_numpy(self.scaling.targets.transform(targets.numpy())),
                weights,
                counts,
            )
        self.num_data = getattr(self._source, "num_data", None)

    def fingerprint(self) -> dict[str, Any] | None:
        """That of the source, with the scaling."""
        inner = self._source.fingerprint() if isinstance(self._source, Source) else None
        if inner is None:
            return None
        both = (self.scaling.inputs, self.scaling.targets)
        return {"kind": "scaled", "of": inner, "scaling": [[s.mean.tolist(), s.scale.tolist()] for s in both]}

    def files(self) -> list[Path]:
        """Those of the source."""
        return self._source.files() if isinstance(self._source, Source) else []
