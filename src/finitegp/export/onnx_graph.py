"""``to_onnx``: a model as one ONNX graph of standard operators, from raw numbers to predictions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..arguments import check_arguments
from ..atomic import complete_or_absent
from ..errors import DataError
from ..lite.program import BLOCK, Value, beside, ordered
from ..lite.tables import DAY, NOT_A_MOMENT, encode_values
from .formulas import MOST_COVERAGE, Exportable, Search, check_columns, described, predicted, target_ends

if TYPE_CHECKING:
    import onnx


# Of the calendar's cycle of 400 years; and from the start of one, long before any date, to 1970.
_CYCLE = 146_097
_DAYS_BEFORE_1970 = 719_162 + 800 * _CYCLE
# From 19 on, text can be compared.
_OPSET, _OPSET_OF_TEXT, _IR_VERSION = 18, 19, 10
_NAMES = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"},
    **{"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "sign": "Sign", "tanh": "Tanh", "cos": "Cos"},
    "sin": "Sin",
}
_BISECTIONS = 56
# Of the quadrature of the error function, which ONNX Runtime has for 32 bits only; it is one beyond six.
_NODES, _FARTHEST = 32, 6.0


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


class OnnxExport(NamedTuple):
    """The contents of a graph.

    Attributes:
        inputs: The columns of each of its inputs; ``coverage`` has none.
        outputs: Its outputs by name.
        nodes: How many operators it has.
        bytes: Of the file.
        real: Type of its inputs and outputs, ``"float32"`` or ``"float64"``; inside, all numbers have 64 bits.
    """

    inputs: dict[str, list[str]]
    outputs: list[str]
    nodes: int
    bytes: int
    real: str


@check_arguments
def to_onnx(
    model: Exportable,
    path: str | os.PathLike[str],
    *,
    double: bool = False,
    intervals: bool = True,
    overwrite: bool = True,
) -> OnnxExport:
    """Write a model as an ONNX graph: mean, deviations, and intervals at a coverage that is given at run time.

    Inputs are ``rows`` ``(rows, columns)`` of numbers in the units of the table, NaN where there is none; ``text``
    ``(rows, columns)`` if there are categories, empty where there is none; ``dates`` ``(rows, columns)`` if there are
    dates, in whole microseconds since 1970, the smallest number of 64 bits where there is none (NumPy:
    ``column.astype("datetime64[us]").astype("int64")``); and ``coverage``, one number of at most 0.9999.

    Outputs are ``mean``, ``epistemic_std``, ``noise_std``, ``std``, ``lower`` and ``upper``, each ``(rows, targets)``;
    the two parts of ``std`` only where the target is modelled on its own scale. Categories are compared letter by
    letter; the metadata have all of them. In a table with categories, dates or gaps, rows with a new category, or with
    a gap where the fit saw none, get NaN: what the library does about them takes many predictions.

    Needs the extra ``onnx``.

    Args:
        model: A model file, a fitted ``GPRegressor`` or ``TableRegressor``, a ``ScaledGP`` or a ``FittedGP``.
        path: The graph.
        double: Whether inputs and outputs have 64 bits instead of 32. Inside all numbers have 64 bits: in 32, variances
            of kernels on landmarks would lose most of their digits.
        intervals: Whether there are a coverage and ends of intervals. Those of a mixture (small tables, errors of two
            shapes) are found by bisection, which takes most of the time, also where they are not asked for.
        overwrite: Whether to replace a file that is there.

    Raises:
        DataError: If the model has a module of one's own.
    """
    whole = described(model)
    columns = check_columns(whole, "an ONNX graph", encodes=True)
    used = [] if whole.encoder is None else whole.encoder.used
    categories = {column["name"]: column["categories"] for column in used if column["type"] == "category"}
    dates = [column["name"] for column in used if column["type"] == "date"]
    numbers = [name for name in columns if name not in categories and name not in dates]
    given = {"rows": numbers, "text": list(categories), "dates": dates}
    given = {name: each for name, each in given.items() if each}
    printer = _printer(double)
    parts = predicted(whole)
    for fit, outputs in zip(whole.fits, parts, strict=True) if intervals else ():
        outputs["lower"], outputs["upper"] = target_ends(fit, whole.scale, Value("coverage", 1))
    named = {name: beside([each[name] for each in parts]) for name in parts[0]}
    about = {
        "finitegp": __version__,
        "columns": json.dumps(given.get("rows", [])),
        "categories": json.dumps(categories),
        "dates": json.dumps(dates),
        "target": json.dumps((whole.header.get("table") or {}).get("target")),
        "rows": f"{whole.rows:.15g}",
        "distribution": whole.fits[0].distribution,
        "largest coverage": str(MOST_COVERAGE),
    }
    as_they_are = list(given) == ["rows"] and not any(column["indicator"] for column in used)
    graph = printer.model(named, given, [] if as_they_are else used, about)
    given |= {"coverage": []} if intervals else {}
    with complete_or_absent(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(graph.SerializeToString())
    real = "float64" if double else "float32"
    return OnnxExport(given, list(named), len(graph.graph.node), graph.ByteSize(), real)


def _printer(double: bool) -> _Printer:
    try:
        import onnx
    except ImportError:
        raise DataError("ONNX graphs need the package onnx:", "pip install 'finitegp[onnx]'.") from None
    return _Printer(onnx, double)


class _Printer(Nodes):
    """Prints values as operators on numbers of 64 bits."""

    def __init__(self, onnx: ModuleType, double: bool, prefix: str = "v") -> None:
        super().__init__(onnx, prefix)
        self.type = onnx.TensorProto.DOUBLE if double else onnx.TensorProto.FLOAT
        self.names: dict[int, str] = {}

    def model(
        self,
        outputs: dict[str, Value],
        given: Mapping[str, list[str]],
        encoded: Sequence[Mapping[str, Any]],
        about: dict[str, str],
    ) -> onnx.ModelProto:
        """The graph, checked; of columns ``given`` as they are, or as they are to be ``encoded``."""
        helper, double = self.onnx.helper, self.onnx.TensorProto.DOUBLE
        order = ordered(outputs.values())
        types = {"rows": self.type, "text": self.onnx.TensorProto.STRING, "dates": self.onnx.TensorProto.INT64}
        inputs = [helper.make_tensor_value_info(name, types[name], ["rows", len(each)]) for name, each in given.items()]
        self.rows = self.add("Cast", "rows", to=double) if "rows" in given else ""
        new = ""
        if encoded:
            self.rows, new = encode_columns(self, encoded, self.rows)
        if "lower" in outputs:
            inputs.append(helper.make_tensor_value_info("coverage", self.type, []))
            self.coverage = self.add("Reshape", self.add("Cast", "coverage", to=double), self.whole([1, 1]))
        self.count = self.add("Shape", self.rows, start=0, end=1)
        for value in order:
            self.names[id(value)] = self._print(value)
        infos = []
        for name, value in outputs.items():
            shape = self.add("Concat", self.count, self.whole([value.width]), axis=0)
            full = self.add("Expand", self.names[id(value)], shape)
            full = self.add("Where", new, self.array(np.array(np.nan)), full) if new else full
            self.nodes.append(helper.make_node("Cast", [full], [name], to=self.type))
            infos.append(helper.make_tensor_value_info(name, self.type, ["rows", value.width]))
        graph = helper.make_graph(self.nodes, "finitegp", inputs, infos, self.initializers)
        opsets = [helper.make_opsetid("", _OPSET_OF_TEXT if "text" in given else _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="finitegp")
        helper.set_model_props(model, about)
        self.onnx.checker.check_model(model)
        return model

    def _print(self, value: Value) -> str:
        given = [self.names[id(each)] for each in value.inputs]
        if value.op in _NAMES:
            return self.add(_NAMES[value.op], *given)
        return str(getattr(self, f"_{value.op}")(value, *given))

    def _input(self, value: Value) -> str:
        return self.rows

    def _coverage(self, value: Value) -> str:
        return self.coverage

    def _const(self, value: Value) -> str:
        return self.array(value.arrays[0][None])

    def _less(self, value: Value, one: str, other: str) -> str:
        return self.add("Cast", self.add("Less", one, other), to=self.onnx.TensorProto.DOUBLE)

    def _log1p(self, value: Value, given: str) -> str:
        """Of numbers that are not negative: log(y) x / (y - 1) for y = 1 + x as it is rounded, and x where y is one."""
        one, none = self.array(np.array(1.0)), self.array(np.array(0.0))
        more = self.add("Add", given, one)
        left = self.add("Sub", more, one)
        same = self.add("Equal", left, none)
        ratio = self.add("Div", self.add("Mul", self.add("Log", more), given), self.add("Where", same, one, left))
        return self.add("Where", same, given, ratio)

    def _search(self, value: Search, low: str, high: str, *given: str) -> str:
        """A loop that halves the distance of two bounds."""
        helper, types = self.onnx.helper, self.onnx.TensorProto
        inner = _Printer(self.onnx, True, f"{self.prefix}{len(self.nodes)}_")
        inner.names, inner.initializers, inner.count = dict(self.names), self.initializers, self.count
        bounds = [f"{inner.prefix}{name}" for name in ("low", "high", "goes_on", "number")]
        place = inner.add("Mul", inner.add("Add", *bounds[:2]), self.array(np.array(0.5)))
        for each in ordered([value.below]):
            if id(each) not in inner.names:
                inner.names[id(each)] = place if each.op == "place" else inner._print(each)
        below = inner.add("Cast", inner.names[id(value.below)], to=types.BOOL)
        ends = [inner.add("Where", below, place, bounds[0]), inner.add("Where", below, bounds[1], place)]
        goes_on = inner.add("Identity", bounds[2])
        real = [(types.DOUBLE, [None, value.width])] * 2
        kinds = zip([bounds[3], bounds[2], *bounds[:2]], [(types.INT64, []), (types.BOOL, []), *real], strict=True)
        infos = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds]
        kinds = zip([goes_on, *ends], [(types.BOOL, []), *real], strict=True)
        results = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds]
        body = helper.make_graph(inner.nodes, f"{inner.prefix}body", infos, results)
        outputs = [f"{inner.prefix}{name}" for name in ("lower", "upper")]
        times = self.array(np.array(_BISECTIONS, dtype=np.int64))
        self.nodes.append(helper.make_node("Loop", [times, "", low, high], outputs, body=body))
        return self.add("Mul", self.add("Add", *outputs), self.array(np.array(0.5)))

    def _erf(self, value: Value, given: str) -> str:
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        bound = [self.array(np.array(each)) for each in (-_FARTHEST, _FARTHEST)]
        near = self.add("Min", self.add("Max", given, bound[0]), bound[1])
        squares = self.add("Unsqueeze", self.add("Mul", near, near), self.whole([2]))
        values = self.add("Exp", self.add("Mul", squares, self.array(-np.square(0.5 * (nodes + 1.0)))))
        means = self.add("MatMul", values, self.array(weights / np.sqrt(np.pi)))
        return self.add("Mul", near, means)

    def _affine(self, value: Value, given: str) -> str:
        blocks, bias = value.arrays
        count, inputs, _ = blocks.shape
        if count == 1:
            found = self.product(given, blocks[0])
        else:
            parts = self.add("Reshape", given, self.whole([-1, count, inputs]))
            turned = self.add("Transpose", parts, perm=[1, 0, 2])
            product = self.add("MatMul", turned, self.array(blocks))
            back = self.add("Transpose", product, perm=[1, 0, 2])
            found = self.add("Reshape", back, self.whole([-1, value.width]))
        return self.add("Add", found, self.array(bias)) if bias.any() else found

    def _solve(self, value: Value, given: str) -> str:
        """Forward substitution in blocks: ONNX has no operator for it."""
        triangle, inverses = value.arrays
        sizes = [min(BLOCK, value.width - start) for start in range(0, value.width, BLOCK)]
        parts = [given]
        if len(sizes) > 1:
            parts = [f"s{len(self.nodes)}_{number}" for number in range(len(sizes))]
            self.nodes.append(self.onnx.helper.make_node("Split", [given, self.whole(sizes)], parts, axis=1))
        found, start = "", 0
        for part, size, inverse in zip(parts, sizes, inverses, strict=True):
            if start:
                known = self.product(found, triangle[start : start + size, :start].T)
                part = self.add("Sub", part, known)
            solved = self.product(part, inverse[:size, :size].T)
            found = self.add("Concat", found, solved, axis=1) if start else solved
            start += size
        return found

    def _trees(self, value: Value, given: str) -> str:
        """All trees a level at a time."""
        columns, thresholds, _ = value.arrays
        count, nodes = columns.shape
        flat = [self.array(each.reshape(-1)) for each in value.arrays]
        ones, first = self.whole([1]), self.array(nodes * np.arange(count)[None])
        values = self.add("Gather", given, self.array(columns[:, 0].copy()), axis=1)
        borders, place = self.array(thresholds[:, 0][None].copy()), ""
        for level in range((nodes + 1).bit_length() - 1):
            if level:
                at = self.add("Add", place, first)
                values = self.add("GatherElements", given, self.add("Gather", flat[0], at), axis=1)
                borders = self.add("Gather", flat[1], at)
            larger = self.add("Cast", self.add("Greater", values, borders), to=self.onnx.TensorProto.INT64)
            below = self.add("Add", self.add("Add", place, place), ones) if level else ones
            place = self.add("Add", larger, below)
        last = self.add("Add", place, self.array(((nodes + 1) * np.arange(count) - nodes)[None]))
        return self.add("ReduceSum", self.add("Gather", flat[2], last), ones)

    def _distances(self, value: Value, given: str) -> str:
        (places,) = value.arrays
        own = self.add("ReduceSum", self.add("Mul", given, given), self.whole([1]))
        both = self.product(given, -2.0 * places.T)
        squares = self.add("Add", self.add("Add", own, both), self.array(np.square(places).sum(axis=1)))
        return self.add("Max", squares, self.array(np.array(0.0)))

    def _concat(self, value: Value, *given: str) -> str:
        names = []
        for each, name in zip(value.inputs, given, strict=True):
            # Constants have one row, whatever the batch.
            shape = self.add("Concat", self.count, self.whole([each.width]), axis=0) if each.op == "const" else None
            names.append(name if shape is None else self.add("Expand", name, shape))
        return self.add("Concat", *names, axis=1)

    def _take(self, value: Value, given: str) -> str:
        return self.add("Gather", given, self.array(value.arrays[0]), axis=1)

    def _sum(self, value: Value, given: str) -> str:
        return self._reduced("ReduceSum", value, given)

    def _least(self, value: Value, given: str) -> str:
        return self._reduced("ReduceMin", value, given)

    def _reduced(self, operator: str, value: Value, given: str) -> str:
        if value.width == 1:
            return self.add(operator, given, self.whole([1]))
        grouped = self.add("Reshape", given, self.whole([-1, value.width, value.group]))
        return self.add(operator, grouped, self.whole([2]), keepdims=0)
