"""What is learned from a table: encoding, scale of the target, regressor and effects of columns; and its file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits
from torch import nn

from ..automatic.fit import fit_source
from ..automatic.misleading_rows import find_repeated_rows
from ..automatic.settings import EFFORTS
from ..data.scaling import check_magnitude
from ..distributed import ALONE, Ranks
from ..errors import DataError, ModelFileError
from ..estimator.parameters import automatic_options, check_parameters, is_automatic
from ..estimator.progress import stage_progress, tell_expected
from ..estimator.regressor import GPRegressor, as_regressor
from ..memory.plan import Described, MemoryPlan
from ..persistence.container import TABLE_SUMMARY, check_kinds, read_container, write_container
from ..persistence.fits import decode_regressor, encode_regressor, plain_parameter
from ..scaled import ScaledGP
from ..stages import open_stages
from .columns import NumberColumn
from .encoder import TableEncoder
from .reader import ON_DISK, ROWS_IN_MEMORY
from .summaries import EncodingOptions
from .targets import TargetScale
from .text_values import DECIMALS, MAX_UNIT
from .training_rows import EncodedSource, TrainingRows, random_positions

Array = npt.NDArray[np.float64]
# Called with the plan of the memory before a fit within a budget.
OnPlan = Callable[[MemoryPlan[Described]], object] | None
# Rows, and predictions in all, by which the effects of columns are measured.
_MOST_EFFECT_ROWS, _FEWEST_EFFECT_ROWS, _EFFECT_PREDICTIONS, _MOST_REPEATS = 2000, 64, 20_000, 8
# For exact kernels: the most categories, of all columns together, that become columns, and the fewest rows of each on
# average.
_MOST_ONE_HOT, _ROWS_OF_A_CATEGORY = 256, 3


_FOLDS = 4
#: Rows that are enough to choose a scale by.
ROWS_TO_CHOOSE_BY = 2000
_FEWEST_ROWS, _LEAF = 12, 20
# Another scale than the target's own is taken if it is better by this number of standard errors, and of nats.
_CLEAR_ERRORS, _CLEAR_NATS = 2.0, 0.01


class Learned(NamedTuple):
    """The parts of a fit to a table.

    Attributes:
        regressor: Predicts the scaled target from encoded rows.
        encoder: Of the columns.
        scale: Of the target.
        densities: Mean log densities of left-out rows by scale, if the scale was chosen by them.
        effects: Total effects of the columns that are used, by name.
    """

    regressor: GPRegressor
    encoder: TableEncoder
    scale: TargetScale
    densities: dict[str, float]
    effects: dict[str, float]


def learn(
    training: TrainingRows,
    regressor: GPRegressor,
    options: EncodingOptions,
    target_scale: str,
    *,
    seed: int,
    ranks: Ranks = ALONE,
    on_plan: OnPlan = None,
) -> Learned:
    """Fit the encoding, the scale and the regressor to training rows.

    Rows become one array, to which the regressor is fitted. Within a memory budget they are encoded whenever they are
    needed, unless they are few; ``ranks`` are the processes that share the passes of such a fit.
    """
    with ranks.working():  # so that what is wrong on all ranks is reported by one
        exact = is_automatic(regressor) and regressor.keep_rows and not training.on_disk
        exact = exact and training.num_rows <= EFFORTS[regressor.effort].small_rows
        most_one_hot = _MOST_ONE_HOT if exact and options.max_one_hot is None else 0
        encoder, scale, densities = _encode(training, options, target_scale, seed, most_one_hot)
    source = EncodedSource(training, encoder, scale, chunk_size=ON_DISK["chunk_size"])
    if regressor.memory_budget is not None and training.table.num_rows > ROWS_IN_MEMORY:
        regressor = _fit_within_budget(training, source, regressor, seed=seed, ranks=ranks, on_plan=on_plan)
    else:
        regressor.fit(*source.arrays())
    if encoder.learns_effects:
        regressor.fits_ = [_recognised(fit, training, encoder, scale) for fit in regressor.fits_]
    regressor.verbose = False
    effects = {}
    if ranks.is_first:
        positions = random_positions(training.num_rows, _MOST_EFFECT_ROWS, seed)
        inputs = training.training_inputs(encoder, positions)
        effects = total_effects(regressor.fits_[0], encoder, inputs, seed=seed)
    return Learned(regressor, encoder, scale, densities, effects)


def _recognised(fit: ScaledGP, training: TrainingRows, encoder: TableEncoder, scale: TargetScale) -> ScaledGP:
    """The fit with rows that may come again as they will be encoded then, with mean targets over all folds."""
    repeated = None
    if fit.repeated is not None and not training.on_disk:
        rows, targets = training.all_rows()
        repeated = find_repeated_rows(encoder.transform(rows), scale.forward(targets), None)
    record = fit.record | {"repeated_rows": repeated and repeated.described()}
    return replace(fit, repeated=repeated, record=record)


def _encode(
    training: TrainingRows, options: EncodingOptions, target_scale: str, seed: int, most_one_hot: int
) -> tuple[TableEncoder, TargetScale, dict[str, float]]:
    typical = training.facts.typical

    def encode(scale: TargetScale) -> TableEncoder:
        # What the other columns explain is noise in a mean target of few rows. Exact kernels find the effects of
        # categories beside those of all other columns, each shrunk by its own rows.
        encoder = training.encoder(options, scale)
        for column in encoder.columns:
            if isinstance(column, NumberColumn) and len(column.span) == 2:
                check_magnitude(*column.span, f"Column {column.name!r}")
        return encoder.with_one_hot(training.num_rows // _ROWS_OF_A_CATEGORY, most_one_hot)

    if target_scale != "auto":
        scale = TargetScale.fitted(target_scale, typical)
        return encode(scale), scale, {}
    encoder = encode(TargetScale())
    positions = random_positions(training.num_rows, ROWS_TO_CHOOSE_BY, seed)
    targets = training.take(positions).targets
    inputs = training.training_inputs(encoder, positions)
    scale, densities = choose_scale(inputs, targets, typical=typical, seed=seed)
    if scale.name != "identity" and encoder.learns_effects:
        encoder = encode(scale)
    return encoder, scale, densities


def _fit_within_budget(
    training: TrainingRows, source: EncodedSource, regressor: GPRegressor, *, seed: int, ranks: Ranks, on_plan: OnPlan
) -> GPRegressor:
    check_parameters(regressor)
    shown = bool(regressor.verbose) and ranks.is_first
    with stage_progress("fit", shown=shown) as progress:
        found = fit_source(
            source,
            may_be_copies=training.read_weights is None,
            kept_bytes=training.kept_bytes + training.left_out.nbytes,
            on_plan=on_plan,
            on_expected=tell_expected if shown else None,
            progress=progress,
            ranks=ranks,
            **automatic_options(regressor, source.num_data, seed),
        )
    return as_regressor(found, **regressor.get_params(deep=False))


def total_effects(fit: ScaledGP, encoder: TableEncoder, inputs: Array, *, seed: int) -> dict[str, float]:
    """For each column that is used, the share of the variance of predicted means that it makes, alone or with others.

    These are Sobol's total effects by Jansen's estimator: half the mean squared change of the prediction when the
    column takes the value that it has in another row. They add up to more than one where columns act together, and to
    less than one each. Columns that go together share what they explain in a way that the data do not settle.
    ``inputs`` are some training rows, encoded.
    """
    places = encoder.places()
    rows = max(_FEWEST_EFFECT_ROWS, min(len(inputs), _EFFECT_PREDICTIONS // max(1, len(places))))
    inputs = inputs[:: max(1, -(-len(inputs) // rows))]
    repeats = min(_MOST_REPEATS, max(1, _EFFECT_PREDICTIONS // (len(inputs) * max(1, len(places)))))
    mean = fit.predict_mean(inputs).cpu().numpy()
    variance = float(mean.var())
    order = np.random.default_rng(seed).permutation(len(inputs))
    effects = {}
    for name, place in places.items():
        squares = 0.0
        for repeat in range(repeats):
            changed = inputs.copy()
            # Each row gets what another one has, in every repeat that of a different one.
            changed[order, place] = inputs[np.roll(order, 1 + repeat), place]
            squares += float(np.square(fit.predict_mean(changed).cpu().numpy() - mean).mean()) / repeats
        effects[name] = min(1.0, 0.5 * squares / variance) if variance > 0.0 else 0.0
    return effects


def choose_scale(
    inputs: Array, targets: Array, *, typical: Array | None = None, seed: int = 0
) -> tuple[TargetScale, dict[str, float]]:
    """The scale on which left-out rows of a stand-in model have the highest density, and the mean densities by scale.

    The stand-in is gradient-boosted trees, ridge regression or their average, whichever suits the scale best: an
    average alone hides that a target is a sum of columns. Errors are of Student's t or Gaussian, with a width and shape
    from left-out rows: cheap, and what matters is that errors are alike on all rows. Densities are those of the target
    itself. The target's own scale is kept unless another is clearly better.
    ``typical`` are targets that a scale has to suit, the smallest and largest of all among them; by default these.
    """
    typical = targets if typical is None else typical
    own = TargetScale.fitted("identity", typical)
    if len(targets) < _FEWEST_ROWS:
        return own, {}
    folds = np.random.default_rng(seed).permutation(len(targets)) % _FOLDS
    names = ["identity", "yeo-johnson"] + ["log"] * bool(typical.min() > 0.0)
    names += ["square root"] * bool(typical.min() >= 0.0)
    scales = {name: TargetScale.fitted(name, typical) for name in names}
    stages = open_stages("target scale", {"seed": seed}, inputs, targets, typical)

    def compute(missing: list[int]) -> Iterator[Array]:
        return (_left_out_density(inputs, targets, folds, scales[names[number]]) for number in missing)

    densities = dict(zip(names, stages.arrays(names, compute, [targets.shape] * len(names)), strict=True))
    means = {name: float(each.mean()) for name, each in densities.items()}
    best = max(means, key=lambda name: means[name])
    gain = densities[best] - densities["identity"]
    error = float(gain.std()) / math.sqrt(len(gain))
    clear = float(gain.mean()) > max(_CLEAR_ERRORS * error, _CLEAR_NATS)
    return (scales[best] if clear else own), means


def _left_out_density(inputs: Array, targets: Array, folds: npt.NDArray[np.int64], scale: TargetScale) -> Array:
    from scipy import stats
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    values = scale.forward(targets)
    unit = float(values.std()) or 1.0  # the ridge regression has priors for targets of order one
    values = (values - values.mean()) / unit
    standard = StandardScaler().fit_transform(inputs)
    by_trees, by_ridge = np.empty_like(values), np.empty_like(values)
    with threadpool_limits(1):  # on so few rows threads wait for each other longer than they work
        for fold in range(_FOLDS):
            out = folds == fold
            by_trees[out] = values[~out].mean()  # what trees come to that have too few rows for two leaves
            if (~out).sum() >= 2 * _LEAF:
                trees = HistGradientBoostingRegressor(
                    max_iter=60, max_leaf_nodes=15, min_samples_leaf=_LEAF, random_state=0
                )
                by_trees[out] = (
                    trees.set_params(early_stopping=False).fit(inputs[~out], values[~out]).predict(inputs[out])
                )
            by_ridge[out] = BayesianRidge().fit(standard[~out], values[~out]).predict(standard[out])
    found = [np.full(len(values), -np.inf)]
    for predicted in (by_trees, by_ridge, 0.5 * (by_trees + by_ridge)):
        errors = values - predicted
        for degrees in (4.0, 10.0, 1e6):
            width = _width(errors, degrees)
            found.append(stats.t.logpdf(errors / width, degrees) - math.log(width))
    densest = max(found, key=lambda each: float(each.mean()))
    return densest - math.log(unit) + scale.log_derivative(targets)


def _width(errors: Array, degrees: float) -> float:
    """The maximum-likelihood width of Student's t around zero, by its fixed-point equation."""
    square = float(np.mean(errors**2)) or 1e-300
    for _ in range(50):
        weights = (degrees + 1.0) / (degrees + errors**2 / square)
        square = float(np.mean(weights * errors**2)) or 1e-300
    return math.sqrt(square)


