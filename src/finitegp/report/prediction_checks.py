"""Checks of the held-out predictions: errors too small, too large or biased, and error bars that do not hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..data.naming import listed
from ..formatting import percent, shown
from ..metrics import Scores
from .contents import Finding, ImportanceTable, ResidualPanel

Array = npt.NDArray[np.float64]
# Chance makes a finding less often than this, all looks of one check taken together.
_RARE = 1e-4
# Of the trained range, by how much a value has to leave it.
_CLEARLY_OUTSIDE = 0.1


def check_perfect_predictions(r_squared: float | None) -> Finding | None:
    """A held-out error near zero is seldom earned.

    Example:
        >>> check_perfect_predictions(0.99999).severity, check_perfect_predictions(0.98)
        ('problem', None)
    """
    if r_squared is None or r_squared <= 0.9999:
        return None
    return Finding(
        "problem",
        "Too good to be true",
        f"{percent(r_squared, 4)} of the held-out variance is explained.",
        "Look for a column that was computed from the target or is only known afterwards, and for held-out rows that "
        "repeat training rows. If the target follows from the inputs by a formula, all is well.",
    )


def check_baselines(scores: Sequence[Scores]) -> Finding | None:
    """A model, the first, that does not beat a baseline."""
    own = scores[0]
    for baseline in scores[1:]:
        if own.rmse < 0.99 * baseline.rmse or own.nlpd < baseline.nlpd - 0.01:
            continue
        evidence = (
            f"RMSE {shown(own.rmse)} against {shown(baseline.rmse)}, NLPD {shown(own.nlpd)} against "
            f"{shown(baseline.nlpd)}."
        )
        worse = own.rmse > 1.02 * baseline.rmse
        title = f"{'Worse' if worse else 'No better'} than the {baseline.name} baseline"
        if baseline.name == "mean":
            fix = (
                "The inputs may carry no information on the target: check that rows of inputs and target belong "
                "together, and that the right column is the target."
            )
            return Finding("problem", title, evidence, fix)
        if worse:
            fix = (
                "Raise the effort or get more rows; with many columns and few rows, leave out those that cannot matter."
            )
            shell = "Use --effort high or get more rows; of many columns, --drop those that cannot matter."
            return Finding("problem", title, evidence, fix, shell)
        fix = "If the relation is linear, nothing is wrong. Otherwise raise the effort"
        return Finding("note", title, evidence, f"{fix}.", f"{fix}: --effort high.")
    return None


def check_overfit(nlml: float, scores: Scores) -> Finding | None:
    """The gap between the training rows' NLML per row and the held-out NLPD, both in nats.

    The NLML is the mean surprise when rows are met one after the other, so a sound model's held-out NLPD is not above
    it by more than chance.
    """
    gap = scores.nlpd - nlml
    if gap <= 0.2 + 3.0 * scores.nlpd_error:
        return None
    return Finding(
        "problem" if gap > 1.0 + 3.0 * scores.nlpd_error else "warning",
        "Overfitted features",
        f"The held-out NLPD is {shown(scores.nlpd)}, the training rows' NLML per row {shown(nlml)}: a gap of "
        f"{shown(gap, 2)} nats (standard error {shown(scores.nlpd_error, 2)}).",
        "Train shorter or with more weight decay, use a smaller network or GPRegressor(feature_map='fourier'), or get "
        "more rows. Check that held-out rows come from the same time and place as training rows.",
        "Check that held-out rows come from the same time and place as training rows; get more rows.",
    )


def check_coverage(coverage: dict[float, float], rows: int, atom: float = 0.0) -> Finding | None:
    """Intervals that hold clearly more or fewer targets than they promise.

    Args:
        coverage: The share of held-out targets inside, by what was promised.
        rows: How many there are.
        atom: The share of them that are one and the same value: an interval holds all or none of these.

    Example:
        >>> check_coverage({0.5: 0.3, 0.9: 0.6}, 1000).title
        'Error bars are too narrow'
        >>> check_coverage({0.5: 0.52, 0.9: 0.91}, 1000)
    """
    worst, direction, size = None, 0.0, 0.0
    deviations = {level: math.sqrt(level * (1.0 - level) / rows) for level in coverage}
    for level, seen in coverage.items():
        excess = abs(seen - level) - max(0.03, 3.3 * deviations[level]) - (atom if seen > level else 0.0)
        if excess > size or (worst is None and excess > 0.0):
            worst, direction, size = level, seen - level, excess
    if worst is None:
        return None
    severe = abs(direction) >= 0.1
    if direction < 0.0:
        return Finding(
            "problem" if severe else "warning",
            "Error bars are too narrow",
            f"The {percent(worst, 0)} interval holds {percent(coverage[worst])} of {shown(rows)} held-out targets.",
            "Check whether held-out rows differ from training rows. More rows and more effort help; conformal "
            "intervals, predict_interval(method='conformal'), take their width from rows that were left out.",
            "Check whether held-out rows differ from training rows. More rows and --effort high help; conformal "
            "intervals (predict --interval conformal) take their width from rows that were left out.",
        )
    widest = max(coverage)
    if widest > worst and coverage[widest] < widest - 2.5 * deviations[widest]:
        return Finding(
            "warning" if severe else "note",
            "Error bars are too wide for most rows, too narrow for a few",
            f"The {percent(worst, 0)} interval holds {percent(coverage[worst])} of {shown(rows)} held-out targets, the "
            f"{percent(widest, 0)} interval {percent(coverage[widest])}.",
            "Errors differ between rows in a way that was not learned: use GPRegressor(noise='input'), add inputs that "
            "tell which rows are noisy, or try TableRegressor(target_scale='log'). Look at the unexpected rows.",
            "Errors differ between rows in a way that was not learned: add columns that tell which rows are noisy, or "
            "try another --target-scale. Look at the unexpected rows.",
        )
    return Finding(
        "warning" if severe else "note",
        "Error bars are too wide",
        f"The {percent(worst, 0)} interval holds {percent(coverage[worst])} of {shown(rows)} held-out targets.",
        "Use GPRegressor(noise='input') if some rows are noisier than others; look for outliers: they raise the noise.",
        "Look for outliers, which raise the noise; --effort high learns better which rows are noisy.",
    )


def check_distributions(standardized: Array) -> Finding | None:
    """Targets that do not fall evenly into their predicted distributions: a PIT histogram that is not flat.

    What counts is by how much any probability that is read off them is wrong, not every bump: the greatest distance
    between the share of targets below a quantile and what that quantile promises.

    Example:
        >>> random = np.random.default_rng(0)
        >>> check_distributions(random.normal(size=2000))
        >>> check_distributions(random.exponential(size=2000) - 1.0).title
        'Predicted distributions have the wrong shape'
    """
    from scipy.special import ndtr
    from scipy.stats import kstwobign

    rows = len(standardized)
    if rows < 100:
        return None
    levels = np.sort(ndtr(standardized))
    off = np.arange(1, rows + 1) / rows - levels
    worst = int(np.argmax(np.abs(off)))
    apart = abs(float(off[worst]))
    if apart < 0.07 or float(kstwobign.sf(apart * math.sqrt(rows))) > _RARE:
        return None
    level = float(levels[worst])
    return Finding(
        "warning",
        "Predicted distributions have the wrong shape",
        f"{percent(level + float(off[worst]), 0)} of the held-out targets lie below the quantile of their predicted "
        f"distributions below which {percent(level, 0)} should be.",
        "Read intervals as rough, most of all one-sided ones; see the PIT histogram. A target on another scale "
        "(TableRegressor(target_scale='log')), more rows or more effort may help.",
        "Read intervals as rough, most of all one-sided ones; see the PIT histogram. Another --target-scale, more rows "
        "or --effort high may help.",
    )


def check_segments(standardized: Array, predicted: Array) -> Finding | None:
    """Intervals that hold on the whole, but not among rows with low or high predictions.

    Example:
        >>> random = np.random.default_rng(0)
        >>> level, errors = np.arange(2000.0), random.normal(size=2000)
        >>> check_segments(errors, level), check_segments(errors * np.where(level < 500, 2.0, 0.8), level).severity
        (None, 'warning')
    """
    if len(standardized) < 200:
        return None
    parts = np.array_split(np.argsort(predicted, kind="stable"), 4)
    reach = NormalDist().inv_cdf(0.95)
    shares = [float(np.mean(np.abs(standardized[part]) <= reach)) for part in parts]
    worst = int(np.argmin(shares))
    rows = len(parts[worst])
    if 0.9 - shares[worst] <= max(0.07, 4.0 * math.sqrt(0.09 / rows)):
        return None
    where = ("lowest", "second lowest", "second highest", "highest")[worst]
    return Finding(
        "warning",
        "Error bars are too narrow for some rows",
        f"Of the quarter of the rows with the {where} predictions, 90 % intervals hold {percent(shares[worst])}.",
        "Trust these error bars less; add inputs that tell such rows apart, or more of such rows.",
    )


def check_explained(r_squared: float | None) -> Finding | None:
    """A model that explains little, however good its error bars are.

    Example:
        >>> check_explained(0.05).severity, check_explained(0.6)
        ('note', None)
    """
    if r_squared is None or r_squared >= 0.1:
        return None
    return Finding(
        "note",
        "Little is explained",
        f"{percent(max(r_squared, 0.0))} of the held-out variance is explained: a single prediction is worth little "
        "more than the mean.",
        "Use the intervals rather than the predictions, and look for inputs that bear on the target.",
    )


def check_harmful_inputs(importance: ImportanceTable) -> Finding | None:
    """Inputs without which, shuffled, the predictions are better, and would be on other rows too."""
    deviations = -NormalDist().inv_cdf(_RARE / max(1, importance.inputs_of))
    harmful = [
        entry.name
        for entry in importance.entries
        if entry.increase < -max(0.01 * importance.base_rmse, deviations * entry.error)
    ]
    if not harmful:
        return None
    return Finding(
        "note",
        "Some inputs do harm",
        f"Shuffled between held-out rows, these make the error smaller: {listed(harmful)}.",
        "Leave them out and see whether the scores improve.",
        "Leave them out with --drop and see whether the scores improve.",
    )


def check_heavy_tails(standardized: Array) -> Finding | None:
    """More rows far outside their error bars than the predictive distribution allows, and not just a handful of many.

    Example:
        >>> values = np.random.default_rng(0).normal(size=1000)
        >>> check_heavy_tails(values), check_heavy_tails(np.append(values, [9.0, -7.0, 12.0, 6.0])).severity
        (None, 'warning')
    """
    far, rows = int((np.abs(standardized) > 4.0).sum()), len(standardized)
    expected = 2.0 * NormalDist().cdf(-4.0) * rows
    if far < max(3.0, 0.003 * rows):
        return None
    return Finding(
        "warning",
        "Heavy-tailed residuals",
        f"{far} of {shown(len(standardized))} held-out rows lie as far out as four standard deviations of a normal "
        f"distribution or more, where their own distributions expect {shown(expected, 2)}; the farthest lies at "
        f"{shown(float(np.abs(standardized).max()), 2)}.",
        "Look at these rows: mistakes in the table, or cases the inputs do not describe. Try "
        "TableRegressor(target_scale='log') or GPRegressor(noise='input'), and do not read far intervals (99 % and "
        "beyond) literally.",
        "Look at these rows: mistakes in the table, or cases the columns do not describe. Try another --target-scale, "
        "and do not read far intervals (99 % and beyond) literally.",
    )


def check_bias(residuals: Array) -> Finding | None:
    """Predictions that are off in one direction on the whole.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=500)
        >>> check_bias(noise), check_bias(noise + 1.0).severity
        (None, 'warning')
    """
    if len(residuals) < 20:
        return None
    rmse = float(np.sqrt(np.mean(residuals**2)))
    bias, error = float(residuals.mean()), float(residuals.std()) / math.sqrt(len(residuals))
    if abs(bias) <= 4.0 * error or abs(bias) <= 0.15 * rmse:
        return None
    return Finding(
        "warning",
        f"Predictions are too {'low' if bias > 0 else 'high'} on the whole",
        f"The mean held-out residual is {shown(bias)} (standard error {shown(error, 2)}); the RMSE is {shown(rmse)}.",
        "Held-out rows differ from training rows: shuffle before splitting, or, if they are later in time, expect the "
        "same drift in use and update the model with recent rows.",
        "Held-out rows differ from training rows: if they are later in time, expect the same drift in use, and let the "
        "model take in recent rows with finitegp update.",
    )


def check_structured_residuals(panels: Sequence[ResidualPanel]) -> Finding | None:
    """Residuals whose local mean leaves zero along an input: the model misses a dependence on it."""
    from scipy.stats import chi2

    worst: dict[str, float] = {}
    for panel in panels:
        rows = panel.local_rows
        # Few rows may be close together by chance: an error is never below that of residuals of deviation one.
        error = np.maximum(panel.local_error, 1.0 / np.sqrt(rows))
        by_chance = float(chi2.sf(np.sum((panel.local_mean / error) ** 2), len(rows)))
        # Of the residuals' variance, what goes with the input; a bias of all rows is not meant.
        explained = panel.local_mean - np.average(panel.local_mean, weights=rows)
        excess = float(np.average(explained**2 - error**2, weights=rows))
        if excess > 0.3**2 and by_chance < _RARE / len(panels):
            worst[panel.name] = math.sqrt(excess)
    if not worst:
        return None
    return Finding(
        "warning",
        "Residuals depend on an input" if len(worst) == 1 else "Residuals depend on inputs",
        f"Along {listed(worst)}, local mean residuals are typically {shown(max(worst.values()), 2)} standard "
        "deviations off: see the section on residuals.",
        "The model is too stiff there: raise the effort, use more features or shorter length scales, or add an input "
        "that explains the pattern.",
        "The model is too stiff there: use --effort high, or add a column that explains the pattern.",
    )


def check_unknown_ground(inputs: Array, held_out_inputs: Array, names: Sequence[str]) -> Finding | None:
    """Held-out rows clearly outside of the range that was trained on, which chance puts hardly any row."""
    low, high = inputs.min(axis=0), inputs.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    beyond = np.maximum(low - held_out_inputs, held_out_inputs - high) / width
    outside = beyond > _CLEARLY_OUTSIDE
    share = float(outside.any(axis=1).mean())
    if share <= 0.1:
        return None
    worst = int(outside.mean(axis=0).argmax())
    return Finding(
        "warning",
        "Held-out rows lie outside of the trained range",
        f"{percent(share)} of the held-out rows have a value that no training row comes near, most often in "
        f"{names[worst]!r}, by up to {percent(float(beyond[:, worst].max()), 0)} of the trained range.",
        "Predictions there are extrapolations: train on rows that cover the range of use.",
    )
