"""One step of each algorithm in a loop that Numba compiles on its first call and keeps beside this file.

Parameters and rules are those of :mod:`.optimizers`, layers and spectrum those of :mod:`.network`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .factors import add_gram, inverse_factor
from .network import kernel_features, network_features, step_features, step_weights
from .optimizers import step_noise


@njit(cache=True, error_model="numpy")
def descend(
    inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace, num_data,
    rule,
):  # fmt: skip
    """Move all parameters, given the features times the inverse Gram matrix, and the trace of the latter; the loss."""
    kind = inputs.dtype.type
    rows, size = features.shape
    noise = np.exp(float(log_noise[0][0]))
    residuals = np.dot(features, weights[0]) - targets
    loss = float(np.dot(residuals, residuals)) / (rows * noise)
    gradient = whitened
    for i in range(rows):
        factor = residuals[i] * kind(1.0 / noise)
        for j in range(size):
            gradient[i, j] = (gradient[i, j] + factor * weights[0][j]) * kind(1.0 / rows)
    step_weights(weights, features, residuals, noise, num_data, rule)
    step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, rule)
    step_noise(log_noise, 0.5 * ((num_data - size + noise * trace) / num_data - loss), rule)
    return loss


@njit(cache=True, error_model="numpy")
def step_given_inverse(inputs, targets, layers, spectrum, weights, log_noise, inverse, trace, num_data, rule):
    """A step at a fixed inverse of the Gram matrix: the loss, and the features before the step."""
    hidden, outputs = network_features(layers, inputs)
    features, angles = kernel_features(spectrum, outputs)
    whitened = np.dot(features, inverse)
    loss = descend(
        inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace,
        num_data, rule,
    )  # fmt: skip
    return loss, features


@njit(cache=True, error_model="numpy")
def minimax_step(
    inputs, targets, ascent_inputs, layers, spectrum, weights, log_noise, inverse, trace, grams, box, num_data, rule
):
    """The same with the box of Minimax, and the sums of both batches: the loss."""
    loss, features = step_given_inverse(
        inputs, targets, layers, spectrum, weights, log_noise, inverse, trace, num_data, rule
    )
    clamp_to_box(layers, spectrum, weights, box)
    add_gram(grams[0], features, 1.0, 1.0)
    add_gram(grams[1], kernel_features(spectrum, network_features(layers, ascent_inputs)[1])[0], 1.0, 1.0)
    return loss


@njit(cache=True, error_model="numpy")
def _clamp(state, limit):
    values = state[0].reshape(-1)
    if state[1].size:
        for i in range(len(values)):
            values[i] = -limit if values[i] < -limit else limit if values[i] > limit else values[i]


@njit(cache=True, error_model="numpy")
def clamp_to_box(layers, spectrum, weights, box):
    """Bring what is trained into the box."""
    limit = weights[0].dtype.type(box)
    _clamp(layers[0], limit)
    _clamp(layers[1], limit)
    _clamp(layers[2], limit)
    _clamp(layers[3], limit)
    _clamp(weights, limit)
    if spectrum is not None:
        _clamp(spectrum[1], limit)
        _clamp(spectrum[2], limit)


@njit(cache=True, error_model="numpy")
def scgd_step(inputs, targets, layers, spectrum, weights, log_noise, gram, num_data, rate, rule):
    """One step of SCGD: whether it was made, and its loss."""
    rows, size = len(inputs), len(gram)
    work, inverse = gram.copy(), np.empty_like(gram)
    if not inverse_factor(work, inverse):
        return False, 0.0
    noise = np.exp(float(log_noise[0][0]))
    hidden, outputs = network_features(layers, inputs)
    features, angles = kernel_features(spectrum, outputs)
    root = inverse.astype(inputs.dtype)
    trace = np.sum(np.square(inverse))
    whitened = np.dot(np.dot(features, root.T), root) if rows < size else np.dot(features, np.dot(root.T, root))
    loss = descend(
        inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace,
        num_data, rule,
    )  # fmt: skip
    add_gram(gram, features, 1.0 - rate, rate * num_data / rows)
    for i in range(size):
        gram[i, i] += rate * noise
    return True, loss


@njit(cache=True, error_model="numpy")
def bsgd_step(inputs, targets, layers, spectrum, log_noise, rule):
    """One step of BSGD: whether it was made, and its loss."""
    rows = len(inputs)
    noise = np.exp(float(log_noise[0][0]))
    hidden, outputs = network_features(layers, inputs)
    features, angles = kernel_features(spectrum, outputs)
    wide = features.astype(np.float64)
    covariance = np.dot(wide, wide.T)
    for i in range(rows):
        covariance[i, i] += noise
    root = np.empty_like(covariance)
    if not inverse_factor(covariance, root):
        return False, 0.0
    inverse = np.dot(root.T, root)
    solved = np.dot(inverse, targets.astype(np.float64))
    squares = 0.0
    trace = 0.0
    for i in range(rows):
        squares += solved[i] * solved[i]
        for j in range(rows):
            inverse[i, j] -= solved[i] * solved[j]
        trace += inverse[i, i]
    gradient = (np.dot(inverse, wide) / rows).astype(inputs.dtype)
    step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, rule)
    by_noise = 0.5 * noise / rows * trace
    step_noise(log_noise, by_noise, rule)
    return True, noise * squares / rows
