"""Checks of the model itself: its features, its noise and its matrices."""

from __future__ import annotations

import math

from ..formatting import percent, shown
from .contents import Finding


def check_dead_features(dead: int, num_features: int) -> Finding | None:
    """Features that are zero on every row carry nothing: units of a network that have died.

    Weight decay on ReLU networks prunes units as a matter of course, so how many are left decides how bad it is.

    Example:
        >>> [check_dead_features(dead, 128).severity for dead in (126, 120, 64)], check_dead_features(3, 128)
        (['problem', 'warning', 'note'], None)
    """
    share, alive = dead / num_features, num_features - dead
    if share < 0.25:
        return None
    return Finding(
        "problem" if alive < 4 else "warning" if alive < 16 else "note",
        "Many features are dead",
        f"{dead} of {num_features} features ({percent(share, 0)}) are zero on every training row.",
        "Lower the learning rate or the weight decay, or use an activation that cannot die, as "
        "MLPFeatures(activation='gelu') has. If accuracy is good as it is, a narrower network will do as well and cost "
        "less.",
        "If accuracy is good as it is, nothing has to be done; otherwise try another --seed or --effort.",
    )


def check_collapsed_features(effective_dimension: float, num_features: int) -> Finding | None:
    """Many features that all mean the same: the kernel has collapsed onto a direction or two.

    Example:
        >>> check_collapsed_features(1.2, 128).severity, check_collapsed_features(60.0, 128)
        ('problem', None)
    """
    if num_features < 20 or effective_dimension >= 4.0:
        return None
    return Finding(
        "problem" if effective_dimension < 2.0 else "warning",
        "Features have collapsed",
        f"The {num_features} features act like {shown(effective_dimension, 2)}: the error bars can hardly tell known "
        "inputs from new ones.",
        "Lower the learning rate, train shorter, or use GPRegressor(feature_map='fourier'). Check whether the inputs "
        "carry information on the target at all: see the importance section.",
        "Check whether the inputs carry information on the target at all: see the importance section.",
    )


def check_noise_bound(
    relative_noise: float, floored_share: float = 0.0, r_squared: float | None = None
) -> Finding | None:
    """Noise that has run into its lower bound, or that has taken up the whole target.

    Args:
        relative_noise: Mean noise variance over the variance of the target.
        floored_share: The share of rows whose own noise is at the bound of its network.
        r_squared: What is explained of held-out rows: noise that depends on the row is no share of the variance.

    Example:
        >>> check_noise_bound(1e-9).severity, check_noise_bound(0.99).severity, check_noise_bound(0.1)
        ('problem', 'problem', None)
    """
    if relative_noise <= 1e-7:
        return Finding(
            "problem",
            "Noise is at its lower bound",
            f"The noise variance is {shown(relative_noise, 2)} of the target's variance: the model believes that "
            "targets have no noise at all.",
            "Look for a column that gives the target away, for repeated rows, or for targets made by a formula. If the "
            "target is truly free of noise, the error bars are only as good as the features.",
        )
    if relative_noise >= 0.97 and (r_squared is None or r_squared < 0.03):
        return Finding(
            "problem",
            "Noise explains everything",
            f"The noise variance is {percent(relative_noise, 0)} of the target's variance: nothing was learned from "
            "the inputs.",
            "Check that the right target was chosen and that rows of inputs and target belong together; add inputs "
            "that bear on the target; raise the effort.",
            "Check that the right --target was chosen and that rows of inputs and target belong together; add columns "
            "that bear on the target; use --effort high.",
        )
    if floored_share >= 0.05:
        return Finding(
            "warning",
            "Noise of some rows is at its lower bound",
            f"The predicted noise of {percent(floored_share)} of the held-out rows is as small as it may be.",
            "Look for repeated rows or few distinct targets there; use GPRegressor(noise='constant') if the error bars "
            "of such rows are too narrow.",
            "Look for repeated rows or few distinct targets there.",
        )
    return None


def check_conditioning(condition_number: float, jitter: float) -> Finding | None:
    """Matrices that floating point can no longer handle well.

    Example:
        >>> check_conditioning(1e15, 0.0).severity, check_conditioning(1e7, 0.0)
        ('problem', None)
    """
    if jitter == 0.0 and condition_number < 1e12:
        return None
    added = f", and {shown(jitter, 2)} had to be added to the diagonal to factorise it" if jitter > 0.0 else ""
    return Finding(
        "problem" if jitter > 0.0 or condition_number >= 1e14 else "warning",
        "Badly conditioned features",
        f"The condition number of the regularised Gram matrix is {condition_number:.1e}{added}; about "
        f"{_digits_left(condition_number)} of 16 digits are left.",
        "Scale inputs and target to order one, remove duplicate columns, use fewer features or a larger noise "
        "variance.",
        "Leave out duplicate columns with --drop.",
    )


def _digits_left(condition_number: float) -> int:
    return round(16.0 - math.log10(min(max(condition_number, 1.0), 1e16)))
