"""Small tables: exact kernel GPs with priors, judged and calibrated by hyperparameters that were refitted in folds."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ..kernel_gp import Array, KernelForm, KernelGP, KernelPosterior, KernelPrior, KernelRows, fit_from_several_starts
from ..mixture import StudentMixture

Groups = npt.NDArray[np.intp]

FORMS = {
    "linear": KernelForm(),
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
# Rows that hyperparameters are learned from: more make them hardly better, and cost grows with the cube.
_LEARNING_ROWS = 600
_FEWEST_FOR_FOLDS = 5
_FEWEST_FOR_SPREAD = 40
_DEGREES = (2.2, 2.6, 3.2, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0)
# Half the 90 % width is believed to shrink by a tenth, and to grow by three tenths, without much evidence.
_NARROWER, _WIDER = 0.1, 0.3


@dataclass(frozen=True, eq=False)
class Candidate:
    """One kernel, fitted to all rows, with what its out-of-fold errors say of it.

    Attributes:
        name: Of its form.
        posterior: Given all rows.
        factor: On its scales.
        degrees_of_freedom: Of its predictions.
    """

    name: str
    posterior: KernelPosterior
    factor: float
    degrees_of_freedom: float

    def predict(self, inputs: Array) -> tuple[Array, Array]:
        """Means and scales of new observations."""
        mean, variance = self.posterior.predict(inputs)
        return mean, self.factor * np.sqrt(variance + self.posterior.scale * self.posterior.noise)


@dataclass(frozen=True, eq=False)
class SpreadModel:
    """How much larger or smaller errors are than predicted, by a kernel GP on the log of squared out-of-fold errors.

    Attributes:
        posterior: Of the standardised log squares, given inputs, log variance and mean of the prediction.
        shift: Mean of the log squares.
        unit: Their standard deviation.
        centres: Of log variance and mean.
        units: Of log variance and mean.
        limits: Between which its values are kept.
        strength: By what it is multiplied.
        factor: On the scales.
        degrees_of_freedom: Of the predictions.
        share: Its weight beside the mixture without it.
    """

    posterior: KernelPosterior
    shift: float
    unit: float
    centres: Array
    units: Array
    limits: tuple[float, float]
    strength: float
    factor: float
    degrees_of_freedom: float
    share: float

    def log_factors(self, inputs: Array, mean: Array, variance: Array) -> Array:
        """The logarithm of the factor on each row's variance."""
        extra = np.clip((np.column_stack([np.log(variance), mean]) - self.centres) / self.units, -4.0, 4.0)
        found = self.posterior.predict(np.column_stack([inputs, extra]))[0] * self.unit + self.shift
        return self.strength * np.clip(found, *self.limits)


@dataclass(frozen=True, eq=False)
class SmallTableFit:
    """A stack of kernel GPs on standardised rows.

    Attributes:
        columns: Which columns vary.
        candidates: The kernels that have weight.
        weights: Their weights.
        spread: The model of the spread, or None.
        scores: Sorted distances from one half of the out-of-fold probabilities, for conformal intervals.
        target_shift: Of the standardised targets: not zero where gross outliers were found.
        target_unit: Of the standardised targets: not one where gross outliers were found.
        notes: What was recognised: copies, outliers.
    """

    columns: npt.NDArray[np.bool_]
    candidates: tuple[Candidate, ...]
    weights: Array
    spread: SpreadModel | None
    scores: Array
    target_shift: float = 0.0
    target_unit: float = 1.0
    notes: dict[str, int] = field(default_factory=dict)

    def predict(self, inputs: Array) -> StudentMixture:
        """The distribution of new observations at standardised inputs."""
        inputs = inputs[:, self.columns]
        means, scales = zip(*(candidate.predict(inputs) for candidate in self.candidates), strict=True)
        freedom = np.array([candidate.degrees_of_freedom for candidate in self.candidates])
        mixture = StudentMixture(self.weights, np.array(means), np.array(scales), freedom)
        if self.spread is not None:
            mean, variance = pooled(mixture)
            factors = np.exp(0.5 * self.spread.log_factors(inputs, mean, variance))
            mixture = with_component(
                mixture,
                self.spread.share,
                mean,
                self.spread.factor * np.sqrt(variance) * factors,
                self.spread.degrees_of_freedom,
            )
        return mixture.in_units(self.target_shift, self.target_unit)


def fit_small_table(
    inputs: Array,
    targets: Array,
    counts: Array | None = None,
    *,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[str], None] | None = None,
) -> SmallTableFit:
    """Fit a stack of kernel GPs to standardised rows.

    Args:
        inputs: ``(rows, columns)``, standardised.
        targets: ``(rows,)``, standardised.
        counts: How many equal rows each row stands for.
        seed: Determines folds and subsets.
        threads: Kernels that are fitted at once; makes no difference to the result.
        progress: Called with the name of each finished part.
    """
    # Threads of BLAS wait by spinning: on small matrices they cost many times what they gain.
    with threadpool_limits(1, user_api="blas"):
        return _fit(inputs, targets, counts, seed, threads, progress)


