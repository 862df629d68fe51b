"""``export_c``: a model as one C99 header, if need be with fewer features so that it fits."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .. import __version__
from ..arguments import check_arguments
from ..atomic import complete_or_absent
from ..errors import DataError
from ..lite import LiteModel
from ..lite.model import predict_fit
from ..lite.program import evaluate
from ..lite.tables import Table
from ..memory.plan import parse_bytes
from .c_header import CHeader, print_header
from .compression import compressed
from .formulas import Exportable, check_columns, described, predicted

_MADE_ROWS = 256
# In standard deviations; where numbers of 32 bits are worse, they are refused.
_MOST_ROUNDING = 0.02


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
