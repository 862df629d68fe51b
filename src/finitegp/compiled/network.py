"""Features of the standard network, or of Fourier features on it, forward and back, for loops that Numba compiles.

Parameters and rules are those of :mod:`.optimizers`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .optimizers import step_parameter


@njit(cache=True, error_model="numpy")
def _forward(inputs, weights, bias, rectified):
    np.dot(inputs, weights.T, rectified)
    zero = rectified.dtype.type(0.0)
    for i in range(rectified.shape[0]):
        for j in range(rectified.shape[1]):
            value = rectified[i, j] + bias[j]
            rectified[i, j] = zero if value <= zero else value  # NaN stays


@njit(cache=True, error_model="numpy")
def _backward(gradient, inputs, rectified, weights_gradient, bias_gradient):
    """Through the rectifier in place, then into the gradients of a layer."""
    zero = gradient.dtype.type(0.0)
    bias_gradient[:] = zero
    for i in range(gradient.shape[0]):
        for j in range(gradient.shape[1]):
            if not rectified[i, j] > zero:
                gradient[i, j] = zero
            bias_gradient[j] += gradient[i, j]
    np.dot(gradient.T, inputs, weights_gradient)


@njit(cache=True, error_model="numpy")
def step_network(layers, hidden, features, inputs, gradient, rule):
    """Push the gradient in the features back through both layers and move them; the gradient in the first layer."""
    weights_1, bias_1, weights_2, bias_2 = layers[0], layers[1], layers[2], layers[3]
    by_weights_1, by_bias_1 = np.empty_like(weights_1[0]), np.empty_like(bias_1[0])
    by_weights_2, by_bias_2 = np.empty_like(weights_2[0]), np.empty_like(bias_2[0])
    _backward(gradient, hidden, features, by_weights_2, by_bias_2)
    by_hidden = np.dot(gradient, weights_2[0])
    _backward(by_hidden, inputs, hidden, by_weights_1, by_bias_1)
    step_parameter(weights_1, by_weights_1, rule)
    step_parameter(weights_2, by_weights_2, rule)
    step_parameter(bias_1, by_bias_1, rule)
    step_parameter(bias_2, by_bias_2, rule)
    return by_hidden


@njit(cache=True, error_model="numpy")
def network_features(layers, inputs):
    """Hidden layer and features of a network of two layers."""
    hidden = np.empty((len(inputs), len(layers[1][0])), inputs.dtype)
    features = np.empty((len(inputs), len(layers[3][0])), inputs.dtype)
    _forward(inputs, layers[0][0], layers[1][0], hidden)
    _forward(hidden, layers[2][0], layers[3][0], features)
    return hidden, features


@njit(cache=True, error_model="numpy")
def kernel_features(spectrum, outputs):
    """The features of the kernel on the network's outputs: these themselves, or cosines and sines; and the angles."""
    if spectrum is None:
        return outputs, outputs
    kind = outputs.dtype.type
    frequencies, log_length, log_magnitude = spectrum[0], spectrum[1][0], spectrum[2][0]
    count = len(frequencies)
    amplitude = kind(np.sqrt(np.exp(log_magnitude[0]) / count))
    angles = np.dot(outputs, frequencies.T)
    angles *= kind(np.exp(-log_length[0]))
    features = np.empty((len(outputs), 2 * count), outputs.dtype)
    for i in range(len(outputs)):
        for j in range(count):
            features[i, j] = amplitude * np.cos(angles[i, j])
            features[i, count + j] = amplitude * np.sin(angles[i, j])
    return features, angles


@njit(cache=True, error_model="numpy")
def step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, rule):
    """Push the gradient in the kernel's features back to all parameters of the feature map and move them."""
    if spectrum is None:
        step_network(layers, hidden, outputs, inputs, gradient, rule)
        return
    kind = inputs.dtype.type
    frequencies, log_length, log_magnitude = spectrum
    count = len(frequencies)
    by_angles = np.empty_like(angles)
    by_length, by_magnitude = 0.0, 0.0
    for i in range(len(inputs)):
        for j in range(count):
            cosine, sine = features[i, j], features[i, count + j]
            by_cosine, by_sine = gradient[i, j], gradient[i, count + j]
            by_angles[i, j] = by_sine * cosine - by_cosine * sine
            by_length -= float(by_angles[i, j] * angles[i, j])
            by_magnitude += 0.5 * float(by_cosine * cosine + by_sine * sine)
    by_outputs = np.dot(by_angles, frequencies)
    by_outputs *= kind(np.exp(-log_length[0][0]))
    step_network(layers, hidden, outputs, inputs, by_outputs, rule)
    step_parameter(log_length, np.full(1, kind(by_length)), rule)
    step_parameter(log_magnitude, np.full(1, kind(by_magnitude)), rule)


@njit(cache=True, error_model="numpy")
def step_weights(weights, features, residuals, noise, num_data, rule):
    """Move the weights of the features, if they are trained, by the gradient ``Z'r / (b s) + w / n``."""
    if weights[1].size == 0:
        return
    kind = features.dtype.type
    gradient = np.dot(features.T, residuals) * kind(1.0 / (len(features) * noise))
    gradient += weights[0] * kind(1.0 / num_data)
    step_parameter(weights, gradient, rule)
