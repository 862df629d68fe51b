"""``learn``: from training rows to encoding, scale of the target, fitted regressor, and what each column does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..automatic.fit import fit_source
from ..automatic.misleading_rows import find_repeated_rows
from ..automatic.settings import EFFORTS
from ..data.scaling import check_magnitude
from ..distributed import ALONE, Ranks
from ..estimator.parameters import automatic_options, check_parameters, is_automatic
from ..estimator.progress import stage_progress, tell_expected
from ..estimator.regressor import GPRegressor, as_regressor
from ..memory.plan import Described, MemoryPlan
from ..scaled import ScaledGP
from .columns import NumberColumn
from .encoder import TableEncoder
from .reader import ON_DISK, ROWS_IN_MEMORY
from .settling import EncodingOptions
from .target_scale import ROWS_TO_CHOOSE_BY, TargetScale, choose_scale
from .training_rows import EncodedSource, TrainingRows, random_positions

Array = npt.NDArray[np.float64]
# Rows, and predictions in all, by which the effects of columns are measured.
_MOST_EFFECT_ROWS, _FEWEST_EFFECT_ROWS, _EFFECT_PREDICTIONS, _MOST_REPEATS = 2000, 64, 20_000, 8
# For exact kernels: the most categories, of all columns together, that become columns, and the fewest rows of each on
# average.
_MOST_ONE_HOT, _ROWS_OF_A_CATEGORY = 256, 3


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
    on_plan: Callable[[MemoryPlan[Described]], object] | None = None,
) -> Learned:
    """Fit the encoding, the scale and the regressor to training rows.

    Rows become one array, to which the regressor is fitted. Within a memory budget they are encoded whenever they are
    needed, unless they are few.

    Args:
        training: The rows.
        regressor: With its parameters; it is fitted, or another with the same parameters is.
        options: Of the encoding.
        target_scale: The name of a scale, or ``"auto"``.
        seed: Of samples of rows, and of a fit within a budget.
        ranks: The processes that share the passes of a fit within a budget.
        on_plan: Called with the plan of the memory before a fit within a budget.
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
        encoder = _with_magnitudes(training.encoder(options, scale))
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


def _with_magnitudes(encoder: TableEncoder) -> TableEncoder:
    """The encoder, if no column of numbers is too large or too small to compute with."""
    for column in encoder.columns:
        if isinstance(column, NumberColumn) and len(column.span) == 2:
            check_magnitude(*column.span, f"Column {column.name!r}")
    return encoder


def _fit_within_budget(
    training: TrainingRows,
    source: EncodedSource,
    regressor: GPRegressor,
    *,
    seed: int,
    ranks: Ranks,
    on_plan: Callable[[MemoryPlan[Described]], object] | None,
) -> GPRegressor:
    check_parameters(regressor)
    with stage_progress("fit", shown=bool(regressor.verbose) and ranks.is_first) as progress:
        found = fit_source(
            source,
            may_be_copies=training.read_weights is None,
            kept_bytes=training.kept_bytes + training.left_out.nbytes,
            on_plan=on_plan,
            on_expected=tell_expected if regressor.verbose and ranks.is_first else None,
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

    Args:
        fit: Predicts on the scale of the model.
        encoder: Made the inputs.
        inputs: Some training rows, encoded.
        seed: Of the other rows.
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
