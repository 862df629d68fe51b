"""A prediction as a graph of a few operations on plain arrays: one description for NumPy, C and ONNX.

A :class:`Value` is a column block ``(rows, width)`` together with how it is computed. Whoever describes a model writes
formulas (``(x - mean) * factor``); :func:`evaluate` runs them with NumPy, exporters print them in other languages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Binary: TypeAlias = "Callable[[Value, Operand], Value]"
#: Rows of a triangle that are solved at once.
BLOCK = 16
#: Pairs of a row and a tree that are followed at once.
TREES_AT_ONCE = 16_384
#: Numbers in memory for each of them.
TREE_NUMBERS = 6
_MOST_NODES = 1023


class LiteError(ValueError):
    """A file or rows cannot be used; the message has the reason and the remedy."""


def _operator(op: str) -> tuple[Binary, Binary]:
    """An operation of a value with another, and that with the value on the right."""
    return lambda value, other: _binary(op, value, other), lambda value, other: _binary(op, other, value)


@dataclass(frozen=True, eq=False)
class Value:
    """Columns ``(rows, width)`` and the operation that gives them.

    Attributes:
        op: A key of ``OPERATIONS``, or ``"input"``.
        width: Number of columns; a width of one goes with any other in operations of two values.
        inputs: What it is computed from.
        arrays: The operation's constants.
        group: Neighbouring columns that a sum or minimum takes together.
    """

    op: str
    width: int
    inputs: tuple[Value, ...] = ()
    arrays: tuple[npt.NDArray[Any], ...] = ()
    group: int = 0

    # NumPy's arrays leave operations with a value to it.
    __array_ufunc__: ClassVar[None] = None

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div")

    @property
    def squared(self) -> Value:
        """The value times itself."""
        return self * self


Operand = Value | Array | float
Numbers = npt.NDArray[Any]
Operation = Callable[[Value, list[Numbers], list[Numbers]], Numbers]


def constant(values: Operand) -> Value:
    """Numbers that are the same for every row; a value stays as it is."""
    if isinstance(values, Value):
        return values
    row = np.atleast_1d(np.asarray(values, dtype=np.float64)).reshape(-1)
    return Value("const", len(row), arrays=(row,))


def _binary(op: str, one: Operand, other: Operand) -> Value:
    left, right = constant(one), constant(other)
    if left.width != right.width and 1 not in (left.width, right.width):
        raise LiteError(f"widths {left.width} and {right.width} do not go together")
    if op == "mul" and left.op == "const" and left.width == 1 and left.arrays[0][0] == 1.0:
        return right
    return _folded(Value(op, max(left.width, right.width), (left, right)))


def _folded(value: Value) -> Value:
    """A value that depends on constants alone, as a constant."""
    if any(each.op != "const" for each in value.inputs):
        return value
    return constant(_run(value, [each.arrays[0][None] for each in value.inputs], np.float64))


def largest(one: Operand, other: Operand) -> Value:
    """The larger of two."""
    return _binary("max", one, other)


def smallest(one: Operand, other: Operand) -> Value:
    """The smaller of two."""
    return _binary("min", one, other)


def less(one: Operand, other: Operand) -> Value:
    """One where the first is less than the second, else zero."""
    return _binary("less", one, other)


def clipped(value: Value, low: Operand, high: Operand) -> Value:
    """The value, kept between two others."""
    return smallest(largest(value, low), high)


def apply(function: str, value: Value) -> Value:
    """A function of each number: one of ``FUNCTIONS``."""
    return _folded(Value(function, value.width, (value,)))


def affine(value: Value, weights: Array, bias: Array | None = None) -> Value:
    """The product with ``weights`` ``(inputs, outputs)`` or blocks of it ``(blocks, inputs, outputs)``, and a bias."""
    blocks = weights[None] if weights.ndim == 2 else weights
    count, inputs, outputs = blocks.shape
    offset = np.zeros(count * outputs) if bias is None else np.asarray(bias, dtype=np.float64).reshape(-1)
    if value.width != count * inputs or len(offset) != count * outputs:
        raise LiteError(f"weights of shape {weights.shape} do not take {value.width} columns")
    return Value("affine", count * outputs, (value,), (np.ascontiguousarray(blocks), offset))


def solved(value: Value, triangle: Array) -> Value:
    """The product of the inverse of a lower triangular matrix with each row, by forward substitution.

    Not with the inverse itself: where the triangle is all but singular, that would lose half of the digits. The
    inverses of its diagonal blocks, the second constant, lose next to nothing.
    """
    if triangle.shape != (value.width, value.width):
        raise LiteError(f"a triangle of shape {triangle.shape} does not take {value.width} columns")
    size = -(-value.width // BLOCK) * BLOCK
    padded = np.eye(size)
    padded[: value.width, : value.width] = np.tril(triangle)
    blocks = padded.reshape(size // BLOCK, BLOCK, size // BLOCK, BLOCK)[
        np.arange(size // BLOCK), :, np.arange(size // BLOCK)
    ]
    return Value("solve", value.width, (value,), (np.tril(triangle), np.tril(np.linalg.inv(blocks))))


def squared_distances(value: Value, places: Array) -> Value:
    """To each of some places ``(places, columns)``."""
    if places.ndim != 2 or places.shape[1] != value.width:
        raise LiteError(f"places of shape {places.shape} do not go with {value.width} columns")
    return Value("distances", len(places), (value,), (places,))


def beside(values: Sequence[Value]) -> Value:
    """The columns of all, side by side."""
    return values[0] if len(values) == 1 else Value("concat", sum(each.width for each in values), tuple(values))


def take(value: Value, columns: npt.ArrayLike) -> Value:
    """Some columns, in a given order; they may repeat."""
    indices = np.asarray(columns, dtype=np.int64).reshape(-1)
    if len(indices) == 0 or indices.min() < 0 or indices.max() >= value.width:
        raise LiteError(f"columns of {value.width} are not there")
    return Value("take", len(indices), (value,), (indices,))


def total(value: Value, group: int = 0) -> Value:
    """The sum over neighbouring columns, or over all."""
    return Value("sum", value.width // (group or value.width), (value,), group=group or value.width)


def least(value: Value, group: int = 0) -> Value:
    """The minimum over neighbouring columns, or over all."""
    return Value("least", value.width // (group or value.width), (value,), group=group or value.width)


def boosted(value: Value, columns: npt.NDArray[np.int64], thresholds: Array, leaves: Array) -> Value:
    """The sum of complete binary trees: see :func:`sum_trees`."""
    return Value("trees", 1, (value,), (columns, thresholds, leaves))


def ordered(outputs: Iterable[Value]) -> list[Value]:
    """All values that some depend on, each after what it depends on."""
    found: dict[int, Value] = {}
    stack = [(value, False) for value in reversed(list(outputs))]
    while stack:
        value, ready = stack.pop()
        if id(value) in found:
            continue
        if ready:
            found[id(value)] = value
        else:
            stack.append((value, True))
            stack += [(each, False) for each in reversed(value.inputs)]
    return list(found.values())


def last_uses(order: Sequence[Value], outputs: Iterable[Value]) -> dict[int, list[Value]]:
    """By place in the order: the values that nobody needs any more after it."""
    last = {id(each): place for place, value in enumerate(order) for each in value.inputs}
    kept = {id(value) for value in outputs}
    done: dict[int, list[Value]] = {}
    for place, value in enumerate(order):
        if id(value) not in kept:
            done.setdefault(last.get(id(value), place), []).append(value)
    return done


def evaluate(
    outputs: Mapping[str, Value], inputs: npt.ArrayLike, dtype: npt.DTypeLike = np.float64
) -> dict[str, Numbers]:
    """The outputs ``(rows, width)`` by name for inputs ``(rows, columns)``.

    Example:
        >>> x = Value("input", 2)
        >>> evaluate({"norm": apply("sqrt", total(x.squared))}, [[3.0, 4.0]])["norm"].tolist()
        [[5.0]]
    """
    rows = np.asarray(inputs, dtype=dtype)
    order = ordered(outputs.values())
    done = last_uses(order, outputs.values())
    found: dict[int, Numbers] = {}
    for place, value in enumerate(order):
        given = [rows] if value.op == "input" else [found[id(each)] for each in value.inputs]
        found[id(value)] = given[0] if value.op == "input" else _run(value, given, dtype)
        for each in done.get(place, ()):
            del found[id(each)]
    return {name: np.broadcast_to(found[id(value)], (len(rows), value.width)) for name, value in outputs.items()}


def _run(value: Value, given: list[Numbers], dtype: npt.DTypeLike) -> Numbers:
    arrays = [each if each.dtype == np.int64 else each.astype(dtype, copy=False) for each in value.arrays]
    return np.asarray(OPERATIONS[value.op](value, given, arrays))


def _affine(_: Value, given: list[Numbers], arrays: list[Numbers]) -> Numbers:
    (x,), (blocks, bias) = given, arrays
    if len(blocks) == 1:
        return np.asarray(x @ blocks[0] + bias)
    parts = x.reshape(len(x), len(blocks), -1).transpose(1, 0, 2) @ blocks
    return np.asarray(parts.transpose(1, 0, 2).reshape(len(x), -1) + bias)


def _distances(_: Value, given: list[Numbers], arrays: list[Numbers]) -> Numbers:
    (x,), (places,) = given, arrays
    squares = np.square(x).sum(axis=1)[:, None] + np.square(places).sum(axis=1) - 2.0 * (x @ places.T)
    return np.asarray(np.maximum(squares, 0))


def solve_lower(triangle: Numbers, right_side: Numbers) -> Numbers:
    """The product of the inverse of a lower triangular matrix with columns, by forward substitution in blocks.

    Example:
        >>> solve_lower(np.array([[2.0, 0.0], [1.0, 4.0]]), np.array([[2.0], [5.0]])).tolist()
        [[1.0], [1.0]]
    """
    found = np.array(right_side)
    for start in range(0, len(found), BLOCK):
        rows = slice(start, start + BLOCK)
        found[rows] = np.linalg.solve(triangle[rows, rows], found[rows] - triangle[rows, :start] @ found[:start])
    return found


def _solve(_: Value, given: list[Numbers], arrays: list[Numbers]) -> Numbers:
    (x,), (triangle, inverses) = given, arrays
    found = np.empty_like(x)
    for number, inverse in enumerate(inverses):
        rows = slice(number * BLOCK, min((number + 1) * BLOCK, x.shape[1]))
        size = rows.stop - rows.start
        part = x[:, rows] - found[:, : rows.start] @ triangle[rows, : rows.start].T if number else x[:, rows]
        found[:, rows] = part @ inverse[:size, :size].T
    return found


def sum_trees(inputs: Numbers, columns: npt.NDArray[np.int64], thresholds: Numbers, leaves: Numbers) -> Numbers:
    """``(rows,)`` sums over complete binary trees.

    Args:
        inputs: ``(rows, columns)``.
        columns: ``(trees, nodes)`` which column each inner node looks at; the children of node ``i`` are ``2 i + 1``
            and ``2 i + 2``.
        thresholds: ``(trees, nodes)``: a row whose value is larger goes to the second child.
        leaves: ``(trees, nodes + 1)`` values, from left to right.

    Example:
        >>> sum_trees(np.array([[0.0], [2.0]]), np.zeros((1, 1), np.int64), np.ones((1, 1)), np.array([[3.0, 4.0]]))
        array([3., 4.])
    """
    count, nodes = columns.shape
    first_node, first_leaf = nodes * np.arange(count), (nodes + 1) * np.arange(count) - nodes
    size = max(1, TREES_AT_ONCE // count)
    parts = []
    for start in range(0, len(inputs), size):
        rows = inputs[start : start + size]
        place = np.zeros((len(rows), count), np.int64)
        while place.size and place[0, 0] < nodes:
            at = first_node + place
            larger = np.take_along_axis(rows, columns.ravel()[at], axis=1) > thresholds.ravel()[at]
            place = 2 * place + 1 + larger
        parts.append(leaves.ravel()[first_leaf + place].sum(axis=1))
    return np.concatenate(parts) if parts else np.zeros(0, inputs.dtype)


def check_trees(weight: object, columns: Array, thresholds: Array, leaves: Array, inputs: int) -> float:
    """The weight of stored trees, after everything about them: see :func:`sum_trees`; ``inputs`` columns are there."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.0 < weight <= 1.0:
        raise LiteError("the weight of its trees makes no sense")
    nodes = columns.shape[1] if columns.ndim == 2 and len(columns) else 0
    good = 0 < nodes <= _MOST_NODES and not nodes & (nodes + 1)
    good = good and thresholds.shape == columns.shape and leaves.shape == (len(columns), nodes + 1)
    good = good and all(bool(np.isfinite(each).all()) for each in (columns, thresholds, leaves))
    if not good or columns.min() < 0 or columns.max() >= inputs or np.any(columns != np.floor(columns)):
        raise LiteError("its trees make no sense")
    return float(weight)


