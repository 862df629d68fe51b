"""Squared norms ``|L^-1 z|^2`` of many columns on the CPU, by products: the epistemic variance of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]

# Rows of a triangle that are solved at once: products do the rest.
SOLVED_ROWS = 64
# Rows of an inverse triangle that are multiplied at once: more of them multiply more zeros, fewer are slower.
MULTIPLIED_ROWS = 128


class BlockedTriangle:
    """Forward substitution with a lower triangle on the CPU, by products with blocks of it.

    Products take two thirds of the time of a triangular solve of BLAS. Only the blocks on the diagonal are inverted,
    which loses next to nothing; the inverse of all of a triangle that is nearly singular would lose half of the digits.

    Args:
        lower: ``(d, d)``, float64; what is below the diagonal is copied.

    Example:
        >>> triangle = BlockedTriangle(np.array([[2.0, 0.0], [1.0, 4.0]]))
        >>> triangle.solve(np.array([[2.0], [5.0]])).tolist()
        [[1.0], [1.0]]
    """

    def __init__(self, lower: Array) -> None:
        starts = range(0, len(lower), SOLVED_ROWS)
        rows = [slice(start, min(start + SOLVED_ROWS, len(lower))) for start in starts]
        # Row by row in memory, which is how products take a left side fastest.
        self._blocks = [
            (part, np.ascontiguousarray(lower[part, : part.start]), np.tril(np.linalg.inv(lower[part, part])))
            for part in rows
        ]

    def solve(self, right_side: Array) -> Array:
        """``L^-1 right_side`` for ``right_side`` of shape ``(d, k)``, which is overwritten by it."""
        for rows, before, inverse in self._blocks:
            part = right_side[rows]
            if rows.start:
                part = part - before @ right_side[: rows.start]
            right_side[rows] = inverse @ part
        return right_side

    def squares(self, right_side: Array) -> Array:
        """The squared norms of the columns of ``L^-1 right_side``, which is overwritten."""
        half = self.solve(right_side)
        found: Array = np.einsum("ij,ij->j", half, half)
        return found


class InverseTriangle:
    r"""Squared norms of ``L^-1 z`` by float32 products with the inverse of ``L``, which is computed in float64.

    Let ``L L' >= s I``, as the sum of a Gram matrix and the noise variance ``s`` is: :math:`\sqrt{s} L^{-1}` has no
    norm above one. If rounding errors are independent with mean zero, those of the inverse and of ``z`` add no more
    than :math:`u |z|` each to :math:`\sqrt{s}\,|L^{-1} z|` in mean square, with :math:`u = 2^{-24}`, and those of the
    sums, none of whose parts is above :math:`|z|`, no more than :math:`u |z| \sqrt{d/3}`.

    Args:
        lower: ``(d, d)``, float64.
    """

    def __init__(self, lower: Array) -> None:
        from scipy.linalg.lapack import dtrtri  # SciPy takes several times longer to import than this package

        inverse = dtrtri(lower, lower=1)[0]
        starts = range(0, len(lower), MULTIPLIED_ROWS)
        self._blocks = [
            np.tril(inverse[start : (stop := start + MULTIPLIED_ROWS), :stop], start).astype(np.float32, order="C")
            for start in starts
        ]

    def squares(self, right_side: Array) -> Array:
        """``(k,)`` for ``right_side`` of shape ``(d, k)``."""
        rounded = right_side.astype(np.float32, copy=False)
        found = np.zeros(rounded.shape[1])
        for block in self._blocks:
            half = block @ rounded[: block.shape[1]]
            found += np.einsum("ij,ij->j", half, half)
        return found
