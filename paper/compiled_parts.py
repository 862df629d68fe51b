"""What the loops of :mod:`.compiled_steps` are made of: factors of matrices, AdaDelta, and networks with features.

A parameter comes as three arrays: its values and AdaDelta's averages of squared gradients and of squared changes.
"""

import numpy as np
from numba import njit

from .protocol import EPSILON, LEAST_NOISE_VARIANCE, RHO

# Sums may be taken in any order, so that they use vector instructions; NaN and infinity keep their meaning.
_SUMS = {"reassoc", "contract", "nsz"}
_BLOCK, _WIDE_BLOCK = 16, 128


@njit(cache=True, error_model="numpy", fastmath=_SUMS)
def _factorise_block(matrix, inverse, start, stop):
    """Cholesky of a diagonal block in place, and the inverse of its factor; False if it is not positive definite."""
    for i in range(start, stop):
        for j in range(start, i + 1):
            total = matrix[i, j]
            for k in range(start, j):
                total -= matrix[i, k] * matrix[j, k]
            if i == j:
                if not total > 0.0 or total > 1e300:  # NaN is not positive
                    return False
                matrix[i, i] = np.sqrt(total)
            else:
                matrix[i, j] = total / matrix[j, j]
    for i in range(start, stop):
        reciprocal = 1.0 / matrix[i, i]
        for j in range(start, i):
            inverse[i, j] = 0.0
        for k in range(start, i):
            factor = -matrix[i, k] * reciprocal
            for j in range(start, k + 1):
                inverse[i, j] += factor * inverse[k, j]
        inverse[i, i] = reciprocal
    return True


@njit(cache=True, error_model="numpy")
def inverse_factor(matrix, inverse):
    """``L^-1`` into ``inverse`` for ``L L' = matrix``, which is overwritten; False if it is not positive definite."""
    size = len(matrix)
    block = _BLOCK if size <= _WIDE_BLOCK else _WIDE_BLOCK
    inverse[:] = 0.0
    for start in range(0, size, block):
        stop = min(start + block, size)
        if start:
            row = np.ascontiguousarray(matrix[start:stop, :start])
            below = np.ascontiguousarray(matrix[start:, :start])
            matrix[start:, start:stop] -= np.dot(below, row.T)
        if block == _BLOCK:
            if not _factorise_block(matrix, inverse, start, stop):
                return False
        else:
            work, found = matrix[start:stop, start:stop].copy(), np.empty((stop - start, stop - start), matrix.dtype)
            if not inverse_factor(work, found):
                return False
            inverse[start:stop, start:stop] = found
        corner = np.ascontiguousarray(inverse[start:stop, start:stop])
        if stop < size:
            matrix[stop:, start:stop] = np.dot(np.ascontiguousarray(matrix[stop:, start:stop]), corner.T)
        if start:
            earlier = np.ascontiguousarray(inverse[:start, :start])
            inverse[start:stop, :start] = np.dot(corner, np.dot(row, earlier))
            inverse[start:stop, :start] *= -1.0
    return True


@njit(cache=True, error_model="numpy")
def _adadelta(values, gradients, squares, changes, factor, learning_rate):
    """One step of AdaDelta on ``factor`` times the gradients."""
    kind = values.dtype.type
    rho, rest, epsilon = kind(RHO), kind(1.0 - RHO), kind(EPSILON)
    rate, factor = kind(learning_rate), kind(factor)
    for i in range(len(values)):
        gradient = factor * gradients[i]
        square = rho * squares[i] + rest * gradient * gradient
        change = np.sqrt(changes[i] + epsilon) / np.sqrt(square + epsilon) * gradient
        squares[i] = square
        changes[i] = rho * changes[i] + rest * change * change
        values[i] -= rate * change


@njit(cache=True, error_model="numpy")
def step_parameter(state, gradient, factor, learning_rate):
    """The same for a parameter of any shape."""
    values, squares, changes = state
    _adadelta(values.reshape(-1), gradient.reshape(-1), squares.reshape(-1), changes.reshape(-1), factor, learning_rate)


@njit(cache=True, error_model="numpy")
def step_noise(log_noise, squares, changes, gradient, num_data, learning_rate):
    """AdaDelta on the noise variance itself, given the gradient per row in its logarithm."""
    kind = log_noise.dtype.type
    variance = np.exp(log_noise)
    gradients = np.full(1, kind(gradient)) / variance
    _adadelta(variance, gradients, squares, changes, num_data, learning_rate)
    log_noise[0] = np.log(max(variance[0], kind(LEAST_NOISE_VARIANCE)))


@njit(cache=True, error_model="numpy")
def _forward(inputs, weights, bias, rectified):
    np.dot(inputs, weights.T, rectified)
    zero = rectified.dtype.type(0.0)
    for i in range(rectified.shape[0]):
        for j in range(rectified.shape[1]):
            rectified[i, j] = max(rectified[i, j] + bias[j], zero)


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
def step_network(layers, hidden, features, inputs, gradient, learning_rate, num_data):
    """Push the gradient in the features back through both layers and move them; the gradient in the first layer."""
    weights_1, bias_1, weights_2, bias_2 = layers[0], layers[1], layers[2], layers[3]
    by_weights_1, by_bias_1 = np.empty_like(weights_1[0]), np.empty_like(bias_1[0])
    by_weights_2, by_bias_2 = np.empty_like(weights_2[0]), np.empty_like(bias_2[0])
    _backward(gradient, hidden, features, by_weights_2, by_bias_2)
    by_hidden = np.dot(gradient, weights_2[0])
    _backward(by_hidden, inputs, hidden, by_weights_1, by_bias_1)
    step_parameter(weights_1, by_weights_1, num_data, learning_rate)
    step_parameter(weights_2, by_weights_2, num_data, learning_rate)
    step_parameter(bias_1, by_bias_1, num_data, learning_rate)
    step_parameter(bias_2, by_bias_2, num_data, learning_rate)
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
def step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, learning_rate, num_data):
    """Push the gradient in the kernel's features back to all parameters of the feature map and move them."""
    if spectrum is None:
        step_network(layers, hidden, outputs, inputs, gradient, learning_rate, num_data)
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
    step_network(layers, hidden, outputs, inputs, by_outputs, learning_rate, num_data)
    step_parameter(log_length, np.full(1, kind(by_length)), num_data, learning_rate)
    step_parameter(log_magnitude, np.full(1, kind(by_magnitude)), num_data, learning_rate)


@njit(cache=True, error_model="numpy")
def step_weights(weights, features, residuals, noise, num_data, learning_rate):
    """AdaDelta on the weights of the features: gradient ``Z'r / (b s) + w / n``."""
    kind = features.dtype.type
    gradient = np.dot(features.T, residuals) * kind(1.0 / (len(features) * noise))
    gradient += weights[0] * kind(1.0 / num_data)
    step_parameter(weights, gradient, num_data, learning_rate)
