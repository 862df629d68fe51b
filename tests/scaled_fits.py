"""Fits of one GP and of a stack of kernels, their rows, and their kernels by the textbook."""

import numpy as np
import torch
from sklearn.gaussian_process.kernels import RBF, Matern

from finitegp import FeatureGP
from finitegp.automatic import fit_auto
from finitegp.component import Component
from finitegp.data.scaling import Standardizer
from finitegp.features import FourierFeatures
from finitegp.scaled import ScaledGP

WILD = 7


def make_rows(count=120, seed=0):
    """Noise that depends on the first column, and one wild target."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 2))
    deviation = 0.05 + 0.5 * (inputs[:, 0] > 0)
    targets = 10.0 + 3.0 * (np.sin(2.0 * inputs[:, 1]) + deviation * random.normal(size=count))
    if seed == 0:
        targets[WILD] = 200.0
    return inputs, targets


COUNTS = 1.0 + np.arange(120) % 3


def make_stack():
    """Several kernels with a model of the spread, a variance outside, an outlier, and counts."""
    fit = fit_auto(*make_rows(), counts=COUNTS, effort="low", may_be_copies=False, settings={"trees": 20})
    assert len(fit.components) > 1
    assert fit.spread is not None
    assert fit.excess is not None
    assert len(fit.outliers) == 1
    return fit


def make_gaussian():
    """One GP of given features."""
    inputs, targets = make_rows(seed=1)
    scalers = Standardizer.fit(inputs), Standardizer.fit(targets)
    model = FeatureGP(FourierFeatures(2, 30, seed=0), noise_variance=0.2)
    fitted = model.condition((scalers[0].transform(inputs), scalers[1].transform(targets)))
    return ScaledGP((Component(fitted),), *scalers)


def same(one, other, **tolerance):
    """Whether two predictions are the same distribution."""
    for name in ("mean", "epistemic_variance", "noise_variance"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), **tolerance)
    for probability in (0.02, 0.7):
        torch.testing.assert_close(one.quantile(probability), other.quantile(probability), **tolerance)


def dense_covariance(component, one, other):
    """The kernel of a component from its hyperparameters, by scikit-learn."""
    constant, linear, *rest = component.fitted.model.feature_map.maps
    found = float(constant(torch.zeros(1, 2).double())[0, 0]) ** 2 + float(linear.magnitude) * one @ other.T
    for landmarks in rest:
        lengths = landmarks.log_length_scales.exp().numpy()
        kinds = {"rbf": RBF(lengths), "matern32": Matern(lengths, nu=1.5), "matern52": Matern(lengths, nu=2.5)}
        found = found + float(landmarks.log_variance.exp()) * kinds[landmarks.kernel](one, other)
    return found


def dense_rows(fit):
    """Scaled rows, repeated by their counts, and the diagonal of the noise: one where rows are trusted."""
    inputs, targets = make_rows()
    times = COUNTS.astype(int)
    scales = np.where(np.arange(120) == WILD, next(iter(fit.outliers.values())), 1.0)
    scaled = fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets), scales
    return tuple(np.repeat(each, times, axis=0) for each in scaled)
