"""Feature maps, ``(rows, input_dim) -> (rows, num_features)``; their inner product is the kernel."""

from __future__ import annotations

from .composition import ComposedFeatures, ConcatenatedFeatures, ConstantFeatures, count_features
from .embedding import PeriodicEmbedding
from .fourier import FourierFeatures
from .landmarks import LandmarkFeatures
from .network import LinearFeatures, MLPFeatures
from .quadrature import GaussLegendreFeatures
from .soft_clip import SoftClip

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
