"""Exact Gaussian-process regression on finite features: mini-batches of any size, fixed memory, honest error bars.

Everything that the pages show can be imported from here. A name is loaded when it is first used: PyTorch and
scikit-learn take seconds to import, and ``finitegp --version`` should not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from .algorithms import BSGD, SCGD, Exact, ExactGradient, Lagged, Minimax, PaperMinimax, exact_gradient
    from .automatic import fit_source, fit_within_memory
    from .callbacks import Checkpoint, ExactNLML, JsonLinesLog, ProgressBar, Validation
    from .data import ArraySource, IterableSource, NpySource, ScaledSource, Scaling, open_spool, spool
    from .errors import DataError, FeatureMapError, ModelFileError, NumericalError
    from .estimator import GPRegressor, as_regressor
    from .features import ComposedFeatures, FourierFeatures, GaussLegendreFeatures, LinearFeatures, MLPFeatures
    from .full_batch import FullBatchResult, fit_full_batch
    from .likelihood import MarginalLikelihood, NoiseOptimum, negative_log_marginal_likelihood, optimal_noise
    from .memory import plan_memory, return_freed_memory
    from .metrics import score
    from .model import FeatureGP, FittedGP
    from .noise import ConstantNoise, InputNoise
    from .posterior import WeightPosterior
    from .predictive import Prediction
    from .report import gather_contents, write_report
    from .run import TrainingRun
    from .scaled import ScaledGP
    from .schedules import cosine_decay, make_optimizer, theory_decay
    from .sites import SiteStatistics
    from .stages import resumable
    from .statistics import FeatureStatistics
    from .tables.encoder import TableEncoder
    from .tables.model import TableRegressor
    from .tables.reader import TableReader
    from .tables.scored_rows import coverage_scorer, crps_scorer, nlpd_scorer
    from .tables.source import TableSource
    from .torchrun import join_ranks
    from .training import train

#: Where each public name is.
_PLACES = {
    "algorithms": "BSGD SCGD Exact ExactGradient Lagged Minimax PaperMinimax exact_gradient",
    "automatic": "fit_source fit_within_memory",
    "callbacks": "Checkpoint ExactNLML JsonLinesLog ProgressBar Validation",
    "data": "ArraySource IterableSource NpySource ScaledSource Scaling open_spool spool",
    "tables.encoder": "TableEncoder",
    "tables.source": "TableSource",
    "tables.reader": "TableReader",
    "errors": "DataError FeatureMapError ModelFileError NumericalError",
    "estimator": "GPRegressor as_regressor",
    "features": "ComposedFeatures FourierFeatures GaussLegendreFeatures LinearFeatures MLPFeatures",
    "full_batch": "FullBatchResult fit_full_batch",
    "likelihood": "MarginalLikelihood NoiseOptimum negative_log_marginal_likelihood optimal_noise",
    "memory": "plan_memory return_freed_memory",
    "metrics": "score",
    "model": "FeatureGP FittedGP",
    "noise": "ConstantNoise InputNoise",
    "posterior": "WeightPosterior",
    "predictive": "Prediction",
    "report": "gather_contents write_report",
    "run": "TrainingRun",
    "scaled": "ScaledGP",
    "schedules": "cosine_decay make_optimizer theory_decay",
    "sites": "SiteStatistics",
    "stages": "resumable",
    "statistics": "FeatureStatistics",
    "tables.model": "TableRegressor",
    "tables.scored_rows": "coverage_scorer crps_scorer nlpd_scorer",
    "torchrun": "join_ranks",
    "training": "train",
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