def _grouped(value: Value, x: Numbers) -> Numbers:
    return x.reshape(len(x), value.width, value.group)


_ERF = np.frompyfunc(math.erf, 1, 1)
#: Functions of each number.
FUNCTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    **{name: getattr(np, name) for name in ("exp", "log", "log1p", "sqrt", "abs", "sign", "tanh", "cos", "sin")},
    "erf": lambda x: np.asarray(_ERF(x), x.dtype),
}


def _elementwise(name: str) -> Operation:
    return lambda _, given, arrays: FUNCTIONS[name](given[0])


#: All operations, as NumPy has them: of the value, what it is computed from, and its constants.
OPERATIONS: dict[str, Operation] = {
    "const": lambda _, given, arrays: arrays[0][None],
    "add": lambda _, given, arrays: given[0] + given[1],
    "sub": lambda _, given, arrays: given[0] - given[1],
    "mul": lambda _, given, arrays: given[0] * given[1],
    "div": lambda _, given, arrays: given[0] / given[1],
    "max": lambda _, given, arrays: np.maximum(given[0], given[1]),
    "min": lambda _, given, arrays: np.minimum(given[0], given[1]),
    "less": lambda _, given, arrays: (given[0] < given[1]).astype(np.result_type(*given)),
    **{name: _elementwise(name) for name in FUNCTIONS},
    "affine": _affine,
    "solve": _solve,
    "distances": _distances,
    "concat": lambda value, given, arrays: np.concatenate(
        [np.broadcast_to(each, (max(map(len, given)), each.shape[1])) for each in given], axis=1
    ),
    "take": lambda _, given, arrays: given[0][:, arrays[0]],
    "sum": lambda value, given, arrays: _grouped(value, given[0]).sum(axis=2),
    "trees": lambda _, given, arrays: sum_trees(given[0], *arrays)[:, None],
    "least": lambda value, given, arrays: _grouped(value, given[0]).min(axis=2),
}
