"""The exact posterior over the weights, and the predictions that follow from it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .arguments import check_arguments, check_at_least_one, check_noise_variance
from .errors import DataError, NumericalError
from .likelihood import regularized_gram_factor
from .predictive import Prediction
from .statistics import FeatureStatistics

# Of differences of sums, relative to the sums.
_ROUNDING = 1e-8


@check_arguments
class WeightPosterior:
    """The exact posterior ``w | y ~ N(F^-1 c, s F^-1)`` over the weights, from statistics alone.

    Adding rows, forgetting rows and merging two data sets are sums of statistics and one factorisation: their cost
    does not depend on how many rows there are.

    Args:
        statistics: The row sums; kept, so that rows can be added and removed later.
        noise_variance: The noise variance ``s``.

    Example:
        >>> features = torch.eye(2, dtype=torch.float64)
        >>> statistics = FeatureStatistics.from_batch(features, torch.tensor([1.0, 2.0]))
        >>> posterior = WeightPosterior(statistics, noise_variance=1.0)
        >>> torch.testing.assert_close(posterior.weight_mean[:, 0], torch.tensor([0.5, 1.0]).double())
        >>> torch.testing.assert_close(posterior.predict(features).variance, torch.tensor([1.5, 1.5]).double())
    """

    def __init__(self, statistics: FeatureStatistics, noise_variance: float) -> None:
        self.statistics = statistics
        self.noise_variance = check_noise_variance(noise_variance)
        self.factor = regularized_gram_factor(statistics, self.noise_variance)
        self.weight_mean = self.factor.solve(statistics.projected_targets)

    @property
    def num_features(self) -> int:
        """The number of features ``d``."""
        return self.statistics.num_features

    @property
    def weight_covariance(self) -> Tensor:
        """``(d, d)`` covariance of the weights of each target, ``s F^-1``."""
        return self.noise_variance * self.factor.inverse()

    def predict(
        self,
        features: Tensor,
        log_noise_scale: Tensor | None = None,
        *,
        unseen_variance: Tensor | None = None,
        return_covariance: bool = False,
    ) -> Prediction:
        """Predict new observations from their features.

        Args:
            features: ``(rows, d)``.
            log_noise_scale: ``(rows,)`` logarithm of each row's noise scale; None for one.
            unseen_variance: ``(rows,)`` variance of the function that these features do not have; None for zero.
            return_covariance: Also compute the ``(rows, rows)`` covariance of the noise-free function.
        """
        features = self._check_features(features)
        mean = features @ self.weight_mean
        half = self.factor.half_solve(features.mT)
        epistemic = self.noise_variance * half.square().sum(dim=0)
        noise = features.new_full((len(features),), self.noise_variance)
        if log_noise_scale is not None:
            noise = noise * log_noise_scale.detach().to(features).exp()
            if not bool(torch.isfinite(noise).all()):
                raise DataError("log_noise_scale must be finite, and not so large that its exponential is no number.")
        return Prediction(
            mean=mean[:, 0] if mean.shape[1] == 1 else mean,
            epistemic_variance=epistemic if unseen_variance is None else epistemic + unseen_variance.to(epistemic),
            noise_variance=noise,
            covariance=self.noise_variance * (half.mT @ half) if return_covariance else None,
        )

    def sample_weights(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws from the posterior, ``(num_samples, d, t)``: each is a plain linear function of the features."""
        check_at_least_one(num_samples=num_samples)
        d, t = self.weight_mean.shape
        normal = torch.randn(d, num_samples * t, dtype=torch.float64, generator=generator)
        deviations = math.sqrt(self.noise_variance) * self.factor.transposed_half_solve(normal.to(self.weight_mean))
        return self.weight_mean + deviations.reshape(d, num_samples, t).permute(1, 0, 2)

    def leave_one_out(
        self,
        features: Tensor,
        targets: Tensor,
        log_noise_scale: Tensor | None = None,
        *,
        unseen_variance: Tensor | None = None,
    ) -> Prediction:
        """The prediction for each training row by the posterior without that row, in closed form.

        With leverage ``h = z'F^-1 z / v`` and residual ``r = y - z'w`` the prediction without the row has mean
        ``y - r / (1 - h)`` and variance ``s v / (1 - h)``. The rows must be among those in the statistics.

        Args:
            features: ``(rows, d)`` of training rows.
            targets: ``(rows,)`` or ``(rows, t)`` their targets.
            log_noise_scale: ``(rows,)`` or None.
            unseen_variance: As in :meth:`predict`.
        """
        inside = self.predict(features, log_noise_scale)
        if targets.numel() != inside.mean.numel():
            raise DataError(f"targets have shape {tuple(targets.shape)}, but there are {len(inside.mean)} rows.")
        targets = targets.to(inside.mean).reshape(inside.mean.shape)
        left = 1.0 - inside.epistemic_variance / inside.noise_variance  # 1 - h
        if not bool((left > 0.0).all()):
            row = int((left <= 0.0).nonzero()[0])
            raise NumericalError(
                f"Row {row} has leverage 1 - {float(left[row]):.1e}: either it is not among the training rows, or the "
                f"noise variance {self.noise_variance:.3g} is too small for floating point."
            )
        per_target = left if inside.mean.ndim == 1 else left[:, None]
        epistemic = inside.epistemic_variance / left
        return Prediction(
            mean=targets - (targets - inside.mean) / per_target,
            epistemic_variance=epistemic if unseen_variance is None else epistemic + unseen_variance.to(epistemic),
            noise_variance=inside.noise_variance,
        )

    def update(self, statistics: FeatureStatistics) -> WeightPosterior:
        """The posterior with more rows."""
        return WeightPosterior(self.statistics + statistics, self.noise_variance)

    def forget(self, statistics: FeatureStatistics) -> WeightPosterior:
        """The posterior without some of its rows, as if they had never been seen.

        Raises:
            DataError: If no rows could have the sums that would remain, because these were not among them.
        """
        remaining = self.statistics - statistics
        lost = remaining.gram.diagonal() < -_ROUNDING * self.statistics.gram.diagonal().max()
        if bool(lost.any()):
            raise _not_among(f"feature {int(lost.nonzero()[0])} would have a negative sum of squares")
        try:
            found = WeightPosterior(remaining, self.noise_variance)
        except NumericalError:
            raise _not_among("the row sums without them are not positive definite") from None
        # Squared residuals with those of the prior: never negative, whatever the rows.
        residuals = remaining.target_sum_of_squares - (remaining.projected_targets * found.weight_mean).sum(dim=0)
        if bool((residuals < -_ROUNDING * self.statistics.target_sum_of_squares).any()):
            raise _not_among("the targets of the others would have a negative sum of squared residuals")
        return found

    def merge(self, other: WeightPosterior) -> WeightPosterior:
        """The posterior of both data sets together; the feature maps must be the same."""
        if not math.isclose(self.noise_variance, other.noise_variance, rel_tol=1e-12):
            raise DataError(
                "Posteriors with different noise variances cannot be merged: "
                f"{self.noise_variance!r} and {other.noise_variance!r}."
            )
        return self.update(other.statistics)

    def _check_features(self, features: Tensor) -> Tensor:
        if features.shape[1:] != self.weight_mean.shape[:1]:
            raise DataError(f"features must have shape (rows, {self.num_features}), but have {tuple(features.shape)}.")
        return features.detach().to(self.weight_mean)


def _not_among(why: str) -> DataError:
    return DataError(
        f"The rows to forget are not among the rows of this posterior: {why}. Pass exactly the rows, targets and "
        "weights that were added, once."
    )
