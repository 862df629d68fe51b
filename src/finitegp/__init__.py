"""Exact Gaussian-process regression on finite features: mini-batches of any size, fixed memory, honest error bars."""

__version__ = "0.1.0.dev0"

from typing import TYPE_CHECKING, Any

from .algorithms import BSGD, SCGD, Exact, ExactGradient, Lagged, Minimax, PaperMinimax, exact_gradient
from .data import ArraySource, IterableSource
from .errors import DataError, NumericalError
from .full_batch import FullBatchResult, fit_full_batch
from .likelihood import MarginalLikelihood, NoiseOptimum, negative_log_marginal_likelihood, optimal_noise
from .model import FeatureGP, FittedGP
from .noise import ConstantNoise, InputNoise
from .posterior import Prediction, WeightPosterior
from .run import TrainingRun
from .statistics import FeatureStatistics
from .training import train

if TYPE_CHECKING:
    from .estimator import GPRegressor

__all__ = [
    "BSGD",
    "SCGD",
    "ArraySource",
    "ConstantNoise",
    "DataError",
    "Exact",
    "ExactGradient",
    "FeatureGP",
    "FeatureStatistics",
    "FittedGP",
    "FullBatchResult",
    "GPRegressor",
    "InputNoise",
    "IterableSource",
    "Lagged",
    "MarginalLikelihood",
    "Minimax",
    "NoiseOptimum",
    "NumericalError",
    "PaperMinimax",
    "Prediction",
    "TrainingRun",
    "WeightPosterior",
    "exact_gradient",
    "fit_full_batch",
    "negative_log_marginal_likelihood",
    "optimal_noise",
    "train",
]


def __getattr__(name: str) -> Any:
    # scikit-learn takes most of a second to import, and many uses of this library do without.
    if name == "GPRegressor":
        from .estimator import GPRegressor

        return GPRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
