"""``export_c``: a model as one C99 header, if need be with fewer features so that it fits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from .. import __version__
from ..arguments import check_arguments
from ..atomic import complete_or_absent
from ..errors import DataError
from ..lite import LiteModel
from ..lite.gp import GP, Sums
from ..lite.model import predict_fit
from ..lite.modules import Block, cholesky
from ..lite.program import Array, Value, affine, beside, constant, evaluate, solve_lower, squared_distances, take
from ..lite.tables import Table
from ..memory.plan import parse_bytes
from .c_header import CHeader, print_header
from .formulas import Exportable, check_columns, described, predicted

Columns = npt.NDArray[np.int64]
_MADE_ROWS = 256
# In standard deviations; where numbers of 32 bits are worse, they are refused.
_MOST_ROUNDING = 0.02
# A kernel value that others determine but for this share of its variance adds nothing.
_LEAST_SHARE = 1e-6


class CExport(NamedTuple):
    """The costs of a header, and what fewer features lost.

    Attributes:
        constant_bytes: Of all constant arrays, which go into read-only memory; code is not counted.
        stack_bytes: Of the numbers that one prediction works with.
        operations: Additions, multiplications, divisions and comparisons of one prediction.
        calls: Calls of ``math.h`` in one prediction.
        features: In the header.
        features_before: In the model.
        lost: Nats per row: of the density of given rows (NLPD), or else of the evidence of the rows seen.
        lost_of: ``"NLPD"``, ``"evidence"``, or None where nothing was left out.
        rounding: The largest error of mean and standard deviation by the header's type, in standard deviations: on
            given rows, or else on made ones that are spread like those of the fit.
    """

    constant_bytes: int
    stack_bytes: int
    operations: int
    calls: int
    features: int
    features_before: int
    lost: float
    lost_of: str | None
    rounding: float


@check_arguments
def export_c(
    model: Exportable,
    path: str | os.PathLike[str],
    *,
    name: str = "model",
    real: str = "float",
    max_bytes: int | str | None = None,
    rows: Table | ArrayLike | None = None,
    targets: ArrayLike | None = None,
    overwrite: bool = True,
) -> CExport:
    """Write a model as one C99 header without allocation: mean and standard deviations (epistemic, noise, all).

    Of a target on another scale there are mean and standard deviation alone.

    Args:
        model: A model file, a fitted ``GPRegressor`` or ``TableRegressor``, a ``ScaledGP`` or a ``FittedGP``.
        path: The header.
        name: What its names begin with.
        real: ``"float"`` or ``"double"``: the type of all numbers.
        max_bytes: The most bytes of constant arrays, such as ``"32kB"``. Features are left out until they fit, those
            first that the evidence misses least; the posterior is the exact one of the features that stay. Their prior
            variance goes with them, so that error bars far from all rows get narrower.
        rows: Rows on which rounding and, with ``targets``, the loss of leaving features out are measured; without them
            it is the loss of evidence.
        targets: Of these rows.
        overwrite: Whether to replace a file that is there.

    Raises:
        DataError: If the model takes text, dates or gaps, or is a mixture on another scale of the target, or nothing
            fits, or numbers of 32 bits are not enough.
    """
    if targets is not None and rows is None:
        raise DataError("targets are those of rows, which are not given:", "give both.")
    whole = described(model)
    check_columns(whole, "a C header")
    if whole.scale.name != "identity" and whole.fits[0].distribution == "mixture":
        raise DataError(
            f"The target is modelled on the scale {whole.scale.name!r}, on which a header has no means of mixtures "
            "(small tables, errors of two shapes):",
            "fit with target_scale='identity', or export an ONNX graph, or predict with finitegp-lite.",
        )
    printed, kept = _print(whole, name, real), whole
    if max_bytes is not None and printed.constant_bytes > (limit := parse_bytes(max_bytes)):
        kept = compressed(whole, lambda candidate: _print(candidate, name, real).constant_bytes, limit)
        printed = _print(kept, name, real)
    rounding = _rounding(kept, rows, real)
    if rounding > _MOST_ROUNDING:
        raise DataError(
            f"In float, predictions would be off by up to {rounding:.2g} standard deviations, because kernels on "
            "landmarks subtract nearly equal numbers:",
            "use real='double'.",
            code="needs_double",
        )
    lost, lost_of = 0.0, None
    if kept is not whole:
        if rows is not None and targets is not None:
            lost, lost_of = _nlpd(kept, rows, targets) - _nlpd(whole, rows, targets), "NLPD"
        else:
            pairs = zip(whole.fits, kept.fits, strict=True)
            lost = sum((a.gps[0].evidence - b.gps[0].evidence) / a.gps[0].sums.rows for a, b in pairs)
            lost_of = "evidence"
    with complete_or_absent(path, overwrite=overwrite) as temporary:
        temporary.write_text(printed.text, encoding="ascii")
    counts = [sum(len(gp.sums.gram) for fit in each.fits for gp in fit.gps) for each in (kept, whole)]
    return CExport(*printed[1:], counts[0], counts[1], lost, lost_of, rounding)


def _print(model: LiteModel, name: str, real: str) -> CHeader:
    columns = check_columns(model, "a C header")
    target = (model.header.get("table") or {}).get("target")
    about = [
        f"A Gaussian-process regression of finitegp {__version__}, {model.rows:.15g} rows"
        + (f", target {target!r}." if target else "."),
        "Inputs are finite numbers in the units of the table that the model was fitted to.",
    ]
    return print_header(predicted(model), name=name, columns=columns, about=about, real=real)


def _rounding(model: LiteModel, rows: Table | ArrayLike | None, real: str) -> float:
    if real == "double":
        return 0.0
    if rows is None:
        fit = model.fits[0]
        mean, scale = (fit.arrays[f"inputs_scaler.{name}"][: fit.columns] for name in ("mean", "scale"))
        made = np.random.default_rng(0).normal(size=(_MADE_ROWS, fit.columns))
        inputs = mean + np.where(np.isfinite(scale), scale, 0.0) * made
    else:
        inputs, _ = model.inputs(rows)
    worst = 0.0
    for formulas in predicted(model):
        exact = evaluate(formulas, inputs)
        rounded = evaluate(formulas, inputs.astype(np.float32), np.float32)
        errors = [np.abs(rounded[name] - exact[name]) / exact["std"] for name in ("mean", "std")]
        worst = max(worst, *(float(np.max(each)) for each in errors))
    return worst


def _nlpd(model: LiteModel, rows: Table | ArrayLike, targets: ArrayLike) -> float:
    inputs, _ = model.inputs(rows)
    values = np.asarray(targets, dtype=np.float64)
    if values.shape not in ((len(inputs),), (len(inputs), 1)):
        raise DataError(f"targets must be one number for each of {len(inputs)} rows, but have shape {values.shape}.")
    values = values.reshape(-1, 1)
    scaled = model.scale.forward(values)  # the derivative of the scale is the same whatever the features
    found = [predict_fit(fit, inputs, new=True) for fit in model.fits]  # formulas do not know which rows came before
    densities = [each.mixture.log_density(scaled[:, k]) for k, each in enumerate(found)]
    return -float(np.mean(np.sum(densities, axis=0)))


@dataclass(frozen=True, eq=False)
class NarrowGP(GP):
    """A GP on some of its features; its sums are theirs.

    Attributes:
        chosen: For each block of features, the columns that stay.
    """

    chosen: tuple[Columns, ...] = ()

    def parts(self, x: Value) -> tuple[list[Block], Value | None]:
        """The blocks that stay, with the noise as it was."""
        blocks, log_scale = super().parts(x)
        kept = []
        for block, columns in zip(blocks, self.chosen, strict=True):
            if len(columns):
                kept.append(Block(narrowed(block.raw, columns), _root_of(block, columns), block.variance))
            elif block.variance:  # all of this kernel is unknown
                raise DataError("A kernel on landmarks cannot lose all of its features.")
        return kept, log_scale


def compressed(model: LiteModel, bytes_of: Callable[[LiteModel], int], limit: int) -> LiteModel:
    """The model with as many features as fit into a number of bytes.

    Features are added one by one, each time the one that raises the evidence of the rows seen most: row sums give the
    gain of each in closed form. Whole blocks (networks) are tried away too, because a network costs its inner layers
    however few of its features are used; the choice with the highest evidence is taken.

    Args:
        model: Of one target and one GP.
        bytes_of: What an export of a model takes.
        limit: The most it may take.
    """
    if len(model.fits) > 1 or len(model.fits[0].gps) > 1 or model.fits[0].spread is not None:
        raise DataError(
            "Features can be left out of a model with one target and one GP, but this one mixes several or has several "
            "targets: export it without a limit of bytes, or fit a given feature map, such as feature_map='fourier'."
        )
    # Without trees, which take hundreds of kilobytes; the GP predicts by itself.
    fit = replace(model.fits[0], header={k: each for k, each in model.fits[0].header.items() if k != "trees"})
    whole = fit.gps[0]
    blocks, _ = whole.parts(Value("input", len(fit.arrays["inputs_scaler.scale"])))
    widths = [block.raw.width for block in blocks]
    owner = np.repeat(np.arange(len(blocks)), widths)
    raw, prior = _raw_sums(whole, blocks)
    best: LiteModel | None = None
    smallest: int | None = None
    most = int(math.sqrt(limit / 2)) + 1  # of m features the triangle alone has at least 2 m^2 bytes
    for allowed in _groups(len(blocks)):
        order = _greedy(raw, prior, whole.noise, np.isin(owner, allowed), most)

        def first(count: int, order: Columns = order) -> LiteModel:
            gp = _narrow(whole, blocks, raw, np.sort(order[:count]))
            return replace(model, fits=(replace(fit, gps=(gp,)),))

        needed = [each for each, block in enumerate(blocks) if block.variance]
        fewest = max((int(np.argmax(owner[order] == each)) + 1 for each in needed if each in owner[order]), default=1)
        if not set(needed) <= set(owner[order].tolist()):
            continue
        low, high = fewest - 1, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            size = bytes_of(first(middle))
            smallest = size if middle == fewest and (smallest is None or size < smallest) else smallest
            low, high = (middle, high) if size <= limit else (low, middle - 1)
        if low >= fewest:
            found = first(low)
            if best is None or found.fits[0].gps[0].evidence > best.fits[0].gps[0].evidence:
                best = found
    if best is None:
        raise DataError(
            f"Nothing fits into {limit} bytes: with the fewest features it takes {smallest} for noise networks, inner "
            "layers and the variance outside of what was seen. Allow more, or fit a smaller feature map or constant "
            "noise (noise='constant')."
        )
    return best


def _groups(count: int) -> list[list[int]]:
    """Which blocks may be used: all; the last, which holds no network; the last and one other."""
    groups = [list(range(count))]
    if count > 1:
        groups += [[count - 1], *([each, count - 1] for each in range(count - 1))]
    return groups


def _raw_sums(gp: GP, blocks: Sequence[Block]) -> tuple[Sums, Array]:
    """Sums of raw columns, and the precision of their weights' prior: a kernel's covariance, or one."""
    size = len(gp.sums.gram)
    change = np.eye(size)
    start = 0
    for block in blocks:
        stop = start + block.raw.width
        if block.root is not None:
            change[start:stop, start:stop] = block.root
        start = stop
    gram = change @ gp.sums.gram @ change.T
    return gp.sums._replace(gram=gram, projected=change @ gp.sums.projected), change @ change.T


def _greedy(raw: Sums, prior: Array, noise: float, allowed: npt.NDArray[np.bool_], most: int) -> Columns:
    r"""At most a given number of columns, in the order of the evidence that they add to those before.

    Also those that add none: each feature that goes takes away uncertainty where no rows were.

    With ``f`` and ``p`` what is left of the diagonals of ``F = Z'Z + s P`` and of ``P`` given the columns chosen, and
    ``c`` of the products with the target, column j adds :math:`c_j^2 / (2 s f_j) - \tfrac12 \log(f_j / (s p_j))`.
    """
    regular = raw.gram + noise * prior
    left, left_prior, products = np.diagonal(regular).copy(), np.diagonal(prior).copy(), raw.projected[:, 0].copy()
    most = min(most, int(allowed.sum()))
    rows, prior_rows = np.empty((most, len(left))), np.empty((most, len(left)))
    order: list[int] = []
    open_ = allowed.copy()
    for step in range(most):
        open_ &= left_prior > _LEAST_SHARE * np.diagonal(prior)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = products**2 / (2.0 * noise * left) - 0.5 * np.log(left / (noise * left_prior))
        gain = np.where(open_, gain, -np.inf)
        best = int(np.argmax(gain))
        if not open_[best]:
            break
        order.append(best)
        open_[best] = False
        row = (regular[best] - rows[:step, best] @ rows[:step]) / np.sqrt(left[best])
        prior_row = (prior[best] - prior_rows[:step, best] @ prior_rows[:step]) / np.sqrt(left_prior[best])
        products -= products[best] / np.sqrt(left[best]) * row
        left, left_prior = left - row**2, left_prior - prior_row**2
        rows[step], prior_rows[step] = row, prior_row
    return np.array(order, dtype=np.int64)


def _narrow(gp: GP, blocks: Sequence[Block], raw: Sums, columns: Columns) -> NarrowGP:
    """The GP with the exact posterior on these raw columns."""
    chosen, start = [], 0
    change = np.eye(len(columns))
    for block in blocks:
        stop = start + block.raw.width
        mine = (columns >= start) & (columns < stop)
        chosen.append(columns[mine] - start)
        root = _root_of(block, chosen[-1]) if mine.any() else None
        if root is not None:
            change[np.ix_(mine, mine)] = solve_lower(root, np.eye(len(root)))
        start = stop
    gram = change @ raw.gram[np.ix_(columns, columns)] @ change.T
    sums = raw._replace(gram=0.5 * (gram + gram.T), projected=change @ raw.projected[columns])
    return NarrowGP(gp.header, gp.arrays, sums, gp.roots, tuple(chosen))


def _root_of(block: Block, columns: Columns) -> Array | None:
    """The factor of the covariance of some landmarks."""
    if block.root is None:
        return None
    rows = block.root[columns]
    return cholesky(rows @ rows.T)


def narrowed(value: Value, columns: Columns) -> Value:
    """Some columns of a value, without computing the others where its operations allow it."""
    if value.op == "const":
        return constant(value.arrays[0][columns])
    if value.op == "concat":
        parts, start = [], 0
        for each in value.inputs:
            mine = columns[(columns >= start) & (columns < start + each.width)] - start
            parts += [narrowed(each, mine)] if len(mine) else []
            start += each.width
        return beside(parts)
    if value.op == "affine" and len(value.arrays[0]) == 1:
        return affine(value.inputs[0], value.arrays[0][0][:, columns], value.arrays[1][columns])
    if value.op == "distances":
        return squared_distances(value.inputs[0], value.arrays[0][columns])
    if value.op in ("input", "take", "solve", "sum", "least", "affine"):
        return take(value, columns)
    inner = tuple(each if each.width == 1 else narrowed(each, columns) for each in value.inputs)
    return Value(value.op, len(columns), inner)
