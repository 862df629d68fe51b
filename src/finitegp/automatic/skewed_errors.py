"""Two kinds of errors with different centres and scales: what makes a predictive distribution skewed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..error_tail import ErrorTail, with_tails
from ..predictive import StudentMixture, log_student
from .table import Array

# Where the search begins: a share of errors, and how far to either side it lies.
_SHARE, _OFFSET, _NEAR, _FAR = 0.3, 1.0, 0.8, 1.2
# Neither kind of errors is narrower or wider than this, in scales of what the errors were: targets with an atom would
# have a kind of their own without any width. Neither has a share of less than a hundredth.
_NARROWEST, _WIDEST, _MOST_ODDS = 0.05, 20.0, math.log(99.0)
_FEWEST = 40


class SkewedErrors(NamedTuple):
    """A share of errors with another centre and scale, in scales of a predictive distribution that knows one kind.

    Attributes:
        share: Of the second kind.
        offset: Its centre minus that of the first; the mean of both is zero.
        near: The factor on scales of the first kind.
        far: The factor on scales of the second kind.
    """

    share: float
    offset: float
    near: float
    far: float

    def tail(self, degrees_of_freedom: float, least_part: float = 0.0) -> ErrorTail:
        """Both kinds, as a component of a fit has them."""
        return ErrorTail(self.share, self.far, degrees_of_freedom, self.offset, self.near, least_part)

    def of(self, mixture: StudentMixture) -> StudentMixture:
        """The distribution with both kinds of errors in each component."""
        tails = [self.tail(freedom) for freedom in mixture.degrees_of_freedom[:, 0].tolist()]
        return with_tails(mixture, tails, np.ones((len(tails), 1)))


def choose_skew(mixture: StudentMixture, targets: Array, counts: Array) -> SkewedErrors | None:
    """Two kinds of errors around predictions of left-out rows, if these gain enough; otherwise None.

    Four parameters have to gain more than half the logarithm of the rows each, in nats in all (BIC).

    Example:
        >>> random = np.random.default_rng(0)
        >>> one = StudentMixture(np.ones(1), np.zeros((1, 300)), np.ones((1, 300)), np.array([[50.0]]))
        >>> choose_skew(one, random.normal(size=300), np.ones(300)) is None
        True
        >>> choose_skew(one, random.exponential(size=300) - 1.0, np.ones(300)).offset > 0.5
        True
    """
    rows = len(targets)
    if rows < _FEWEST:
        return None
    counts = counts / counts.mean()  # several measurements of one row have one mean, whose error they share
    without = float(counts @ mixture.log_density(targets))
    density, found = fit_skew(mixture, targets, counts)
    return found if density - without > 2.0 * math.log(rows) else None


def fit_skew(mixture: StudentMixture, targets: Array, counts: Array) -> tuple[float, SkewedErrors]:
    """Two kinds of errors with the best density, the better one of those that lie below and above, and its log."""
    starts = (SkewedErrors(_SHARE, side * _OFFSET, _NEAR, _FAR) for side in (1.0, -1.0))
    return max((_climb(mixture, targets, counts, start) for start in starts), key=lambda both: both[0])


def _climb(mixture: StudentMixture, targets: Array, counts: Array, start: SkewedErrors) -> tuple[float, SkewedErrors]:
    from scipy.optimize import minimize

    errors = (targets - mixture.means) / mixture.scales
    freedoms = np.broadcast_to(mixture.degrees_of_freedom, errors.shape)
    constants = np.log(mixture.weights)[:, None] - np.log(mixture.scales)
    total = float(counts.sum())

    def loss(place: Array) -> tuple[float, Array]:
        """The negative mean log density, and its gradient."""
        share, offset, scales = 1.0 / (1.0 + math.exp(-place[0])), place[1], np.exp(place[2:])
        shares, centres = np.array([1.0 - share, share]), offset * np.array([-share, 1.0 - share])
        z = (errors - centres[:, None, None]) / scales[:, None, None]
        logs = constants + log_student(z, freedoms) + np.log(shares / scales)[:, None, None]
        highest = logs.max(axis=(0, 1))
        belongs = np.exp(logs - highest)
        together = belongs.sum(axis=(0, 1))
        belongs *= counts / together
        # Student's t is a Gaussian whose variance is not known: rows far off count less.
        with np.errstate(invalid="ignore"):
            trust = np.where(np.isinf(freedoms), 1.0, (freedoms + 1.0) / (freedoms + np.square(z)))
        pulls = belongs * trust * z
        kinds, by_centre = belongs.sum(axis=(1, 2)), pulls.sum(axis=(1, 2)) / scales
        by_share = kinds[1] - share * kinds.sum() - share * (1.0 - share) * offset * by_centre.sum()
        by_scale = (pulls * z).sum(axis=(1, 2)) - kinds
        gradient = np.array([by_share, (1.0 - share) * by_centre[1] - share * by_centre[0], *by_scale])
        return -float(counts @ (np.log(together) + highest)) / total, -gradient / total

    first = np.array([math.log(start.share / (1.0 - start.share)), start.offset, *np.log(start[2:])])
    limits = [(-_MOST_ODDS, _MOST_ODDS), (-_WIDEST, _WIDEST), *[(math.log(_NARROWEST), math.log(_WIDEST))] * 2]
    found = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=limits)
    share, offset, near, far = (float(value) for value in found.x)
    skew = SkewedErrors(1.0 / (1.0 + math.exp(-share)), offset, math.exp(near), math.exp(far))
    return -float(found.fun) * total, skew
