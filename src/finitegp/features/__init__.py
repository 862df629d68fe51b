"""Feature maps, ``(rows, input_dim) -> (rows, num_features)``; their inner product is the kernel."""

from __future__ import annotations

from .columns import ConstantFeatures, LinearFeatures, PeriodicEmbedding, SoftClip
from .composition import ComposedFeatures, ConcatenatedFeatures, count_features
from .fourier import FourierFeatures
from .landmarks import LandmarkFeatures
from .network import MLPFeatures
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
    "SoftClip",
    "count_features",
]
