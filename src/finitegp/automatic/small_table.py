"""Small tables: exact kernel GPs with priors, judged and calibrated by hyperparameters that were refitted in folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ..component import Component, SpreadModel, noise_part
from ..kernel_gp import BOUNDS, Array, KernelForm, KernelGP, KernelPosterior, KernelRows, fit_from_several_starts
from ..predictive import StudentMixture
from ..processes import in_parallel
from ..stages import LARGEST, Stages, open_stages
from ..trees import BoostedTrees
from .boosting import CrossFittedTrees, cross_fit_trees
from .judged_kernels import JudgedKernels
from .kernels import FORMS, LEARNING_ROWS, LINEAR, Line, condition_kernel, landmark_rows
from .misleading_rows import Groups, are_copies, dithered, equal_rows, gross_outliers
from .settings import ENOUGH_JUDGES
from .stacking import fit_spread, stack_kernels, stack_with_trees
from .table import Table, with_score

# Factors on variances from hundreds of rows and from twice as many differ by a tenth or two where both are right.
_SAME_SCALE = 2.0
# Where these do not hold for all rows, hyperparameters are learned again from all, or so many of them.
_MOST_LEARNED = 2000
_FEWEST_FOR_FOLDS = 5
_LEAST_DEGREES = 2.6
_FEWEST_FOR_OUTLIERS = 8
_FEWEST_FOR_SPREAD, _FEWEST_FOR_TREES = 40, 25
# With fewer rows than these the later trees are not taken, and folds are many.
_FEW_FOR_TREES, _TREES_OF_FEW = 100, 80


@dataclass(frozen=True, eq=False)
class SmallTableFit:
    """A stack of kernel GPs on standardised rows.

    Attributes:
        components: The kernels that have weight, with their posteriors.
        rows: What they were conditioned on, in their units: outliers with little weight, copies counted once.
        spread: The model of the spread, or None.
        trees: Boosted trees with a part in the mean, or None.
        normal_scores: Of left-out rows, for conformal intervals.
        score_counts: How many rows each of them stands for.
        left_out_nlpd: The mean negative log density of these rows, in units of the standardised targets, or None.
        parameters: The hyperparameters of each kernel.
        target_shift: Of the standardised targets: not zero where gross outliers were found.
        target_unit: Of the standardised targets: not one where gross outliers were found.
        notes: What was recognised: copies, outliers.
    """

    components: tuple[Component, ...]
    rows: KernelRows
    spread: SpreadModel | None
    trees: BoostedTrees | None
    normal_scores: Array
    score_counts: Array
    left_out_nlpd: float | None
    parameters: Mapping[str, Array]
    target_shift: float = 0.0
    target_unit: float = 1.0
    notes: dict[str, object] = field(default_factory=dict)


class JudgedTable(NamedTuple):
    """A stack of kernel GPs that left-out rows have judged.

    Attributes:
        left_out_nlpd: As that of :class:`SmallTableFit`.
        fit: Makes the posteriors given all rows, which take the time of all that came before on thousands of rows.
    """

    left_out_nlpd: float | None
    fit: Callable[[], SmallTableFit]


def fit_small_table(inputs: Array, targets: Array, counts: Array | None = None, **options: Any) -> SmallTableFit:
    """Fit a stack of kernel GPs to standardised rows, with the options of :func:`judge_small_table`."""
    return judge_small_table(inputs, targets, counts, **options).fit()


def judge_small_table(
    inputs: Array,
    targets: Array,
    counts: Array | None = None,
    *,
    may_be_copies: bool = True,
    input_noise: bool = True,
    skewed_errors: bool = True,
    keep_rows: bool = True,
    learning_rows: int = LEARNING_ROWS,
    trees: int = 0,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[str], None] | None = None,
) -> JudgedTable:
    """Learn a stack of kernel GPs from standardised rows, and what it predicts of rows that were left out.

    Args:
        inputs: ``(rows, columns)``, standardised.
        targets: ``(rows,)``, standardised.
        counts: How many equal rows each row stands for.
        may_be_copies: Whether rows that stand for several may be copies, which count as one row.
        input_noise: Whether the spread of errors may depend on the row.
        skewed_errors: Whether errors may be larger to one side.
        keep_rows: Whether the result may hold the rows. If not, it is the heaviest kernel that is more than a line, on
            landmarks that are means of at least three rows each, without a model of the spread.
        learning_rows: Rows that hyperparameters are learned from.
        trees: The most boosted trees, which have a part in the mean if left-out rows gain by it; only with
            ``keep_rows``, because their thresholds lie between values of rows.
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
        copies = are_copies(rows, groups)
        if copies and may_be_copies:
            notes["copies"] = round(rows.total) - len(targets)
            rows = replace(rows, counts=np.ones(len(targets)))
        # That weighted rows agree with themselves is no evidence of little noise: hyperparameters see relative counts.
        learned_counts = rows.counts / rows.counts.mean() if copies else rows.counts
        shift, unit = 0.0, 1.0
        if len(targets) >= _FEWEST_FOR_OUTLIERS:
            shift, unit, noise_scales = gross_outliers(replace(rows, counts=learned_counts), seed)
            notes |= {"outliers": int((noise_scales > 1.0).sum())} if unit != 1.0 else {}
            rows = replace(rows, targets=(rows.targets - shift) / unit, noise_scales=noise_scales)
        learned = dithered(replace(rows, counts=learned_counts), seed)
        stack = _Stack(inputs, rows, learned, groups, learning_rows, trees, seed, threads, progress, stages)
        parameters = stack.learn()
        found = stack.judge(parameters, input_noise=input_noise, keep_rows=keep_rows)
        found = found.with_skew() if skewed_errors else found
    scores, counts, nlpd = np.zeros(0), np.zeros(0), None
    if found.judged is not None:
        judges, distribution = found.judged
        scores, counts = distribution.normal_scores(judges.targets), judges.counts
        density = np.average(distribution.log_density(judges.targets), weights=judges.counts)
        nlpd = float(math.log(unit) - density)
    if found.skew is not None:
        notes["skewed_errors"] = found.skew._asdict()

    def fit() -> SmallTableFit:
        with threadpool_limits(1, user_api="blas"):
            trees = None if found.trees is None else replace(found.trees(), weight=found.tree_weight)
            components, spread = found.condition(threads)
        return SmallTableFit(components, rows, spread, trees, scores, counts, nlpd, parameters, shift, unit, notes)

    return JudgedTable(nlpd, fit)