def _fit(
    inputs: Array,
    targets: Array,
    counts: Array | None,
    seed: int,
    threads: int,
    progress: Callable[[str], None] | None,
) -> SmallTableFit:
    varying = np.ptp(inputs, axis=0) > 0.0
    if not varying.any():
        varying[:1] = True
    notes: dict[str, int] = {}
    rows = KernelRows.of(inputs[:, varying], targets, counts=counts)
    groups = equal_rows(rows.inputs)
    if counts is None:
        kept = without_copies(rows, groups)
        if kept is not None:
            notes["copies"] = len(targets) - len(kept)
            rows = rows.take(kept)
            groups = equal_rows(rows.inputs)
    shift, unit = 0.0, 1.0
    if len(rows.targets) >= 8:
        shift, unit, noise_scales = gross_outliers(rows, seed)
        notes |= {"outliers": int((noise_scales > 1.0).sum())} if unit != 1.0 else {}
        rows = KernelRows(rows.inputs, (rows.targets - shift) / unit, noise_scales, rows.counts)
    num_rows, num_columns = rows.inputs.shape
    forms = {name: form for name, form in FORMS.items() if num_rows >= _FEWEST_FOR_FOLDS or "column" not in name}
    starts = (1.0, 0.3, 0.1, 3.0) + ((0.03, 0.01) if num_columns <= 2 else ())
    random = np.random.default_rng(seed)
    learning = np.sort(random.permutation(num_rows)[:_LEARNING_ROWS])
    with ThreadPoolExecutor(threads) as pool:

        def learn(name: str) -> Array:
            found = fit_from_several_starts(FORMS[name], rows.take(learning), starts, seed=seed)
            if progress is not None:
                progress(name)
            return found

        parameters = dict(zip(forms, pool.map(learn, forms), strict=True))
        folds = min(10 if num_rows <= 150 else 5, int(groups.max()) + 1)
        if num_rows < _FEWEST_FOR_FOLDS or folds < 3:
            plain = tuple(_uncalibrated(name, parameters[name], rows) for name in forms)
            equal = np.full(len(plain), 1.0 / len(plain))
            return SmallTableFit(varying, plain, equal, None, np.zeros(0), shift, unit, notes)
        assigned = assign_folds(groups, folds, random)
        jobs = [(name, fold) for fold in range(folds) for name in forms]
        left_out = list(
            pool.map(lambda job: _leave_out(rows, assigned == job[1], FORMS[job[0]], parameters[job[0]], seed), jobs)
        )
        posteriors = list(pool.map(lambda name: KernelPosterior(FORMS[name], parameters[name], rows), forms))
    means, scales = np.zeros((len(forms), num_rows)), np.zeros((len(forms), num_rows))
    for (name, fold), (mean, scale) in zip(jobs, left_out, strict=True):
        index = list(forms).index(name)
        means[index, assigned == fold], scales[index, assigned == fold] = mean, scale
    candidates: list[Candidate] = []
    for index, name in enumerate(forms):
        most = posteriors[index].degrees_of_freedom
        factor, freedom = choose_shape((rows.targets - means[index]) / scales[index], most, rows.counts)
        candidates.append(Candidate(name, posteriors[index], factor, freedom))
    factors = np.array([candidate.factor for candidate in candidates])
    freedoms = np.array([candidate.degrees_of_freedom for candidate in candidates])
    loose = StudentMixture(np.full(len(forms), 1.0 / len(forms)), means, scales * factors[:, None], freedoms)
    weights = stacking_weights(component_log_densities(loose, rows.targets), rows.counts)
    stacked = StudentMixture(weights, loose.means, loose.scales, freedoms)
    spread, final = None, stacked
    if num_rows >= _FEWEST_FOR_SPREAD:
        spread, final = fit_spread(rows, groups, stacked, candidates[0].posterior.degrees_of_freedom, seed)
    scores = np.sort(np.abs(final.cumulative(rows.targets) - 0.5))
    return SmallTableFit(varying, tuple(candidates), weights, spread, scores, shift, unit, notes)


def _uncalibrated(name: str, parameters: Array, rows: KernelRows) -> Candidate:
    posterior = KernelPosterior(FORMS[name], parameters, rows)
    return Candidate(name, posterior, 1.0, posterior.degrees_of_freedom)


def _leave_out(
    rows: KernelRows, out: npt.NDArray[np.bool_], form: KernelForm, parameters: Array, seed: int
) -> tuple[Array, Array]:
    """Means and scales of rows that neither hyperparameters nor posterior have seen."""
    rest = rows.take(~out)
    count = len(rest.targets)
    learning = np.sort(np.random.default_rng(seed + 1).permutation(count)[:_LEARNING_ROWS])
    refitted = KernelGP(form, rest.take(learning)).fit(parameters, steps=25 if count <= 400 else 12)[0]
    posterior = KernelPosterior(form, refitted, rest)
    mean, variance = posterior.predict(rows.inputs[out])
    noise = posterior.scale * posterior.noise * rows.noise_scales[out]
    return mean, np.sqrt(variance + noise)


