"""Exact Gaussian-process regression on finite features: mini-batches of any size, fixed memory, honest error bars."""

__version__ = "0.1.0.dev0"

from .algorithms import ExactGradient, exact_gradient
from .data import ArraySource, IterableSource
from .errors import DataError, NumericalError
from .full_batch import FullBatchResult, fit_full_batch
from .likelihood import MarginalLikelihood, NoiseOptimum, negative_log_marginal_likelihood, optimal_noise
from .model import FeatureGP, FittedGP
from .noise import ConstantNoise, InputNoise
from .posterior import Prediction, WeightPosterior
from .statistics import FeatureStatistics

__all__ = [
    "ArraySource",
    "ConstantNoise",
    "DataError",
    "ExactGradient",
    "FeatureGP",
    "FeatureStatistics",
    "FittedGP",
    "FullBatchResult",
    "InputNoise",
    "IterableSource",
    "MarginalLikelihood",
    "NoiseOptimum",
    "NumericalError",
    "Prediction",
    "WeightPosterior",
    "exact_gradient",
    "fit_full_batch",
    "negative_log_marginal_likelihood",
    "optimal_noise",
]
