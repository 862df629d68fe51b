"""Small tables: exact kernel GPs with priors, judged and calibrated by hyperparameters that were refitted in folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ..component import Component
from ..kernel_gp import BOUNDS, Array, KernelForm, KernelGP, KernelPosterior, KernelRows, fit_from_several_starts
from ..predictive import StudentMixture
from ..spread import SpreadModel
from ..stages import LARGEST, Stages, open_stages
from .atoms import dithered
from .copies_and_outliers import Groups, are_copies, equal_rows, gross_outliers
from .kernels import FORMS, LEARNING_ROWS, LINEAR, condition_kernel, landmark_rows
from .stacking import choose_shape, fit_spread, stacking_weights
from .table import with_score

_FEWEST_FOR_FOLDS = 5
# With at least this number of rows that hyperparameters were not learned from, these alone judge, without refits.
ENOUGH_JUDGES = 1000
_FEWEST_FOR_OUTLIERS = 8
_LEAST_WEIGHT = 0.01
# The row of prior, and half a row in favour of the kernel.
_LEAST_ROWS = 1.5
_FEWEST_FOR_SPREAD = 40


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
    notes: dict[str, object] = field(default_factory=dict)


def fit_small_table(
    inputs: Array,
    targets: Array,
    counts: Array | None = None,
    *,
    may_be_copies: bool = True,
    input_noise: bool = True,
    keep_rows: bool = True,
    learning_rows: int = LEARNING_ROWS,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[str], None] | None = None,
) -> SmallTableFit:
    """Fit a stack of kernel GPs to standardised rows.

    Args:
        inputs: ``(rows, columns)``, standardised.
        targets: ``(rows,)``, standardised.
        counts: How many equal rows each row stands for.
        may_be_copies: Whether rows that stand for several may be copies, which count as one row.
        input_noise: Whether the spread of errors may depend on the row.
        keep_rows: Whether the result may hold the rows. If not, it is the heaviest kernel that is more than a line, on
            landmarks that are means of at least three rows each, without a model of the spread.
        learning_rows: Rows that hyperparameters are learned from.
        seed: Determines folds and subsets.
        threads: Kernels that are fitted at once; makes no difference to the result.
        progress: Called with the name of each finished part.
    """
    choices = {"may_be_copies": may_be_copies, "learning_rows": learning_rows, "seed": seed}
    stages = open_stages("kernels", choices, inputs, targets, counts)
    # Threads of BLAS wait by spinning: on small matrices they cost many times what they gain.
    with threadpool_limits(1, user_api="blas"):
        varying = np.ptp(inputs, axis=0) > 0.0
        if not varying.any():
            varying[:1] = True
        rows = KernelRows.of(inputs[:, varying], targets, counts=counts)
        notes: dict[str, object] = {}
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
            stack = _Stack(inputs, rows, dithered(rows, seed), groups, learning_rows, seed, pool, progress, stages)
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
    """Kernels on the same rows, and what is known of them.

    What densities decide of kernels is learned from ``dithered``: hyperparameters, shapes and weights. Posteriors are
    those of ``rows``.
    """

    inputs: Array
    rows: KernelRows
    dithered: KernelRows
    groups: Groups
    learning_rows: int
    seed: int
    pool: ThreadPoolExecutor
    progress: Callable[[str], None] | None
    stages: Stages

    @property
    def learning(self) -> Groups:
        """Numbers of the rows that hyperparameters are learned from."""
        return np.sort(np.random.default_rng(self.seed).permutation(len(self.inputs))[: self.learning_rows])

    def learn(self) -> dict[str, Array]:
        """The hyperparameters of each kernel."""
        num_rows, num_columns = self.rows.inputs.shape
        names = [name for name in FORMS if num_rows >= _FEWEST_FOR_FOLDS or "column" not in name]
        starts = (1.0, 0.3, 0.1, 3.0) + ((0.03, 0.01) if num_columns <= 2 else ())
        rows = self.dithered.take(self.learning)

        def learn(number: int) -> Array:
            return fit_from_several_starts(FORMS[names[number]], rows, starts, seed=self.seed)

        shapes = [FORMS[name].start(num_columns).shape for name in names]
        parameters = {}
        found = self.stages.arrays(names, lambda missing: self.pool.map(learn, missing), shapes, *BOUNDS)
        for name, parameters[name] in zip(names, found, strict=True):
            if self.progress is not None:
                self.progress(name)
        return parameters

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
            self._tell("folds", means, judges)
        else:
            judges = np.arange(len(self.inputs))
            means, scales = self._refit_in_folds(parameters, folds)
        rows, errors = self.rows.take(judges), self.dithered.take(judges)
        shapes = [
            choose_shape((errors.targets - mean) / scale, most, rows.counts)
            for mean, scale in zip(means, scales, strict=True)
        ]
        factors, freedoms = np.array(shapes).T
        loose = StudentMixture(np.ones(len(means)), means, scales * factors[:, None], freedoms[:, None])
        weights = stacking_weights(loose.component_log_densities(errors.targets), rows.counts)
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
        known = (None, None) if form.correlation is None else landmark_rows(self.rows)
        return Component(fitted, name, weight, factor, degrees, form.prior.scale_degrees, *known)

    def _leave_folds_out(self, parameters: Mapping[str, Array], folds: int, judges: Groups) -> tuple[Array, Array]:
        """``(kernels, rows)`` means and scales of rows that no hyperparameter has seen, each given the other folds.

        Not given all other rows: where there is nothing but noise, the mean of all others reveals the row itself.
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
        names = list(parameters)
        assigned = self._folds(folds)

        def leave_out(job: tuple[str, int]) -> tuple[Array, Array]:
            name, fold = job
            return self._leave_out(assigned == fold, FORMS[name], parameters[name])

        def compute(missing: list[int]) -> Iterator[Array]:
            found = self.pool.map(leave_out, [(name, fold) for fold in missing for name in names])
            for _ in missing:
                yield np.stack([np.stack(next(found), axis=0) for _ in names], axis=1)

        shapes = [(2, len(names), int((assigned == fold).sum())) for fold in range(folds)]
        means, scales = np.zeros((2, len(names), len(self.inputs)))
        lowest = np.array([-LARGEST, 1.0 / LARGEST])[:, None, None]  # scales are positive
        stages = self.stages.arrays([f"fold {fold}" for fold in range(folds)], compute, shapes, lowest)
        for fold, found in enumerate(stages):
            means[:, assigned == fold], scales[:, assigned == fold] = found
            judged = assigned <= fold
            self._tell(f"fold {fold + 1} of {folds}", means[:, judged], np.flatnonzero(judged))
        return means, scales

    def _tell(self, part: str, means: Array, judges: Groups) -> None:
        """Report a finished part with the score of the kernel that predicts left-out rows best."""
        if self.progress is not None:
            rows = self.rows.take(judges)
            errors = np.average((means - rows.targets) ** 2, axis=1, weights=rows.counts)
            self.progress(with_score(part, means[int(np.argmin(errors))], rows.targets, rows.counts))

    def _leave_out(self, out: npt.NDArray[np.bool_], form: KernelForm, parameters: Array) -> tuple[Array, Array]:
        """Means and scales of rows that neither hyperparameters nor posterior have seen."""
        rest = np.flatnonzero(~out)
        learning = np.sort(np.random.default_rng(self.seed + 1).permutation(rest.size)[: self.learning_rows])
        steps = 25 if rest.size <= 400 else 12
        refitted = KernelGP(form, self.dithered.take(rest[learning])).fit(parameters, steps=steps)[0]
        posterior = KernelPosterior(form, refitted, self.rows.take(rest))
        mean, variance = posterior.predict(self.rows.inputs[out])
        noise = posterior.scale * posterior.noise * self.rows.noise_scales[out]
        return mean, np.sqrt(variance + noise)

    def _without_rows(self, name: str, parameters: Mapping[str, Array], factor: float, degrees: float) -> Component:
        """A kernel alone, on landmarks that are no rows."""
        form = FORMS[name]
        fitted = condition_kernel(form, parameters[name], self.inputs, self.rows, keep_rows=False)
        return Component(fitted, name, 1.0, factor, degrees, form.prior.scale_degrees)


def most_flexible(weights: Mapping[str, float]) -> str:
    """The heaviest kernel that is more than a line; the line if there is no other."""
    return max(weights, key=lambda name: weights[name] if FORMS[name].correlation else weights[name] - 1.0)


def assign_folds(groups: Groups, folds: int, random: np.random.Generator) -> Groups:
    """The fold of each row; equal rows share one."""
    order = random.permutation(int(groups.max()) + 1)
    fold_of_group = np.empty(len(order), dtype=np.intp)
    fold_of_group[order] = np.arange(len(order)) % folds
    return fold_of_group[groups]