def equal_rows(inputs: Array) -> Groups:
    """The number of the group of equal rows that each row belongs to."""
    return np.asarray(np.unique(inputs, axis=0, return_inverse=True)[1]).ravel()


def without_copies(rows: KernelRows, groups: Groups) -> npt.NDArray[np.intp] | None:
    """One row of each group of copies, or None if equal inputs are repeated measurements, or there are none.

    Copies agree in their targets nearly always, and far more often than two targets agree by chance.
    """
    sizes = np.bincount(groups)
    repeated = sizes > 1
    if not repeated.any():
        return None
    targets = rows.targets
    centres = np.bincount(groups, targets) / sizes
    same = np.abs(targets - centres[groups]) <= 1e-9 * (np.abs(targets) + targets.std())
    agree = np.bincount(groups, same)[repeated] == sizes[repeated]
    chance = float(np.square(np.unique(targets, return_counts=True)[1] / len(targets)).sum())
    if agree.mean() <= 0.95 or int(repeated.sum()) * math.log(chance) >= math.log(1e-6):
        return None
    return np.sort(np.unique(np.column_stack([rows.inputs, targets]), axis=0, return_index=True)[1])


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
        trusted = np.maximum(variance - posterior.scale * posterior.noise * (scales - 1.0), 1e-12)
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
    from scipy.stats import t

    log_factors = np.linspace(-1.5, 2.5, 161)
    own = math.log(stdtrit(most_degrees, 0.95))
    best = (-math.inf, 1.0, most_degrees)
    for freedom in (*(value for value in _DEGREES if value <= most_degrees), most_degrees):
        widths = log_factors + math.log(stdtrit(freedom, 0.95)) - own
        density = weights @ t.logpdf(standardized[:, None] / np.exp(log_factors), freedom)
        penalty = 0.5 * np.square(widths / np.where(widths < 0.0, _NARROWER, _WIDER)) + 3.0 / freedom
        value = density - weights.sum() * log_factors - penalty
        index = int(value.argmax())
        if value[index] > best[0]:
            best = (float(value[index]), math.exp(log_factors[index]), freedom)
    return best[1], best[2]


def component_log_densities(mixture: StudentMixture, values: Array) -> Array:
    """``(components, rows)``."""
    from scipy.stats import t

    return np.asarray(t.logpdf(values, mixture.degrees_of_freedom[:, None], mixture.means, mixture.scales))


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


def pooled(mixture: StudentMixture) -> tuple[Array, Array]:
    """Mean, and the squared scale that takes the disagreement of the components in."""
    mean = mixture.mean
    return mean, mixture.weights @ (np.square(mixture.scales) + np.square(mixture.means - mean))


def with_component(mixture: StudentMixture, share: float, mean: Array, scale: Array, freedom: float) -> StudentMixture:
    """The mixture with one more component of this share."""
    return StudentMixture(
        np.append((1.0 - share) * mixture.weights, share),
        np.vstack([mixture.means, mean]),
        np.vstack([mixture.scales, scale]),
        np.append(mixture.degrees_of_freedom, freedom),
    )


def fit_spread(
    rows: KernelRows, groups: Groups, stacked: StudentMixture, most_degrees: float, seed: int
) -> tuple[SpreadModel | None, StudentMixture]:
    """A model of the spread, if out-of-fold errors gain by it, and the out-of-fold mixture with it."""
    from scipy.stats import t

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
    left_out = np.clip(posterior.leave_groups_out(groups) * unit + shift, -5.0, 5.0)
    limits = tuple(float(value) for value in np.quantile(left_out, [0.01, 0.99]))
    best: tuple[float, float, float, float] | None = None
    for strength in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25):
        scales = np.sqrt(variance) * np.exp(0.5 * strength * left_out)
        factor, freedom = choose_shape((rows.targets - mean) / scales, most_degrees, rows.counts)
        density = float(rows.counts @ t.logpdf(rows.targets, freedom, mean, factor * scales)) - 3.0 * (strength > 0.0)
        if best is None or density > best[0]:
            best = density, strength, factor, freedom
    assert best is not None
    _, strength, factor, freedom = best
    if strength == 0.0:
        return None, stacked
    scales = factor * np.sqrt(variance) * np.exp(0.5 * strength * left_out)
    both = np.array([stacked.log_density(rows.targets), t.logpdf(rows.targets, freedom, mean, scales)])
    share = float(stacking_weights(both, rows.counts)[1])
    found = SpreadModel(
        posterior, shift, unit, centres, units, (limits[0], limits[1]), strength, factor, freedom, share
    )
    return found, with_component(stacked, share, mean, scales, freedom)
