"""Small tables: exact kernel GPs with priors, judged and calibrated by hyperparameters that were refitted in folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from ..data import ArraySource
from ..features import ConcatenatedFeatures, ConstantFeatures, LandmarkFeatures, LinearFeatures
from ..kernel_gp import (
    Array,
    KernelForm,
    KernelGP,
    KernelPosterior,
    KernelPrior,
    KernelRows,
    fit_from_several_starts,
    noise_of,
)
from ..model import FeatureGP, FittedGP
from ..predictive import StudentMixture, log_student
from ..scaled import Component, pooled
from ..spread import SpreadModel
from .aggregation import neighbour_means

Groups = npt.NDArray[np.intp]

LINEAR = "linear"
FORMS = {
    LINEAR: KernelForm(),
    "matern52": KernelForm("matern52"),
    "rbf per column": KernelForm("rbf", length_scale_per_column=True),
    "matern32 per column": KernelForm("matern32", length_scale_per_column=True),
}
# Logarithms of squared errors are nearly all noise: standardised, 0.9 of their variance where nothing is to be learned.
_SPREAD_FORM = KernelForm(
    "matern52",
    prior=KernelPrior(
        noise=(math.log(0.9), 0.3),
        linear=(math.log(0.05), 1.5),
        signal=(math.log(0.1), 1.0),
        intercept=0.5,
        scale_degrees=1000.0,
    ),
)
# Rows that outliers and the spread are learned from: more make them hardly better, and cost grows with the cube.
_LEARNING_ROWS = 600
_FEWEST_FOR_FOLDS = 5
# With at least this number of rows that hyperparameters were not learned from, these alone judge, without refits.
ENOUGH_JUDGES = 1000
_FEWEST_FOR_OUTLIERS = 8
_LEAST_WEIGHT = 0.01
# The row of prior, and half a row that speaks for the kernel.
_LEAST_ROWS = 1.5
_FEWEST_FOR_SPREAD = 40
_DEGREES = (2.2, 2.6, 3.2, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0)
# Half the 90 % width is believed to shrink by a tenth, and to grow by three tenths, without much evidence.
_NARROWER, _WIDER = 0.1, 0.3


@dataclass(frozen=True, eq=False)
class SmallTableFit:
    """A stack of kernel GPs on standardised rows.

    Attributes:
        components: The kernels that have weight, with their posteriors.
        rows: What they were conditioned on, in their units: outliers with little weight, copies counted once.
        spread: The model of the spread, or None.
        normal_scores: Of left-out rows, for conformal intervals.
        left_out_nlpd: The mean negative log density of these rows, in units of the standardised targets, or None.
        parameters: The hyperparameters of each kernel.
        target_shift: Of the standardised targets: not zero where gross outliers were found.
        target_unit: Of the standardised targets: not one where gross outliers were found.
        notes: What was recognised: copies, outliers.
    """

    components: tuple[Component, ...]
    rows: KernelRows
    spread: SpreadModel | None
    normal_scores: Array
    left_out_nlpd: float | None
    parameters: Mapping[str, Array]
    target_shift: float = 0.0
    target_unit: float = 1.0
    notes: dict[str, Any] = field(default_factory=dict)


def kernel_features(
    form: KernelForm, parameters: Array, inputs: Array, *, keep_rows: bool = True
) -> ConcatenatedFeatures:
    """The finite features of a kernel: intercept and linear trend as they are, the stationary part on landmarks.

    Columns that do not vary have no part in the kernel; their landmarks are equal, so that any length scale does.

    Args:
        form: Which kernel.
        parameters: Its parameters.
        inputs: ``(rows, columns)``.
        keep_rows: Whether the rows are the landmarks, which makes the features exact; otherwise means of neighbours.
    """
    varying = np.ptp(inputs, axis=0) > 0.0
    count, columns = max(int(varying.sum()), 1), inputs.shape[1]
    maps: list[nn.Module] = [
        ConstantFeatures(form.prior.intercept),
        LinearFeatures(columns, bias=False, magnitude=math.exp(parameters[1]) / count),
    ]
    if form.correlation is not None:
        length_scales = np.ones(columns)
        length_scales[varying] = np.exp(parameters[3:])
        landmarks = inputs if keep_rows else neighbour_means(inputs, length_scales)
        maps.append(
            LandmarkFeatures.at(
                landmarks, kernel=form.correlation, length_scales=length_scales, variance=math.exp(parameters[2])
            )
        )
    return ConcatenatedFeatures(*maps)


def condition_kernel(
    form: KernelForm, parameters: Array, inputs: Array, rows: KernelRows, *, keep_rows: bool = True
) -> FittedGP:
    """The posterior of a kernel as one of finite features; with the rows as landmarks it is the same to rounding.

    Args:
        form: Which kernel.
        parameters: Its parameters.
        inputs: ``(rows, columns)`` with the columns that do not vary.
        rows: The same rows without these columns.
        keep_rows: Whether the rows are the landmarks; otherwise means of neighbours are, and the posterior is that of
            a coarser kernel, with a noise of its own, and with what is lost as a variance of its own.
    """
    features = kernel_features(form, parameters, inputs, keep_rows=keep_rows)
    model = FeatureGP(features, noise_variance=noise_of(parameters))
    weights = None if bool((rows.noise_scales == 1.0).all()) else 1.0 / rows.noise_scales
    counts = None if bool((rows.counts == 1.0).all()) else rows.counts
    # What coarser features do not see of the rows is noise to them: with the kernel's own noise they would overfit.
    return model.condition(ArraySource(inputs, rows.targets, weights, counts=counts), optimize_noise=not keep_rows)


def _landmark_rows(rows: KernelRows) -> tuple[torch.Tensor, torch.Tensor]:
    """What rows that are landmarks weigh in the row sums, and their targets times that."""
    weights = rows.counts / rows.noise_scales
    return torch.from_numpy(weights), torch.from_numpy((weights * rows.targets)[:, None])


def fit_small_table(
    inputs: Array,
    targets: Array,
    counts: Array | None = None,
    *,
    may_be_copies: bool = True,
    input_noise: bool = True,
    keep_rows: bool = True,
    learning_rows: int = _LEARNING_ROWS,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[str], None] | None = None,
) -> SmallTableFit:
    """Fit a stack of kernel GPs to standardised rows.

    Args:
        inputs: ``(rows, columns)``, standardised.
        targets: ``(rows,)``, standardised.
        counts: How many equal rows each row stands for.
        may_be_copies: Whether rows that stand for several may be copies, which say no more than one row.
        input_noise: Whether the spread of errors may depend on the row.
        keep_rows: Whether the result may hold the rows. If not, it is the heaviest kernel that is more than a line, on
            landmarks that are means of at least three rows each, without a model of the spread.
        learning_rows: Rows that hyperparameters are learned from.
        seed: Determines folds and subsets.
        threads: Kernels that are fitted at once; makes no difference to the result.
        progress: Called with the name of each finished part.
    """
    # Threads of BLAS wait by spinning: on small matrices they cost many times what they gain.
    with threadpool_limits(1, user_api="blas"):
        varying = np.ptp(inputs, axis=0) > 0.0
        if not varying.any():
            varying[:1] = True
        rows = KernelRows.of(inputs[:, varying], targets, counts=counts)
        notes: dict[str, Any] = {}
        groups = equal_rows(rows.inputs)
        if may_be_copies and are_copies(rows, groups):
            notes["copies"] = round(rows.total) - len(targets)
            rows = replace(rows, counts=np.ones(len(targets)))
        shift, unit = 0.0, 1.0
        if len(targets) >= _FEWEST_FOR_OUTLIERS:
            shift, unit, noise_scales = gross_outliers(rows, seed)
            notes |= {"outliers": int((noise_scales > 1.0).sum())} if unit != 1.0 else {}
            rows = replace(rows, targets=(rows.targets - shift) / unit, noise_scales=noise_scales)
        with ThreadPoolExecutor(threads) as pool:
            stack = _Stack(inputs, rows, groups, learning_rows, seed, pool, progress)
            parameters = stack.learn()
            components, spread, left_out = stack.fit(parameters, input_noise=input_noise, keep_rows=keep_rows)
    scores, nlpd = np.zeros(0), None
    if left_out is not None:
        judges, distribution = left_out
        scores = distribution.normal_scores(judges.targets)
        density = np.average(distribution.log_density(judges.targets), weights=judges.counts)
        nlpd = float(math.log(unit) - density)
    return SmallTableFit(components, rows, spread, scores, nlpd, parameters, shift, unit, notes)


@dataclass(frozen=True, eq=False)
class _Stack:
    """Kernels on the same rows, and what is known of them."""

    inputs: Array
    rows: KernelRows
    groups: Groups
    learning_rows: int
    seed: int
    pool: ThreadPoolExecutor
    progress: Callable[[str], None] | None

    @property
    def learning(self) -> Groups:
        """Numbers of the rows that hyperparameters are learned from."""
        return np.sort(np.random.default_rng(self.seed).permutation(len(self.inputs))[: self.learning_rows])

    def learn(self) -> dict[str, Array]:
        """The hyperparameters of each kernel."""
        num_rows, num_columns = self.rows.inputs.shape
        names = [name for name in FORMS if num_rows >= _FEWEST_FOR_FOLDS or "column" not in name]
        starts = (1.0, 0.3, 0.1, 3.0) + ((0.03, 0.01) if num_columns <= 2 else ())
        rows = self.rows.take(self.learning)

        def learn(name: str) -> Array:
            found = fit_from_several_starts(FORMS[name], rows, starts, seed=self.seed)
            if self.progress is not None:
                self.progress(name)
            return found

        return dict(zip(names, self.pool.map(learn, names), strict=True))

    def fit(
        self, parameters: Mapping[str, Array], *, input_noise: bool, keep_rows: bool
    ) -> tuple[tuple[Component, ...], SpreadModel | None, tuple[KernelRows, StudentMixture] | None]:
        """Components with weights, spread, and left-out rows with their predictive distributions."""
        most = FORMS[LINEAR].prior.scale_degrees + self.rows.total
        folds = min(10 if len(self.inputs) <= 150 else 5, int(self.groups.max()) + 1)
        if len(self.inputs) < _FEWEST_FOR_FOLDS or folds < 3:
            equal = dict.fromkeys(parameters, 1.0 / len(parameters))
            if not keep_rows:
                return (self._without_rows(most_flexible(equal), parameters, 1.0, most),), None, None
            chosen = [self._condition(name, parameters, 1.0, most, weight) for name, weight in equal.items()]
            return tuple(chosen), None, None
        judges = np.delete(np.arange(len(self.inputs)), self.learning)
        if len(judges) >= ENOUGH_JUDGES:
            means, scales = self._leave_folds_out(parameters, folds, judges)
        else:
            judges = np.arange(len(self.inputs))
            means, scales = self._refit_in_folds(parameters, folds)
        rows = self.rows.take(judges)
        shapes = [
            choose_shape((rows.targets - mean) / scale, most, rows.counts)
            for mean, scale in zip(means, scales, strict=True)
        ]
        factors, freedoms = np.array(shapes).T
        loose = StudentMixture(np.ones(len(means)), means, scales * factors[:, None], freedoms[:, None])
        weights = stacking_weights(loose.component_log_densities(rows.targets), rows.counts)
        # What hardly counts is not worth its time and memory, and one row of prior is no reason to believe in a kernel:
        # where others are nearly without error it would move the mean by more than their error.
        least = max(_LEAST_WEIGHT, _LEAST_ROWS / (rows.total + len(means)))
        kept = weights >= min(least, weights.max())
        weights = weights[kept] / weights[kept].sum()
        stacked = StudentMixture(weights, means[kept], loose.scales[kept], freedoms[kept][:, None])
        found = dict(zip(np.array(list(parameters))[kept].tolist(), range(int(kept.sum())), strict=True))
        factors, freedoms = factors[kept], freedoms[kept]
        if not keep_rows:
            name = most_flexible(dict(zip(found, weights.tolist(), strict=True)))
            index = [found[name]]
            alone = StudentMixture(
                np.ones(1), *(part[index] for part in (stacked.means, stacked.scales, freedoms[:, None]))
            )
            lone = self._without_rows(name, parameters, factors[index].item(), freedoms[index].item())
            return (lone,), None, (rows, alone)
        chosen = list(
            self.pool.map(
                lambda name, *values: self._condition(name, parameters, *values),
                found,
                factors.tolist(),
                freedoms.tolist(),
                weights.tolist(),
            )
        )
        spread, final = None, stacked
        if input_noise and len(judges) >= _FEWEST_FOR_SPREAD:
            spread, final = fit_spread(self.inputs[judges], rows, self.groups[judges], stacked, most, self.seed)
        return tuple(chosen), spread, (rows, final)

    def _condition(
        self, name: str, parameters: Mapping[str, Array], factor: float, degrees: float, weight: float
    ) -> Component:
        """A kernel given all rows."""
        form = FORMS[name]
        fitted = condition_kernel(form, parameters[name], self.inputs, self.rows)
        known = (None, None) if form.correlation is None else _landmark_rows(self.rows)
        return Component(fitted, name, weight, factor, degrees, form.prior.scale_degrees, *known)

    def _leave_folds_out(self, parameters: Mapping[str, Array], folds: int, judges: Groups) -> tuple[Array, Array]:
        """``(kernels, rows)`` means and scales of rows that no hyperparameter has seen, each given the other folds.

        Not given all other rows: where there is nothing but noise, the mean of all others tells what the row itself is.
        """
        assigned = self._folds(folds)

        def leave_out(name: str) -> tuple[Array, Array]:
            mean, variance = KernelPosterior(FORMS[name], parameters[name], self.rows).leave_groups_out(assigned)
            return mean[judges], np.sqrt(variance[judges])

        means, scales = zip(*self.pool.map(leave_out, parameters), strict=True)
        return np.array(means), np.array(scales)

    def _folds(self, count: int) -> Groups:
        """The fold of each row."""
        random = np.random.default_rng(self.seed)
        random.permutation(len(self.inputs))  # what the rows to learn from were drawn by
        return assign_folds(self.groups, count, random)

    def _refit_in_folds(self, parameters: Mapping[str, Array], folds: int) -> tuple[Array, Array]:
        """``(kernels, rows)`` means and scales of rows that neither hyperparameters nor posterior have seen."""
        rows, names = self.rows, list(parameters)
        assigned = self._folds(folds)
        jobs = [(name, fold) for fold in range(folds) for name in names]

        def leave_out(job: tuple[str, int]) -> tuple[Array, Array]:
            name, fold = job
            return _leave_out(rows, assigned == fold, FORMS[name], parameters[name], self.learning_rows, self.seed)

        found = self.pool.map(leave_out, jobs)
        means, scales = np.zeros((2, len(names), len(rows.targets)))
        for (name, fold), (mean, scale) in zip(jobs, found, strict=True):
            index = names.index(name)
            means[index, assigned == fold], scales[index, assigned == fold] = mean, scale
        return means, scales

    def _without_rows(self, name: str, parameters: Mapping[str, Array], factor: float, degrees: float) -> Component:
        """A kernel alone, on landmarks that are no rows."""
        form = FORMS[name]
        fitted = condition_kernel(form, parameters[name], self.inputs, self.rows, keep_rows=False)
        return Component(fitted, name, 1.0, factor, degrees, form.prior.scale_degrees)


def most_flexible(weights: Mapping[str, float]) -> str:
    """The heaviest kernel that is more than a line; the line if there is no other."""
    return max(weights, key=lambda name: weights[name] if FORMS[name].correlation else weights[name] - 1.0)


def _leave_out(
    rows: KernelRows, out: npt.NDArray[np.bool_], form: KernelForm, parameters: Array, learning_rows: int, seed: int
) -> tuple[Array, Array]:
    """Means and scales of rows that neither hyperparameters nor posterior have seen."""
    rest = rows.take(~out)
    count = len(rest.targets)
    learning = np.sort(np.random.default_rng(seed + 1).permutation(count)[:learning_rows])
    refitted = KernelGP(form, rest.take(learning)).fit(parameters, steps=25 if count <= 400 else 12)[0]
    posterior = KernelPosterior(form, refitted, rest)
    mean, variance = posterior.predict(rows.inputs[out])
    noise = posterior.scale * posterior.noise * rows.noise_scales[out]
    return mean, np.sqrt(variance + noise)


def equal_rows(inputs: Array) -> Groups:
    """The number of the group of equal rows that each row belongs to."""
    return np.asarray(np.unique(inputs, axis=0, return_inverse=True)[1]).ravel()


def are_copies(rows: KernelRows, groups: Groups) -> bool:
    """Whether equal inputs are copies of rows rather than repeated measurements.

    Copies agree in their targets nearly always, and far more often than two targets agree by chance.
    """
    sizes = np.bincount(groups, rows.counts)
    repeated = sizes > 1.0
    if not repeated.any():
        return False
    targets = rows.targets
    centres = np.bincount(groups, targets * rows.counts) / sizes
    same = np.abs(targets - centres[groups]) <= 1e-9 * (np.abs(targets) + targets.std())
    agree = np.bincount(groups, ~same)[repeated] == 0
    shares = np.bincount(np.unique(targets, return_inverse=True)[1].ravel(), rows.counts) / rows.total
    chance = float(np.square(shares).sum())
    return bool(agree.mean() > 0.95 and int(repeated.sum()) * math.log(chance) < math.log(1e-6))


def gross_outliers(rows: KernelRows, seed: int) -> tuple[float, float, Array]:
    """Shift and unit of the targets, and factors on the noise of rows that no smooth function explains."""
    targets = rows.targets
    median = float(np.median(targets))
    distances = np.abs(targets - median)
    unit = 1.4826 * float(np.median(distances))
    nothing = 0.0, 1.0, rows.noise_scales
    if unit <= 0.0 or distances.max() <= 8.0 * unit or np.mean(distances > 8.0 * unit) >= 0.05:
        return nothing
    standardized = (targets - median) / unit
    scales = np.where(np.abs(standardized) < 6.0, 1.0, np.maximum(1.0, np.square(standardized) / 16.0))
    form = FORMS["matern52"]
    learning = np.arange(len(targets))
    if len(learning) > _LEARNING_ROWS:
        # All that stand out, and some of the others.
        order = np.argsort(-np.abs(standardized))
        rest = np.random.default_rng(seed).permutation(order[_LEARNING_ROWS // 4 :])
        learning = np.sort(np.concatenate([order[: _LEARNING_ROWS // 4], rest[: _LEARNING_ROWS * 3 // 4]]))
    for _ in range(3):
        part = KernelRows(rows.inputs, standardized, scales, rows.counts)
        parameters = fit_from_several_starts(form, part.take(learning), (1.0, 0.3), steps=30, seed=seed)
        posterior = KernelPosterior(form, parameters, part)
        mean, variance = posterior.leave_one_out()
        # Of one trusted observation: a row with a count is the mean of that many.
        trusted = np.maximum(variance - posterior.scale * posterior.noise * (scales / rows.counts - 1.0), 1e-12)
        found = (4.0 + np.square(standardized - mean) / trusted) / 5.0
        scales = np.where(found > 5.0, found, 1.0)
    return (median, unit, scales) if bool((scales > 1.0).any()) else nothing


def assign_folds(groups: Groups, folds: int, random: np.random.Generator) -> Groups:
    """The fold of each row; equal rows share one."""
    order = random.permutation(int(groups.max()) + 1)
    fold_of_group = np.empty(len(order), dtype=np.intp)
    fold_of_group[order] = np.arange(len(order)) % folds
    return fold_of_group[groups]


def choose_shape(standardized: Array, most_degrees: float, weights: Array) -> tuple[float, float]:
    """The factor on the scales and the degrees of freedom with the best penalised density of out-of-fold errors.

    The penalty is on the logarithm of the 90 % half-width relative to the model's own: narrowing is believed less
    readily than widening.
    """
    from scipy.special import stdtrit

    log_factors = np.linspace(-1.5, 2.5, 161)
    own = math.log(stdtrit(most_degrees, 0.95))
    best = (-math.inf, 1.0, most_degrees)
    for freedom in (*(value for value in _DEGREES if value <= most_degrees), most_degrees):
        widths = log_factors + math.log(stdtrit(freedom, 0.95)) - own
        density = weights @ log_student(standardized[:, None] / np.exp(log_factors), np.array(freedom))
        penalty = 0.5 * np.square(widths / np.where(widths < 0.0, _NARROWER, _WIDER)) + 3.0 / freedom
        value = density - weights.sum() * log_factors - penalty
        index = int(value.argmax())
        if value[index] > best[0]:
            best = (float(value[index]), math.exp(log_factors[index]), freedom)
    return best[1], best[2]


def stacking_weights(log_densities: Array, row_weights: Array, *, rounds: int = 200) -> Array:
    """The weights of the mixture with the best density, by expectation-maximisation with one row of prior for each."""
    count, total = len(log_densities), float(row_weights.sum())
    weights = np.full(count, 1.0 / count)
    for _ in range(rounds):
        shares = np.log(weights)[:, None] + log_densities
        shares = np.exp(shares - shares.max(axis=0))
        shares /= shares.sum(axis=0)
        weights = (shares @ row_weights + 1.0) / (total + count)
    return weights


def fit_spread(
    inputs: Array, rows: KernelRows, groups: Groups, stacked: StudentMixture, most_degrees: float, seed: int
) -> tuple[SpreadModel | None, StudentMixture]:
    """A model of the spread, if out-of-fold errors gain by it, and the out-of-fold mixture with it."""
    mean, variance = pooled(stacked)
    squares = np.square(rows.targets - mean) / variance
    # The mean of the logarithm of a squared standard normal is -1.27.
    logs = np.clip(np.log(np.maximum(squares, 1e-6)) + 1.2704, -6.0, 6.0)
    extra = np.column_stack([np.log(variance), mean])
    centres, units = extra.mean(0), extra.std(0) + 1e-12
    shift, unit = float(logs.mean()), float(logs.std()) + 1e-12
    spread_rows = KernelRows.of(np.column_stack([rows.inputs, (extra - centres) / units]), (logs - shift) / unit)
    form = _SPREAD_FORM
    learning = np.sort(np.random.default_rng(seed + 2).permutation(len(logs))[:_LEARNING_ROWS])
    parameters = fit_from_several_starts(form, spread_rows.take(learning), (1.0, 0.4), steps=25, seed=seed)
    posterior = KernelPosterior(form, parameters, spread_rows)
    left_out = np.clip(posterior.leave_groups_out(groups)[0] * unit + shift, -5.0, 5.0)
    limits = tuple(float(value) for value in np.quantile(left_out, [0.01, 0.99]))
    best: tuple[float, float, float, float] | None = None
    for strength in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25):
        scales = np.sqrt(variance) * np.exp(0.5 * strength * left_out)
        factor, freedom = choose_shape((rows.targets - mean) / scales, most_degrees, rows.counts)
        density = float(rows.counts @ _log_density(rows.targets, mean, factor * scales, freedom)) - 3.0 * (
            strength > 0.0
        )
        if best is None or density > best[0]:
            best = density, strength, factor, freedom
    assert best is not None
    _, strength, factor, freedom = best
    if strength == 0.0:
        return None, stacked
    scales = factor * np.sqrt(variance) * np.exp(0.5 * strength * left_out)
    both = np.array([stacked.log_density(rows.targets), _log_density(rows.targets, mean, scales, freedom)])
    share = float(stacking_weights(both, rows.counts)[1])
    everything = np.column_stack([inputs, (extra - centres) / units])
    fitted = condition_kernel(form, parameters, everything, spread_rows)
    found = SpreadModel(
        fitted,
        shift,
        unit,
        centres,
        units,
        (limits[0], limits[1]),
        strength,
        factor,
        freedom,
        share,
        *_landmark_rows(spread_rows),
    )
    return found, stacked.with_component(share, mean, scales, freedom)


def _log_density(values: Array, means: Array, scales: Array, freedom: float) -> Array:
    return log_student((values - means) / scales, np.array(freedom)) - np.log(scales)
