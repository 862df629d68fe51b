"""A prediction as one C99 header: constant arrays and loops, ``math.h`` and no memory of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..formatting import cut
from ..lite.program import FUNCTIONS, Value, ordered

_BINARY = {
    **{"add": "({} + {})", "sub": "({} - {})", "mul": "{} * {}", "div": "({}) / ({})"},
    **{"less": "(({}) < ({}) ? ONE : ZERO)", "max": "NAME_max({}, {})", "min": "NAME_min({}, {})"},
}
_HELPERS = {
    "max": "static inline NAME_real NAME_max(NAME_real a, NAME_real b) { return a > b ? a : b; }",
    "min": "static inline NAME_real NAME_min(NAME_real a, NAME_real b) { return a < b ? a : b; }",
    "sign": "static inline NAME_real NAME_sign(NAME_real a) { return (NAME_real)((a > 0) - (a < 0)); }",
}
_ELEMENTWISE = {*_BINARY, *FUNCTIONS}
# Who computes each number of its inputs once, so that their formulas can stand in its own.
_TAKES_FORMULAS = {*_ELEMENTWISE, "concat", "sum", "least"}
_CALLS = {"exp", "log", "log1p", "sqrt", "tanh", "cos", "sin", "erf"}
#: What a header can write.
MEANINGS = {
    "mean": "the mean of a new observation",
    "epistemic_std": "the part of its standard deviation that more rows would take away",
    "noise_std": "the part that stays",
    "std": "its standard deviation",
}
_PER_LINE = 8
# Types of whole numbers, with the largest that each has everywhere, and its bytes.
_WHOLE = ((255, "unsigned char", 1), (65_535, "unsigned short", 2), (2**31 - 1, "unsigned long", 8))
_LONGEST_FORMULA = 25
# Characters of a name in a comment.
_LONGEST_NAME = 200


class CHeader(NamedTuple):
    """A header and what it costs.

    Attributes:
        text: The header.
        constant_bytes: Of all constant arrays, which go into read-only memory.
        stack_bytes: Of the numbers that one prediction works with.
        operations: Additions, multiplications, divisions and comparisons of one prediction.
        calls: Calls of ``math.h`` in one prediction.
    """

    text: str
    constant_bytes: int
    stack_bytes: int
    operations: int
    calls: int


def print_header(
    targets: Sequence[Mapping[str, Value]], *, name: str, columns: Sequence[str], about: Sequence[str], real: str
) -> CHeader:
    """The header of formulas.

    Args:
        targets: For each target the formulas of ``MEANINGS`` that there are.
        name: What everything in the header begins with.
        columns: Names of the inputs, in their order.
        about: Lines of the comment at the top.
        real: ``"float"`` or ``"double"``.
    """
    if real not in ("float", "double"):
        raise ValueError(f"real must be 'float' or 'double', but is {real!r}.")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise DataError(f"name must be a C identifier, but is {name!r}.")
    printer = _Printer(name, real, [dict(each) for each in targets])
    body = printer.body()
    comment = "".join(f" * {_plain(line)}\n" for line in about)
    comment += " *\n * Inputs, in this order:\n"
    comment += "".join(f" *   x[{place}]  {_plain(column)}\n" for place, column in enumerate(columns))
    guard = f"{name.upper()}_H"
    arguments = ", ".join(f"{name}_real *{each}" for each in targets[0])
    comment += f" *\n * {name}_predict writes, for each of {name.upper()}_TARGETS targets:\n"
    comment += "".join(f" *   {output}: {MEANINGS[output]}\n" for output in targets[0])
    text = f"""/*
{comment} */
#ifndef {guard}
#define {guard}

#include <math.h>

#define {name.upper()}_COLUMNS {len(columns)}
#define {name.upper()}_TARGETS {len(targets)}

typedef {real} {name}_real;

{printer.constants()}
static inline void {name}_predict(const {name}_real *x, {arguments})
{{
{body}}}

