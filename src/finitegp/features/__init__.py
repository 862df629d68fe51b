"""Feature maps, ``(rows, input_dim) -> (rows, num_features)``; their inner product is the kernel."""

from __future__ import annotations

from .composition import ComposedFeatures, ConcatenatedFeatures, ConstantFeatures, count_features
from .embedding import PeriodicEmbedding
from .fourier import FourierFeatures
from .landmarks import LandmarkFeatures
from .network import LinearFeatures, MLPFeatures
from .quadrature import GaussLegendreFeatures

__all__ = [
    "ComposedFeatures",
    "ConcatenatedFeatures",
    "ConstantFeatures",
    "FourierFeatures",
    "GaussLegendreFeatures",
    "LandmarkFeatures",
    "LinearFeatures",
    "MLPFeatures",
    "PeriodicEmbedding",
    "count_features",
]
