"""Rows and fits in milliseconds, and names that a page must escape, for the tests of the report."""

from __future__ import annotations

import numpy as np

from finitegp import FeatureGP, ScaledGP
from finitegp.component import Component
from finitegp.data.scaling import Standardizer
from finitegp.features import ConcatenatedFeatures, ConstantFeatures, FourierFeatures, LinearFeatures

HOSTILE = "<script>alert(1)</script>"
HOSTILE_TARGET = "price \"in\" <b>£</b> & 'more'"


def make_fit(inputs, targets, record=None):
    """A GP on standardised rows, as ``fit_auto`` gives it, but in milliseconds."""
    inputs_scaler, target_scaler = Standardizer.fit(inputs), Standardizer.fit(targets)
    data = inputs_scaler.transform(inputs), target_scaler.transform(targets)
    columns = inputs.shape[1]
    features = ConcatenatedFeatures(
        FourierFeatures(columns, 128, length_scales=2.0 * columns**0.5, seed=0),
        LinearFeatures(columns),
        ConstantFeatures(),
    )
    model = FeatureGP(features, 0.1).double()
    model.optimize_noise(data)
    return ScaledGP((Component(model.condition(data)),), inputs_scaler, target_scaler, record=record or {})


def make_rows(rows, seed, columns=3):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns))
    targets = 100 + 10 * (np.sin(inputs[:, 0]) + 0.5 * inputs[:, -1] + 0.3 * random.normal(size=rows))
    return inputs, targets
