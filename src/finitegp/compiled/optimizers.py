"""Adam and AdaDelta as torch has them, for loops that Numba compiles.

A parameter comes as four arrays: its values, the optimizer's two averages, and the number of steps. Averages without
entries mean that it is not trained.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit


class Rule(NamedTuple):
    """What an optimizer does with a gradient.

    Attributes:
        adam: Adam; otherwise AdaDelta.
        rate: The learning rate.
        first: Adam's first beta, AdaDelta's rho.
        second: Adam's second beta.
        epsilon: What is added to the root of the mean square.
        decay: Of the weights.
        decoupled: Whether weights decay by themselves, as in AdamW, or with the gradient.
        factor: Multiplies all gradients.
        least_variance: If positive, steps are in the noise variance itself and keep it at or above this; otherwise
            they are in its logarithm.
        least_log_noise: The logarithm of the noise variance is kept at or above this.
    """

    adam: bool
    rate: float
    first: float
    second: float
    epsilon: float
    decay: float
    decoupled: bool
    factor: float = 1.0
    least_variance: float = 0.0
    least_log_noise: float = -np.inf


@njit(cache=True, error_model="numpy")
def _adam(values, gradients, means, squares, count, rule):
    kind = values.dtype.type
    size = kind(rule.rate / (1.0 - rule.first**count))
    root = kind(1.0 / np.sqrt(1.0 - rule.second**count))
    first, second = kind(1.0 - rule.first), kind(rule.second)
    rest, epsilon, factor = kind(1.0 - rule.second), kind(rule.epsilon), kind(rule.factor)
    added = kind(0.0 if rule.decoupled else rule.decay)
    kept = kind(1.0 - rule.rate * rule.decay if rule.decoupled else 1.0)
    for i in range(len(values)):
        gradient = factor * gradients[i] + added * values[i]
        mean = means[i] + first * (gradient - means[i])
        square = second * squares[i] + rest * gradient * gradient
        means[i], squares[i] = mean, square
        values[i] = kept * values[i] - size * mean / (np.sqrt(square) * root + epsilon)


@njit(cache=True, error_model="numpy")
def _adadelta(values, gradients, squares, changes, rule):
    kind = values.dtype.type
    rho, rest, epsilon = kind(rule.first), kind(1.0 - rule.first), kind(rule.epsilon)
    rate, factor, added = kind(rule.rate), kind(rule.factor), kind(rule.decay)
    for i in range(len(values)):
        gradient = factor * gradients[i] + added * values[i]
        square = rho * squares[i] + rest * gradient * gradient
        change = np.sqrt(changes[i] + epsilon) / np.sqrt(square + epsilon) * gradient
        squares[i] = square
        changes[i] = rho * changes[i] + rest * change * change
        values[i] -= rate * change


@njit(cache=True, error_model="numpy")
def step_parameter(state, gradient, rule):
    """Move a parameter of any shape, if it is trained."""
    values, first, second, count = state
    if first.size == 0:
        return
    count[0] += 1
    flat, by, one, two = values.reshape(-1), gradient.reshape(-1), first.reshape(-1), second.reshape(-1)
    if rule.adam:
        _adam(flat, by, one, two, float(count[0]), rule)
    else:
        _adadelta(flat, by, one, two, rule)


@njit(cache=True, error_model="numpy")
def step_noise(log_noise, gradient, rule):
    """Move the noise variance, given the gradient per row in its logarithm."""
    values, first, second, count = log_noise
    if first.size == 0:
        return
    kind = values.dtype.type
    if rule.least_variance > 0.0:
        variance = np.exp(values)
        step_parameter((variance, first, second, count), np.full(1, kind(gradient)) / variance, rule)
        values[0] = np.log(max(variance[0], kind(rule.least_variance)))
    else:
        step_parameter(log_noise, np.full(1, kind(gradient)), rule)
        values[0] = max(values[0], kind(rule.least_log_noise))
