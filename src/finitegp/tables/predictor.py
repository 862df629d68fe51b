"""``TablePredictor``: predictions for encoded rows in the target's own units, wider where a row holds something new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DataError, ModelFileError
from ..lite.tables import fill_unknown
from ..lite.target_scale import COVERAGES
from ..predictive import Prediction
from ..scaled import ScaledGP
from .encoder import TableEncoder
from .rows import TableRows
from .scored_rows import SCORED_COVERAGES, ScoredRows
from .target_scale import TargetScale

Array = npt.NDArray[np.float64]


class EncodedRows(NamedTuple):
    """Inputs of the fit, and for each column of the table whether a row holds there what no fit has seen."""

    inputs: Array
    unknown: npt.NDArray[np.bool_] | None = None


class JudgedRows(NamedTuple):
    """Rows in memory, what the encoder made of them, what is predicted on the scale of the model, and its scores."""

    rows: TableRows
    inputs: Array
    prediction: Prediction
    scored: ScoredRows
    seconds: float


@dataclass(frozen=True, eq=False)
class TablePredictor:
    """Predictive distributions of rows: :meth:`predict` gives them, and the others read them.

    A row with a category that the fit did not see, or with a gap where it had none, is predicted with values that it
    did see put in: mean and variance are those of the mixture, and the standard deviation is never below that of any of
    its parts. So the row is nowhere claimed to be better known than one of which everything is known.

    Attributes:
        fit: Predicts the scaled target.
        encoder: Made its inputs.
        scale: Of the target.
    """

    fit: ScaledGP
    encoder: TableEncoder
    scale: TargetScale

    def predict(self, rows: EncodedRows) -> Prediction:
        """The predictive distribution of each row, on the scale of the model."""
        prediction = _on_cpu(self.fit.predict(rows.inputs))
        if rows.unknown is None:
            return prediction
        which = np.flatnonzero(rows.unknown.any(axis=1))
        filled = fill_unknown(rows.inputs[which], rows.unknown[which], list(self.encoder.representatives()))
        parts = [_on_cpu(self.fit.predict(each)) for each in filled]
        means, stds = np.stack([part.mean for part in parts]), np.stack([part.std for part in parts])
        mean, std = prediction.mean.numpy().copy(), prediction.std.numpy().copy()
        together = np.sqrt(np.mean(np.square(stds), axis=0) + np.var(means, axis=0))
        mean[which] = means.mean(axis=0)
        std[which] = np.maximum.reduce([together, *stds, std[which]])
        return _moved(prediction, mean, std)

    def intervals(
        self, prediction: Prediction, coverages: Sequence[float], method: str = "predictive"
    ) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals in the target's units, ``(rows, coverages)`` each."""
        try:
            lower, upper = self.fit.interval_of(prediction, coverages, method=method)
        except ValueError as error:
            raise DataError(str(error)) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"What the model counted on rows kept aside makes no sense: {error}.") from None
        return self.scale.inverse(lower.numpy()), self.scale.inverse(upper.numpy())

    def moments(self, prediction: Prediction) -> tuple[Array, Array]:
        """Mean and standard deviation of a new observation, in the target's units."""
        if self.scale.name == "identity":
            return prediction.mean.numpy(), prediction.std.numpy()
        return self.scale.moments(*self.intervals(prediction, COVERAGES))

    def log_density(self, prediction: Prediction, targets: Array) -> Array:
        """The log density of observed targets, by their own unit; minus infinity where a target is impossible."""
        values = self.scale.forward(targets)
        possible = np.isfinite(values)
        standard = np.where(possible, values, prediction.mean.numpy())
        density = prediction.log_density(torch.from_numpy(standard)).numpy()
        density = density + self.scale.log_derivative(np.where(possible, targets, 1.0))
        return np.where(possible, density, -np.inf)

    def score(self, prediction: Prediction, targets: Array) -> ScoredRows:
        """Predictions, densities and intervals of rows whose targets are known, for scores."""
        lower, upper = self.intervals(prediction, (*COVERAGES, *SCORED_COVERAGES))
        own = slice(0, len(COVERAGES))
        identity = self.scale.name == "identity"
        mean, std = self.moments(prediction) if identity else self.scale.moments(lower[:, own], upper[:, own])
        return ScoredRows(mean, std, self.log_density(prediction, targets), lower, upper, targets)


def _on_cpu(prediction: Prediction) -> Prediction:
    mean, epistemic, noise = (
        each.detach().cpu() for each in (prediction.mean, prediction.epistemic_variance, prediction.noise_variance)
    )
    return Prediction(mean, epistemic, noise, mixture=prediction.mixture)


def _moved(prediction: Prediction, mean: Array, std: Array) -> Prediction:
    """The prediction with another mean and standard deviation for each row, and the same shape around them."""
    old, factor = prediction.mean.numpy(), std / prediction.std.numpy()
    mixture = prediction.mixture
    if mixture is not None:
        means = mean + (mixture.means - old) * factor
        mixture = replace(mixture, means=means, scales=mixture.scales * factor)
    square = torch.from_numpy(np.square(factor))
    return Prediction(
        mean=torch.from_numpy(mean),
        epistemic_variance=prediction.epistemic_variance * square,
        noise_variance=prediction.noise_variance * square,
        mixture=mixture,
    )
