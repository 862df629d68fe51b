"""Columns of a table as operators of an ONNX graph: numbers, categories, dates and gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..lite.tables import DAY, NOT_A_MOMENT, encode_values

# Of the calendar's cycle of 400 years; and from the start of one, long before any date, to 1970.
_CYCLE = 146_097
_DAYS_BEFORE_1970 = 719_162 + 800 * _CYCLE


class Nodes:
    """Operators and constants of a graph, in their order."""

    def __init__(self, onnx: ModuleType, prefix: str) -> None:
        self.onnx, self.prefix = onnx, prefix
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        """One operator; the name of its output."""
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def array(self, numbers: npt.NDArray[Any]) -> str:
        """The name of a constant."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(numbers), name))
        return name

    def product(self, given: str, matrix: npt.NDArray[Any]) -> str:
        """With a constant matrix. Not MatMul: ONNX Runtime puts a factor beside it into an attribute of 32 bits."""
        return self.add("Gemm", given, self.array(matrix))

    def whole(self, numbers: list[int]) -> str:
        """The name of constant whole numbers, such as a shape."""
        return self.array(np.array(numbers, dtype=np.int64))


def encode_columns(nodes: Nodes, columns: Sequence[Mapping[str, Any]], rows: str) -> tuple[str, str]:
    """The numbers that columns become, side by side, and in which rows something is new; ``rows`` are the numbers."""
    double, blocks, new = nodes.onnx.TensorProto.DOUBLE, [], []
    counts = {"number": 0, "category": 0, "date": 0}
    for column in columns:
        kind = column["type"]
        place = nodes.whole([counts[kind]])
        counts[kind] += 1
        if kind == "category":
            given = nodes.add("Gather", "text", place, axis=1)
            gap = nodes.add("Equal", given, nodes.array(np.array([[""]], dtype=object)))
            known = nodes.array(np.array([column["categories"]], dtype=object))
            matches = nodes.add("Cast", nodes.add("Equal", given, known), to=double)
            values = encode_values(column, np.arange(len(column["categories"])))
            usual, found = values[:1], nodes.product(matches, values) if values.shape[1] else ""
            seen = nodes.add("Cast", nodes.add("ReduceSum", matches, nodes.whole([1])), to=nodes.onnx.TensorProto.BOOL)
            strange = nodes.add("Not", nodes.add("Or", seen, gap) if column["indicator"] else seen)
        elif kind == "date":
            given = nodes.add("Gather", "dates", place, axis=1)
            gap = nodes.add("Equal", given, nodes.whole([NOT_A_MOMENT]))
            found = date_parts(nodes, given, column["parts"]) if column["encoding"] != "missing or not" else ""
            usual = encode_values(column, np.array([column["usual"]], dtype=np.int64))
            strange = "" if column["indicator"] else gap
        else:
            found = nodes.add("Gather", rows, place, axis=1)
            gap = nodes.add("IsNaN", nodes.add("Sub", found, found))  # also of infinity
            usual, strange = np.array([[column["usual"]]], dtype=np.float64), "" if column["indicator"] else gap
        if column["encoding"] != "missing or not":
            blocks.append(nodes.add("Where", gap, nodes.array(usual), found))
        if column["indicator"]:
            blocks.append(nodes.add("Cast", gap, to=double))
        new += [strange] if strange else []
    together = new[0] if new else ""
    for each in new[1:]:
        together = nodes.add("Or", together, each)
    return nodes.add("Concat", *blocks, axis=1), together


def date_parts(nodes: Nodes, moments: str, parts: Sequence[str]) -> str:
    """The numbers that whole microseconds since 1970 become, as ``finitegp.lite.tables`` has them."""
    double = nodes.onnx.TensorProto.DOUBLE

    def ratio(one: str, other: str) -> str:
        return nodes.add("Div", nodes.add("Cast", one, to=double), nodes.add("Cast", other, to=double))

    def start(year: str) -> str:
        """The days before a year, counted from zero at the start of a cycle of 400."""
        leap = [nodes.add("Div", year, nodes.whole([every])) for every in (4, 100, 400)]
        whole = nodes.add("Add", nodes.add("Mul", year, nodes.whole([365])), leap[0])
        return nodes.add("Add", nodes.add("Sub", whole, leap[1]), leap[2])

    within = nodes.add("Mod", moments, nodes.whole([DAY]))
    days = nodes.add("Div", nodes.add("Sub", moments, within), nodes.whole([DAY]))
    turns = {"time of day": ratio(within, nodes.whole([DAY]))}
    weekday = nodes.add("Mod", nodes.add("Add", days, nodes.whole([3])), nodes.whole([7]))
    turns["weekday"] = ratio(weekday, nodes.whole([7]))
    if "day of year" in parts:
        one, since = nodes.whole([1]), nodes.add("Add", days, nodes.whole([_DAYS_BEFORE_1970]))
        year = nodes.add("Div", nodes.add("Mul", since, nodes.whole([400])), nodes.whole([_CYCLE]))  # or one beside it
        early = nodes.add("Cast", nodes.add("Less", since, start(year)), to=nodes.onnx.TensorProto.INT64)
        late = nodes.add("Less", since, start(nodes.add("Add", year, one)))
        late = nodes.add("Cast", nodes.add("Not", late), to=nodes.onnx.TensorProto.INT64)
        year = nodes.add("Sub", nodes.add("Add", year, late), early)
        first = start(year)
        length = nodes.add("Sub", start(nodes.add("Add", year, one)), first)
        turns["day of year"] = ratio(nodes.add("Sub", since, first), length)
    columns = []
    for part in parts:
        if part == "days":
            columns.append(nodes.add("Add", nodes.add("Cast", days, to=double), turns["time of day"]))
        else:
            angle = nodes.add("Mul", turns[part], nodes.array(np.array(2.0 * np.pi)))
            columns += [nodes.add("Sin", angle), nodes.add("Cos", angle)]
    return nodes.add("Concat", *columns, axis=1)
