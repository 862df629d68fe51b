"""``JudgedKernels``: kernels that left-out rows have judged, before their posteriors given all rows are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..component import Component, SpreadModel
from ..kernel_gp import Array, KernelRows
from ..predictive import StudentMixture
from ..processes import in_parallel
from ..trees import BoostedTrees
from .fitted_shapes import SkewedErrors, choose_skew

# Of left-out rows, which have at least the part of noise that this quantile has.
_NEARLY_ALL = 0.05


class JudgedKernels(NamedTuple):
    """Kernels with weights, what is added to them, and left-out rows with their predictive distributions.

    Attributes:
        components: Each makes a kernel's posterior.
        spread: Makes the model of the spread; None if there is none.
        trees: Grows boosted trees with a part in the mean; None if there are none.
        tree_weight: Theirs.
        judged: The left-out rows and their distributions; None if the rows are too few for that.
        noise_parts: ``(components, left-out rows)`` the part of noise in the variances of these; the spread's last.
        skew: Of errors, or None.
    """

    components: Sequence[Callable[[], Component]]
    spread: Callable[[], SpreadModel] | None = None
    trees: Callable[[], BoostedTrees] | None = None
    tree_weight: float = 0.0
    judged: tuple[KernelRows, StudentMixture] | None = None
    noise_parts: Array | None = None
    skew: SkewedErrors | None = None

    def with_skew(self) -> JudgedKernels:
        """With two kinds of errors, if left-out rows show that they are skewed."""
        if self.judged is None or self.noise_parts is None:
            return self
        rows, mixture = self.judged
        skew = choose_skew(mixture, rows.targets, rows.counts)
        return self if skew is None else self._replace(judged=(rows, skew.of(mixture)), skew=skew)

    def condition(self, threads: int) -> tuple[tuple[Component, ...], SpreadModel | None]:
        """The kernels and the model of the spread given all rows, several at once."""
        makers: list[Callable[[], Component | SpreadModel]] = [*self.components, *filter(None, [self.spread])]
        made = list(in_parallel(lambda make: make(), [(make,) for make in makers], threads))
        if self.skew is not None and self.noise_parts is not None:
            least = np.quantile(self.noise_parts, _NEARLY_ALL, axis=1).tolist()
            parts = zip(made, least, strict=True)
            made = [replace(each, tail=self.skew.tail(each.degrees_of_freedom, part)) for each, part in parts]
        components = tuple(each for each in made if isinstance(each, Component))
        return components, next((each for each in made if isinstance(each, SpreadModel)), None)