#endif
"""
    stack = printer.numbers * printer.size
    return CHeader(text, printer.constant_bytes, stack, printer.operations, printer.calls)


def _plain(text: str) -> str:
    """Text that can neither end a comment nor hold a trigraph, and is not endless."""
    text = re.sub(r"[^\x20-\x7e]|[?]", "_", cut(text, _LONGEST_NAME))
    return text.replace("*/", "* /").replace("/*", "/ *").rstrip("\\ ")


class _Printer:
    """Prints values in their order; what is computed number by number for one user becomes part of its formula."""

    def __init__(self, name: str, real: str, targets: list[dict[str, Value]]) -> None:
        self.name, self.real, self.targets = name, real, targets
        self.suffix, self.size = ("f", 4) if real == "float" else ("", 8)
        self.outputs = {id(value) for each in targets for value in each.values()}
        self.order = ordered(value for each in targets for value in each.values())
        self.users: dict[int, list[Value]] = {}
        for value in self.order:
            for each in value.inputs:
                self.users.setdefault(id(each), []).append(value)
        self.lengths: dict[int, int] = {}
        self.inlined = {id(value) for value in self.order if self._is_inlined(value)}
        self.places: dict[int, int] = {}
        self.arrays: dict[tuple[bytes, str], tuple[str, str]] = {}
        self.helpers: set[str] = set()
        self.constant_bytes = self.numbers = self.operations = self.calls = 0

    def _is_inlined(self, value: Value) -> bool:
        if value.op in ("const", "input"):
            return True
        users = self.users.get(id(value), [])
        if id(value) in self.outputs or any(user.op not in _TAKES_FORMULAS for user in users):
            return False
        if value.op == "take":
            return True
        self.lengths[id(value)] = length = 1 + sum(self.lengths.get(id(each), 0) for each in value.inputs)
        once = len(users) == 1 and (users[0].op not in _ELEMENTWISE or users[0].width == value.width)
        return value.op in _ELEMENTWISE and once and length < _LONGEST_FORMULA

    def _sources(self, value: Value) -> list[Value]:
        """The values with a place of their own that a value is computed from."""
        found = []
        for each in value.inputs:
            found += self._sources(each) if id(each) in self.inlined else [each]
        return found

    def body(self) -> str:
        """The statements of the function."""
        stored = [value for value in self.order if id(value) not in self.inlined]
        last = {id(each): place for place, value in enumerate(stored) for each in self._sources(value)}
        free: list[tuple[int, int]] = []
        lines: list[str] = []
        for place, value in enumerate(stored):
            self.places[id(value)] = self._reserve(free, value.width)
            lines += self._statements(value)
            done = {id(each): each for each in self._sources(value) if last[id(each)] == place}
            free += [(self.places[key], each.width) for key, each in done.items() if key not in self.outputs]
        for value in self.order:
            self._count(value)
        for number, target in enumerate(self.targets):
            lines += [f"{output}[{number}] = {self._formula(value, '0')};" for output, value in target.items()]
        text = "\n".join(lines)
        whole = [letter for letter in "ijk" if re.search(rf"\b{letter}\b", text)]
        declared = [f"{self.name}_real {', '.join(each)};" for each in (self._numbers_used(text),) if each]
        declared += [f"int {', '.join(whole)};"] if whole else []
        return "".join(f"    {line}\n" for line in [*declared, "", *lines])

    def _numbers_used(self, text: str) -> list[str]:
        return [f"w[{self.numbers}]"] * (self.numbers > 0) + [each for each in ("t", "u") if f"{each} = " in text]

    def _reserve(self, free: list[tuple[int, int]], width: int) -> int:
        """A place for this many numbers: the smallest that is free, or a new one."""
        fitting = sorted((size, start) for start, size in free if size >= width)
        if fitting:
            size, start = fitting[0]
            free.remove((start, size))
            if size > width:
                free.append((start + width, size - width))
            return start
        self.numbers += width
        return self.numbers - width

    def _statements(self, value: Value) -> list[str]:
        start = self.places[id(value)]

        def at(index: str) -> str:
            return f"w[{start}]" if index == "0" else f"w[{start} + {index}]"

        if value.op in _ELEMENTWISE or value.op == "take":
            to = at("0" if value.width == 1 else "i")
            return [self._loop(value.width, "i", f"{to} = {self._computed(value, 'i')};")]
        if value.op == "concat":
            lines, offset = [], start
            for each in value.inputs:
                to = f"w[{offset}]" if each.width == 1 else f"w[{offset} + i]"
                lines.append(self._loop(each.width, "i", f"{to} = {self._formula(each, 'i')};"))
                offset += each.width
            return lines
        (given,) = value.inputs
        if value.op in ("sum", "least"):
            place = "j" if value.width == 1 else f"(i * {value.group} + j)"
            first = self.literal(0.0) if value.op == "sum" else self._formula(given, place.replace("j", "0"))
            step = "t += {};" if value.op == "sum" else "t = NAME_min(t, {});"
            inner = self._loop(value.group, "j", step.format(self._formula(given, place)))
            to = at("0" if value.width == 1 else "i")
            self.helpers |= {"min"} if value.op == "least" else set()
            return [self._loop(value.width, "i", f"{{ t = {first}; {self._named(inner)} {to} = t; }}")]
        pointer = self._pointer(given)
        if value.op == "affine":
            blocks, bias = value.arrays
            count, inputs, outputs = blocks.shape
            weights = self.array(blocks.transpose(0, 2, 1))
            row, column = ("i", "j") if count == 1 else (f"(k * {outputs} + i)", f"k * {inputs} + j")
            begin = self.array(bias) + f"[{row}]" if bias.any() else self.literal(0.0)
            inner = self._loop(inputs, "j", f"t += {pointer}[{column}] * {weights}[{row} * {inputs} + j];")
            return [self._loop(count, "k", self._loop(outputs, "i", f"{{ t = {begin}; {inner} {at(row)} = t; }}"))]
        if value.op == "solve":
            triangle = value.arrays[0].copy()
            np.fill_diagonal(triangle, 1.0 / np.diagonal(triangle))
            packed, last = self.array(triangle[np.tril_indices(value.width)]), at("i")
            inner = f"for (j = 0; j < i; j++) t -= w[{start} + j] * {packed}[k++];"
            statement = f"{{ t = {pointer}[i]; {inner} {last} = t * {packed}[k++]; }}"
            return ["k = 0;", f"for (i = 0; i < {value.width}; i++) {statement}"]
        if value.op == "trees":
            count, nodes = value.arrays[0].shape
            looked_at, thresholds, leaves = map(self.array, value.arrays)
            step = f"k = 2 * k + 1 + ({pointer}[{looked_at}[i * {nodes} + k]] > {thresholds}[i * {nodes} + k]);"
            leaf = f"t += {leaves}[i * {nodes + 1} + k - {nodes}];"
            loop = self._loop(count, "i", f"{{ k = 0; while (k < {nodes}) {step} {leaf} }}")
            return [f"t = {self.literal(0.0)};", loop, f"{at('0')} = t;"]
        places, columns = self.array(value.arrays[0]), given.width
        inner = self._loop(columns, "j", f"{{ u = {pointer}[j] - {places}[i * {columns} + j]; t += u * u; }}")
        return [self._loop(value.width, "i", f"{{ t = {self.literal(0.0)}; {inner} {at('i')} = t; }}")]

    def _loop(self, count: int, letter: str, statement: str) -> str:
        if count == 1:
            return re.sub(rf"\b{letter}\b", "0", statement)
        return f"for ({letter} = 0; {letter} < {count}; {letter}++) {statement}"

    def _pointer(self, value: Value) -> str:
        if value.op == "const":
            return self.array(value.arrays[0])
        return "x" if value.op == "input" else f"(w + {self.places[id(value)]})"

    def _formula(self, value: Value, index: str) -> str:
        """The number at an index: from its place, or computed where it stands."""
        if id(value) in self.inlined:
            return self._computed(value, index)
        start = self.places[id(value)]
        return f"w[{start}]" if value.width == 1 else f"w[{start} + {index}]"

    def _computed(self, value: Value, index: str) -> str:
        if value.op == "const":
            (numbers,) = value.arrays
            return self.literal(numbers[0]) if (numbers == numbers[0]).all() else f"{self.array(numbers)}[{index}]"
        if value.op == "input":
            return f"x[{index}]"
        if value.op == "take":
            (columns,) = value.arrays
            times = max(len(columns) // (int(columns.max()) + 1), 1)
            repeats = np.array_equal(columns, np.arange(len(columns)) // times)
            return self._formula(
                value.inputs[0], f"{index} / {times}" if repeats else f"{self.array(columns)}[{index}]"
            )
        parts = [self._formula(each, index) for each in value.inputs]
        self.helpers |= {value.op} & _HELPERS.keys()
        if value.op in _BINARY:
            return self._named(_BINARY[value.op].format(*parts))
        function = {"abs": "fabs", "sign": f"{self.name}_sign"}.get(value.op, value.op)
        return f"{function}{'' if value.op == 'sign' else self.suffix}({parts[0]})"

    def _count(self, value: Value) -> None:
        inputs = sum(each.width for each in value.inputs)
        if value.op in _CALLS:
            self.calls += value.width
        elif value.op == "affine":
            self.operations += 2 * value.arrays[0].size
        elif value.op == "solve":
            self.operations += value.width * (value.width + 1)
        elif value.op == "distances":
            self.operations += 3 * value.arrays[0].size
        elif value.op == "trees":
            self.operations += 3 * len(value.arrays[0]) * (value.arrays[0].shape[1] + 1).bit_length()
        elif value.op in ("sum", "least"):
            self.operations += inputs
        elif value.op in _ELEMENTWISE:
            self.operations += value.width

    def _named(self, text: str) -> str:
        return text.replace("NAME", self.name).replace("ONE", self.literal(1.0)).replace("ZERO", self.literal(0.0))

    def literal(self, number: float) -> str:
        """A number of the header's type."""
        if self.real == "float" and abs(number) > np.finfo(np.float32).max:
            raise DataError("A number of the model is too large for float:", "export it as double.")
        text = f"{float(number):.9g}" if self.real == "float" else repr(float(number))
        return (text if re.search("[.e]", text) else f"{text}.0") + self.suffix

    def array(self, numbers: npt.NDArray[Any]) -> str:
        """The name of a constant array with these numbers; equal arrays are one."""
        flat = np.ascontiguousarray(numbers).reshape(-1)
        if flat.dtype == np.int64:
            most = int(flat.max())
            kind, size = next((k, n) for limit, k, n in _WHOLE if most <= limit)
            texts = [str(each) for each in flat]
        else:
            with np.errstate(over="ignore"):  # what is too large is refused where it is printed
                flat = flat.astype(np.float32).astype(np.float64) if self.real == "float" else flat
            kind, size = f"{self.name}_real", self.size
            texts = [self.literal(each) for each in flat]
        key = (flat.tobytes(), kind)
        if key not in self.arrays:
            self.constant_bytes += size * len(flat)
            lines = [", ".join(texts[start : start + _PER_LINE]) for start in range(0, len(texts), _PER_LINE)]
            name = f"{self.name}_{len(self.arrays)}"
            inner = ",\n    ".join(lines)
            self.arrays[key] = (name, f"static const {kind} {name}[{len(flat)}] = {{\n    {inner}\n}};\n\n")
        return self.arrays[key][0]

    def constants(self) -> str:
        """All constant arrays, and the functions that formulas call."""
        helpers = [self._named(text) + "\n" for name, text in _HELPERS.items() if name in self.helpers]
        return "".join([*(text for _, text in self.arrays.values()), *helpers])