@dataclass(frozen=True, eq=False)
class _Stack:
    """Kernels on the same rows, and what is known of them.

    What densities decide of kernels is learned from ``dithered``: hyperparameters, shapes and weights. Posteriors are
    those of ``rows``; those that are ``known`` from learning are not made again.
    """

    inputs: Array
    rows: KernelRows
    dithered: KernelRows
    groups: Groups
    learning_rows: int
    trees: int
    seed: int
    threads: int
    progress: Callable[[str], None] | None
    stages: Stages
    known: dict[str, KernelPosterior | Line] = field(default_factory=dict)

    @property
    def learning(self) -> Groups:
        """Numbers of the rows that hyperparameters are learned from."""
        return self._draw(self.learning_rows)

    @property
    def judges(self) -> Groups:
        """Numbers of the rows that judge without refits; none if hyperparameters were learned from nearly all."""
        others = np.delete(np.arange(len(self.inputs)), self.learning)
        return others if len(others) >= ENOUGH_JUDGES else others[:0]

    def _draw(self, most: int) -> Groups:
        """Numbers of so many rows, of more the same and others."""
        return np.sort(np.random.default_rng(self.seed).permutation(len(self.inputs))[:most])

    def learn(self) -> dict[str, Array]:
        """The hyperparameters of each kernel."""
        num_rows, num_columns = self.rows.inputs.shape
        names = [name for name in FORMS if num_rows >= _FEWEST_FOR_FOLDS or "column" not in name]
        starts = (1.0, 0.3, 0.1, 3.0) + ((0.03, 0.01) if num_columns <= 2 else ())
        rows = self.dithered.take(self.learning)

        def learn(number: int) -> Array:
            name = names[number]
            found = fit_from_several_starts(FORMS[name], rows, starts, seed=self.seed)
            if self._hold_for_all(name, found):
                return found
            self.known.pop(name, None)
            return KernelGP(FORMS[name], self.dithered.take(self._draw(_MOST_LEARNED))).fit(found, steps=25)[0]

        def compute(missing: list[int]) -> Iterator[Array]:
            return in_parallel(learn, [(number,) for number in missing], self.threads)

        shapes = [FORMS[name].start(num_columns).shape for name in names]
        parameters = {}
        found = self.stages.arrays(names, compute, shapes, *BOUNDS)
        for name, parameters[name] in zip(names, found, strict=True):
            if self.progress is not None:
                self.progress(name)
        return parameters

    def _hold_for_all(self, name: str, parameters: Array) -> bool:
        """Whether rows that hyperparameters were not learned from need about the same common factor on variances.

        Without near neighbours, noise and a kernel that falls off at once are the same. Where the other rows bring
        neighbours with other targets, a kernel that was taken for the noise needs a factor of hundreds.
        """
        if len(self.learning) == len(self.inputs):
            return True
        learned = _posterior(name, parameters, self.dithered.take(self.learning))
        found = _posterior(name, parameters, self.dithered)
        same = self.dithered.targets is self.rows.targets and self.dithered.counts is self.rows.counts
        if len(self.judges) and same:
            self.known[name] = found
        return found.scale < _SAME_SCALE * learned.scale

    def judge(self, parameters: Mapping[str, Array], *, input_noise: bool, keep_rows: bool) -> JudgedKernels:
        """Weights, shapes, trees and spread by left-out rows."""
        # The unit of the targets is their own deviation, so that the prior of the scale adds no degrees of freedom to
        # theirs, of which the mean takes one.
        total = self.rows.total
        most = max(total - 1.0, _LEAST_DEGREES)
        folds = min(10 if len(self.inputs) <= 150 else 5, int(self.groups.max()) + 1)
        if len(self.inputs) < _FEWEST_FOR_FOLDS or folds < 3:
            equal = dict.fromkeys(parameters, 1.0 / len(parameters))
            factor = total / max(total - 1.0, 1.0)  # their deviation is too small by the degree that the mean takes
            if not keep_rows:
                return JudgedKernels([partial(self._without_rows, most_flexible(equal), parameters, factor, most)])
            return JudgedKernels(
                [partial(self._condition, name, parameters, factor, most, equal[name]) for name in equal]
            )
        judges = self.judges
        if len(judges):
            means, scales, noise_parts = self._leave_folds_out(parameters, folds, judges)
            self._tell("folds", means, judges)
        else:
            judges = np.arange(len(self.inputs))
            means, scales, noise_parts = self._refit_in_folds(parameters, folds)
        rows, errors = self.rows.take(judges), self.dithered.take(judges)
        stacked = stack_kernels(means, scales, errors.targets, rows.counts, most)
        boosted = self._boost(folds) if keep_rows else None
        if boosted is not None:
            out_of_fold = boosted.out_of_fold[judges]
            stacked = stack_with_trees(stacked, out_of_fold, means, scales, errors.targets, rows.counts, most)
        names, weights = [list(parameters)[number] for number in stacked.kept], stacked.mixture.weights.tolist()
        freedoms = stacked.mixture.degrees_of_freedom.ravel().tolist()
        if not keep_rows:
            name = most_flexible(dict(zip(names, weights, strict=True)))
            index = [names.index(name)]
            mixture = stacked.mixture
            alone = StudentMixture(
                np.ones(1), mixture.means[index], mixture.scales[index], mixture.degrees_of_freedom[index]
            )
            factor = float(stacked.factors[index[0]])
            lone = partial(self._without_rows, name, parameters, factor, freedoms[index[0]])
            parts = noise_parts[stacked.kept[index]]
            return JudgedKernels([lone], judged=(rows, alone), noise_parts=parts)
        chosen = [
            partial(self._condition, name, parameters, *values)
            for name, *values in zip(names, stacked.factors.tolist(), freedoms, weights, strict=True)
        ]
        spread, final, parts = None, stacked.mixture, noise_parts[stacked.kept]
        if input_noise and len(judges) >= _FEWEST_FOR_SPREAD:
            spread, final = fit_spread(self.inputs[judges], rows, self.groups[judges], final, most, self.seed)
        if spread is not None:
            squares = np.square(stacked.mixture.scales)
            parts = np.vstack([parts, noise_part(stacked.mixture.weights, squares, parts * squares)])
        trees = None if boosted is None or not stacked.tree_weight else boosted.grow
        return JudgedKernels(chosen, spread, trees, stacked.tree_weight, (rows, final), parts)

    def _boost(self, folds: int) -> CrossFittedTrees | None:
        if not self.trees or len(self.inputs) < _FEWEST_FOR_TREES:
            return None
        rows = Table(self.inputs, self.rows.targets, self.rows.counts / self.rows.noise_scales)
        trees = self.trees if len(self.inputs) >= _FEW_FOR_TREES else min(self.trees, _TREES_OF_FEW)
        return cross_fit_trees(rows, self._folds(folds), trees, seed=self.seed)

    def _condition(
        self, name: str, parameters: Mapping[str, Array], factor: float, degrees: float, weight: float
    ) -> Component:
        """A kernel given all rows."""
        form = FORMS[name]
        fitted = condition_kernel(form, parameters[name], self.inputs, self.rows)
        known = (None, None) if form.correlation is None else landmark_rows(self.rows)
        return Component(fitted, name, weight, factor, degrees, form.prior.scale_degrees, *known)

    def _leave_folds_out(
        self, parameters: Mapping[str, Array], folds: int, judges: Groups
    ) -> tuple[Array, Array, Array]:
        """``(kernels, rows)`` means, scales and parts of noise of rows that no hyperparameter has seen, by other folds.

        Not given all other rows: where there is nothing but noise, the mean of all others reveals the row itself.
        """
        assigned = self._folds(folds)

        def leave_out(name: str) -> tuple[Array, Array, Array]:
            posterior = self.known.pop(name, None) or _posterior(name, parameters[name], self.rows)
            mean, variance = (each[judges] for each in posterior.leave_groups_out(assigned))
            noise = posterior.scale * posterior.noise * self.rows.noise_scales[judges]
            return mean, np.sqrt(variance), np.minimum(noise / variance, 1.0)

        found = in_parallel(leave_out, [(name,) for name in parameters], self.threads)
        means, scales, parts = zip(*found, strict=True)
        return np.array(means), np.array(scales), np.array(parts)

    def _folds(self, count: int) -> Groups:
        """The fold of each row."""
        random = np.random.default_rng(self.seed)
        random.permutation(len(self.inputs))  # what the rows to learn from were drawn by
        return assign_folds(self.groups, count, random)

    def _refit_in_folds(self, parameters: Mapping[str, Array], folds: int) -> tuple[Array, Array, Array]:
        """``(kernels, rows)`` means, scales and parts of noise of rows that neither kernel nor posterior has seen."""
        names = list(parameters)
        assigned = self._folds(folds)

        def leave_out(name: str, fold: int) -> tuple[Array, Array, Array]:
            return self._leave_out(assigned == fold, FORMS[name], parameters[name])

        def compute(missing: list[int]) -> Iterator[Array]:
            found = in_parallel(leave_out, [(name, fold) for fold in missing for name in names], self.threads)
            for _ in missing:
                yield np.stack([np.stack(next(found), axis=0) for _ in names], axis=1)

        shapes = [(3, len(names), int((assigned == fold).sum())) for fold in range(folds)]
        means, scales, parts = np.zeros((3, len(names), len(self.inputs)))
        lowest = np.array([-LARGEST, 1.0 / LARGEST, 0.0])[:, None, None]  # scales are positive
        stages = self.stages.arrays([f"fold {fold}" for fold in range(folds)], compute, shapes, lowest)
        for fold, found in enumerate(stages):
            means[:, assigned == fold], scales[:, assigned == fold], parts[:, assigned == fold] = found
            judged = assigned <= fold
            self._tell(f"fold {fold + 1} of {folds}", means[:, judged], np.flatnonzero(judged))
        return means, scales, parts

    def _tell(self, part: str, means: Array, judges: Groups) -> None:
        """Report a finished part with the score of the kernel that predicts left-out rows best."""
        if self.progress is not None:
            rows = self.rows.take(judges)
            errors = np.average((means - rows.targets) ** 2, axis=1, weights=rows.counts)
            self.progress(with_score(part, means[int(np.argmin(errors))], rows.targets, rows.counts))

    def _leave_out(self, out: npt.NDArray[np.bool_], form: KernelForm, parameters: Array) -> tuple[Array, Array, Array]:
        """Means, scales and parts of noise of rows that neither hyperparameters nor posterior have seen."""
        rest = np.flatnonzero(~out)
        learning = np.sort(np.random.default_rng(self.seed + 1).permutation(rest.size)[: self.learning_rows])
        steps = 25 if rest.size <= 400 else 12
        refitted = KernelGP(form, self.dithered.take(rest[learning])).fit(parameters, steps=steps)[0]
        posterior = KernelPosterior(form, refitted, self.rows.take(rest))
        mean, variance = posterior.predict(self.rows.inputs[out])
        noise = posterior.scale * posterior.noise * self.rows.noise_scales[out]
        return mean, np.sqrt(variance + noise), noise / (variance + noise)

    def _without_rows(self, name: str, parameters: Mapping[str, Array], factor: float, degrees: float) -> Component:
        """A kernel alone, on landmarks that are no rows."""
        form = FORMS[name]
        fitted = condition_kernel(form, parameters[name], self.inputs, self.rows, keep_rows=False)
        return Component(fitted, name, 1.0, factor, degrees, form.prior.scale_degrees)


def _posterior(name: str, parameters: Array, rows: KernelRows) -> KernelPosterior | Line:
    return Line(parameters, rows) if name == LINEAR else KernelPosterior(FORMS[name], parameters, rows)


def most_flexible(weights: Mapping[str, float]) -> str:
    """The heaviest kernel that is more than a line; the line if there is no other."""
    return max(weights, key=lambda name: weights[name] if FORMS[name].correlation else weights[name] - 1.0)


def assign_folds(groups: Groups, folds: int, random: np.random.Generator) -> Groups:
    """The fold of each row; equal rows share one."""
    order = random.permutation(int(groups.max()) + 1)
    fold_of_group = np.empty(len(order), dtype=np.intp)
    fold_of_group[order] = np.arange(len(order)) % folds
    return fold_of_group[groups]
