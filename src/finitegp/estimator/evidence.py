"""The log density of the training targets, in their own units."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..automatic import AutoFit
from ..data import ArraySource
from ..errors import NumericalError
from ..likelihood import MarginalLikelihood, negative_log_marginal_likelihood

Array = npt.NDArray[np.float64]


def log_density(fit: AutoFit) -> float:
    """The exact log marginal likelihood from row sums alone.

    Raises:
        NumericalError: If the noise is so small that the sums cancel.
    """
    posterior = fit.fitted.posterior
    return _in_target_units(fit, negative_log_marginal_likelihood(posterior.statistics, posterior.noise_variance))


def log_density_or_none(fit: AutoFit) -> float | None:
    """The same; None if it cannot be trusted."""
    try:
        return log_density(fit)
    except NumericalError:
        return None


def log_density_of_rows(fit: AutoFit, inputs: Array, targets: Array, counts: Array | None) -> float | None:
    """The same while the rows are at hand, which helps where row sums cancel; None if it still cannot be trusted."""
    found = log_density_or_none(fit)
    if found is not None:
        return found
    data = ArraySource(fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets), counts=counts)
    try:
        return _in_target_units(fit, fit.fitted.model.likelihood(data))
    except NumericalError:
        return None


def _in_target_units(fit: AutoFit, found: MarginalLikelihood) -> float:
    return -found.total_nlml - found.num_data * math.log(float(fit.target_scaler.scale))
