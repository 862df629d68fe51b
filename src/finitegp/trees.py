"""``BoostedTrees``: gradient-boosted trees that have a part in the mean of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .errors import ModelFileError
from .lite.program import LiteError, check_trees, sum_trees
from .noise import AddedTrees

Array = npt.NDArray[np.float64]
# No scaled input is larger: where a tree ends early, all rows go left below.
NEVER = 1e9
# Leaves of a tree that masks of 16 bits can name; rows for which these are worth making; and rows at once: at least so
# many, and so many masks.
_MOST_LEAVES, _MANY_ROWS, _ROWS_AT_ONCE, _MASKS_AT_ONCE = 16, 256, 128, 75_000


@dataclass(frozen=True, eq=False)
class _LeafMasks:
    """The same sum without a walk down each tree: all trees at once, by which of their leaves are still possible.

    A row that is larger than the threshold of a node cannot end left of it. So each column, by how many of all trees'
    thresholds a row's value exceeds, has for each tree a mask of the leaves that it allows. The leaf of a row is the
    first one that all columns allow (QuickScorer: Lucchese et al., 2015).

    Attributes:
        thresholds: For each column that trees look at, its number and the thresholds, sorted.
        masks: For each of these, ``(thresholds + 1, trees)``; a bit for each leaf, the first one the lowest.
        leaves: ``(trees, 16)`` values of the leaves that rows can come to, from left to right.
    """

    thresholds: list[tuple[int, Array]]
    masks: list[npt.NDArray[np.uint16]]
    leaves: Array

    @classmethod
    def of(cls, columns: npt.NDArray[np.int64], thresholds: Array, leaves: Array) -> _LeafMasks | None:
        """None if a tree has more than 16 leaves that rows can come to."""
        trees, nodes = columns.shape
        reached = np.ones((trees, 2 * nodes + 1), np.bool_)  # inner nodes, then leaves
        for parent in range(nodes):
            reached[:, 2 * parent + 1] = reached[:, parent]
            reached[:, 2 * parent + 2] = reached[:, parent] & (thresholds[:, parent] < NEVER)
        numbers = np.cumsum(reached[:, nodes:], axis=1)  # of reached leaves, up to and with each leaf
        if numbers[:, -1].max() > _MOST_LEAVES:
            return None
        kept = np.zeros((trees, _MOST_LEAVES))
        tree, leaf = np.nonzero(reached[:, nodes:])
        kept[tree, numbers[tree, leaf] - 1] = leaves[tree, leaf]
        # The leaves left of a node are those below its left child: the ones before its right child's first.
        tree, node = np.nonzero(reached[:, :nodes] & (thresholds < NEVER))
        depth = np.log2(node + 1).astype(np.int64)
        span = (nodes + 1) >> depth
        first = (node + 1 - (1 << depth)) * span
        before = np.where(first > 0, numbers[tree, first - 1], 0)
        middle = numbers[tree, first + span // 2 - 1]
        forbidden = (1 << middle) - (1 << before)
        looks_at, limits = columns[tree, node], thresholds[tree, node]
        found, masks = [], []
        for column in np.unique(looks_at):
            mine = looks_at == column
            values, place = np.unique(limits[mine], return_inverse=True)
            allowed = np.full((len(values) + 1, trees), 2**_MOST_LEAVES - 1, np.int64)
            np.bitwise_and.at(allowed, (place + 1, tree[mine]), ~forbidden[mine])
            found.append((int(column), values))
            masks.append(np.bitwise_and.accumulate(allowed, axis=0).astype(np.uint16))
        return cls(found, masks, kept)

    def sum(self, inputs: Array) -> Array:
        """``(rows,)``."""
        trees = len(self.leaves)
        first = _MOST_LEAVES * np.arange(trees)
        found = np.empty(len(inputs))
        size = max(_ROWS_AT_ONCE, _MASKS_AT_ONCE // trees)
        for start in range(0, len(inputs), size):
            rows = inputs[start : start + size]
            allowed = np.full((len(rows), trees), 2**_MOST_LEAVES - 1, np.uint16)
            for (column, limits), masks in zip(self.thresholds, self.masks, strict=True):
                allowed &= masks[np.searchsorted(limits, rows[:, column])]
            found[start : start + size] = self.leaves.ravel()[_lowest_bit()[allowed] + first].sum(axis=1)
        return found


def mask_bytes(trees: int) -> int:
    """The most bytes that masks take: all thresholds of trees with 16 leaves are different."""
    return 2 * (_MOST_LEAVES - 1) * trees**2


@cache
def _lowest_bit() -> npt.NDArray[np.int64]:
    """The place of the lowest bit of each number of 16 bits."""
    numbers = np.arange(2**_MOST_LEAVES)
    return np.log2(np.maximum(numbers & -numbers, 1)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """A sum of complete binary trees on scaled inputs, and its share in the mean of a fit.

    Features of networks are smooth, and trees are not: on tables with steps the mean of both is better than each. The
    posterior knows nothing of them: rows that come or go change the GP alone.

    Attributes:
        columns: ``(trees, nodes)``; see :func:`~finitegp.lite.program.sum_trees`.
        thresholds: ``(trees, nodes)``.
        leaves: ``(trees, nodes + 1)``, in units of the scaled target.
        weight: Of the trees in the mean; the GP has the rest.
    """

    columns: npt.NDArray[np.int64]
    thresholds: Array
    leaves: Array
    weight: float = 1.0

    @classmethod
    def of(cls, module: AddedTrees) -> BoostedTrees:
        """Those of a noise model."""
        return cls(module.columns.numpy(), module.thresholds.numpy(), module.leaves.numpy())

    def added_to(self, module: nn.Module) -> AddedTrees:
        """A module whose output these trees are added to."""
        added = AddedTrees(module, len(self.columns), int(self.columns.shape[1] + 1).bit_length() - 1)
        for name, values in self.tensors().items():
            setattr(added, name, values.clone())
        return added

    def predict(self, inputs: Array) -> Array:
        """``(rows,)`` the sum of all trees."""
        found: Array
        if len(inputs) < _MANY_ROWS or self._masks is None or inputs.max() > NEVER:
            found = sum_trees(inputs, self.columns, self.thresholds, self.leaves)
        else:
            found = self._masks.sum(inputs)
        return found

    @cached_property
    def _masks(self) -> _LeafMasks | None:
        return _LeafMasks.of(self.columns, self.thresholds, self.leaves)

    def blend(self, inputs: Array, mean: Tensor) -> Tensor:
        """The mean of trees and GP, given that of the GP."""
        return mean + self.weight * (torch.from_numpy(self.predict(inputs)) - mean)

    def tensors(self) -> dict[str, Tensor]:
        """The arrays of a file, by name."""
        parts = (self.columns, self.thresholds, self.leaves)
        return {
            name: torch.from_numpy(each) for name, each in zip(("columns", "thresholds", "leaves"), parts, strict=True)
        }

    @classmethod
    def from_tensors(cls, weight: object, tensors: Mapping[str, Tensor], columns: int) -> BoostedTrees:
        """What :meth:`tensors` gave, checked.

        Raises:
            ModelFileError: If it makes no sense for inputs of this many columns.
        """
        places, thresholds, leaves = (tensors[name].double().numpy() for name in ("columns", "thresholds", "leaves"))
        if tensors["columns"].dtype != torch.int64:
            raise ModelFileError("its trees make no sense")
        try:
            share = check_trees(weight, places, thresholds, leaves, columns)
        except LiteError as error:
            raise ModelFileError(str(error)) from None
        return cls(places.astype(np.int64), thresholds, leaves, share)


def check_added_trees(noise: nn.Module, columns: int) -> None:
    """Refuse a noise model from a file whose trees make no sense for inputs of this many columns."""
    for module in noise.modules():
        if isinstance(module, AddedTrees):
            BoostedTrees.from_tensors(1.0, dict(module.named_buffers(recurse=False)), columns)