class StoredModel(NamedTuple):
    """The parts of a model in a file."""

    regressor: GPRegressor
    encoder: TableEncoder
    target: str | None
    summary: dict[str, Any]
    scale: TargetScale
    decimal: str
    unit: str
    parameters: dict[str, object]


def save_table_model(
    path: str | os.PathLike[str],
    regressor: GPRegressor,
    encoder: TableEncoder,
    description: Mapping[str, object],
    parameters: Mapping[str, object],
    *,
    overwrite: bool = True,
) -> None:
    """Write a regressor, the encoding of its table and a description in JSON into one file."""
    header, tensors = encode_regressor(regressor)
    plain = {name: plain_parameter(value) for name, value in description.items()}
    plain["parameters"] = {name: plain_parameter(value) for name, value in parameters.items()}
    header["table"] = {"encoder": encoder.to_dict(), **plain}
    write_container(path, {"kind": "table", **header}, tensors, overwrite=overwrite)


def load_table_model(path: Path, *, feature_map: nn.Module | None = None) -> StoredModel:
    """Read a file that :func:`save_table_model` or :meth:`GPRegressor.save` wrote, of this or an earlier version.

    Raises:
        ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
    """
    header, tensors = read_container(path)
    kind = header.get("kind")
    if kind == "statistics":
        raise ModelFileError(
            f"{path} holds the statistics of a site, not a model: finitegp merge (TableRegressor.merge) makes a model "
            "of them and the model that they were made for."
        )
    if kind not in ("table", "regressor"):
        raise ModelFileError(f"{path} holds a {str(kind)[:60]!r}, not a model that takes tables.")
    regressor = decode_regressor(GPRegressor, path, header, tensors, feature_map=feature_map)
    if len(regressor.fits_) > 1:
        raise ModelFileError(f"{path} holds a model of {len(regressor.fits_)} targets: use GPRegressor.load in Python.")
    if kind == "regressor":
        return StoredModel(regressor, _encoder_of_names(regressor, path), None, {}, TargetScale(), "", "", {})
    stored = header.get("table")
    if not isinstance(stored, Mapping) or not isinstance(stored.get("summary"), dict):
        raise ModelFileError(f"{path} cannot be used: its description of the table makes no sense.")
    target, parameters = stored.get("target"), stored.get("parameters", {})
    try:
        check_kinds("summary", stored["summary"], TABLE_SUMMARY)
        if target is not None and not isinstance(target, str):
            raise DataError("the name of its target is not text")
        encoder = TableEncoder.from_dict(stored.get("encoder"))
        scale = TargetScale.from_dict(stored.get("target_scale"))
        style = _style(stored.get("target_style"))
        if len(encoder.feature_names_out) != regressor.n_features_in_:
            raise DataError(
                f"its table gives {len(encoder.feature_names_out)} columns of numbers, but its regressor takes "
                f"{regressor.n_features_in_}"
            )
        if not isinstance(parameters, dict):
            raise DataError("its parameters make no sense")
    except DataError as error:
        raise ModelFileError(f"{path} cannot be used: {str(error).removesuffix('.')}.") from None
    return StoredModel(regressor, encoder, target, stored["summary"], scale, *style, parameters)


def _style(stored: object) -> tuple[str, str]:
    """How targets are written; in older files, which do not hold it, as programs write them."""
    if stored is None:
        return "", ""
    if (
        not isinstance(stored, Mapping)
        or set(stored) != {"decimal", "unit"}
        or stored["decimal"] not in ("", *DECIMALS)
        or not isinstance(stored["unit"], str)
        or len(stored["unit"]) > 2 * MAX_UNIT
    ):
        raise DataError("how its target is written makes no sense.")
    return stored["decimal"], stored["unit"]


def _encoder_of_names(regressor: GPRegressor, path: Path) -> TableEncoder:
    names = getattr(regressor, "feature_names_in_", None)
    if names is None:
        raise ModelFileError(
            f"{path} holds a regressor that was fitted to arrays without column names, so it cannot find its columns "
            "in a table: load it with GPRegressor.load in Python, or fit it to a data frame."
        )
    # From here on the encoder finds the columns, and the regressor gets arrays without names.
    del regressor.feature_names_in_
    return TableEncoder([NumberColumn(str(name), "number", "number", False, "as in Python", 0.0, ()) for name in names])
