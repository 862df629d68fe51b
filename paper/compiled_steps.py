"""The loops of :mod:`paper.fused`, compiled by Numba on their first call and kept beside this file.

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
def _step(state, gradient, factor, learning_rate):
    """The same for a parameter of any shape."""
    values, squares, changes = state
    _adadelta(values.reshape(-1), gradient.reshape(-1), squares.reshape(-1), changes.reshape(-1), factor, learning_rate)


@njit(cache=True, error_model="numpy")
def _step_noise(log_noise, squares, changes, gradient, num_data, learning_rate):
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
def _step_network(layers, hidden, features, inputs, gradient, learning_rate, num_data):
    """Push the gradient in the features back through both layers and move them; the gradient in the first layer."""
    weights_1, bias_1, weights_2, bias_2 = layers[0], layers[1], layers[2], layers[3]
    by_weights_1, by_bias_1 = np.empty_like(weights_1[0]), np.empty_like(bias_1[0])
    by_weights_2, by_bias_2 = np.empty_like(weights_2[0]), np.empty_like(bias_2[0])
    _backward(gradient, hidden, features, by_weights_2, by_bias_2)
    by_hidden = np.dot(gradient, weights_2[0])
    _backward(by_hidden, inputs, hidden, by_weights_1, by_bias_1)
    _step(weights_1, by_weights_1, num_data, learning_rate)
    _step(weights_2, by_weights_2, num_data, learning_rate)
    _step(bias_1, by_bias_1, num_data, learning_rate)
    _step(bias_2, by_bias_2, num_data, learning_rate)
    return by_hidden


@njit(cache=True, error_model="numpy")
def _features(layers, inputs):
    hidden = np.empty((len(inputs), len(layers[1][0])), inputs.dtype)
    features = np.empty((len(inputs), len(layers[3][0])), inputs.dtype)
    _forward(inputs, layers[0][0], layers[1][0], hidden)
    _forward(hidden, layers[2][0], layers[3][0], features)
    return hidden, features


@njit(cache=True, error_model="numpy")
def _kernel_features(spectrum, outputs):
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
def _step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, learning_rate, num_data):
    """Push the gradient in the kernel's features back to all parameters of the feature map and move them."""
    if spectrum is None:
        _step_network(layers, hidden, outputs, inputs, gradient, learning_rate, num_data)
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
    _step_network(layers, hidden, outputs, inputs, by_outputs, learning_rate, num_data)
    _step(log_length, np.full(1, kind(by_length)), num_data, learning_rate)
    _step(log_magnitude, np.full(1, kind(by_magnitude)), num_data, learning_rate)


@njit(cache=True, error_model="numpy")
def _step_weights(weights, features, residuals, noise, num_data, learning_rate):
    """AdaDelta on the weights of the features: gradient ``Z'r / (b s) + w / n``."""
    kind = features.dtype.type
    gradient = np.dot(features.T, residuals) * kind(1.0 / (len(features) * noise))
    gradient += weights[0] * kind(1.0 / num_data)
    _step(weights, gradient, num_data, learning_rate)


@njit(cache=True, error_model="numpy")
def _descend(
    inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace, num_data,
    learning_rate,
):  # fmt: skip
    """Move all parameters by the gradient of SCGD, given the features times the inverse and its trace; the loss."""
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
    _step_weights(weights, features, residuals, noise, num_data, learning_rate)
    _step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, learning_rate, num_data)
    by_noise = 0.5 * ((num_data - size + noise * trace) / num_data - loss)
    _step_noise(log_noise[0], log_noise[1], log_noise[2], by_noise, num_data, learning_rate)
    return loss


@njit(cache=True, error_model="numpy")
def scgd_step(inputs, targets, layers, spectrum, weights, log_noise, gram, num_data, rate, learning_rate):
    """One step of SCGD: whether it was made, and its loss."""
    rows, size = len(inputs), len(gram)
    work, inverse = gram.copy(), np.empty_like(gram)
    if not inverse_factor(work, inverse):
        return False, 0.0
    noise = np.exp(float(log_noise[0][0]))
    hidden, outputs = _features(layers, inputs)
    features, angles = _kernel_features(spectrum, outputs)
    root = inverse.astype(inputs.dtype)
    trace = np.sum(np.square(inverse))
    whitened = np.dot(np.dot(features, root.T), root)
    wide = features.astype(np.float64)
    loss = _descend(
        inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace,
        num_data, learning_rate,
    )  # fmt: skip
    gram *= 1.0 - rate
    gram += np.dot(wide.T, wide) * (rate * num_data / rows)
    for i in range(size):
        gram[i, i] += rate * noise
    return True, loss


@njit(cache=True, error_model="numpy")
def scgd_window_step(
    inputs, targets, layers, spectrum, weights, log_noise, remembered, row_weights, products, tracked_noise, first,
    num_data, rate, learning_rate,
):  # fmt: skip
    """One step of SCGD by the rows that the tracked matrix remembers: whether it was made, and its loss.

    The matrix is ``s I + sum_j w_j u_j u_j'``; ``products`` holds the ``u_j'u_k``. Rows that were not filled yet are
    zero and have no weight. The batch takes the places from ``first`` on, of a batch that is forgotten.
    """
    rows, size = len(inputs), remembered.shape[1]
    noise, spread = np.exp(float(log_noise[0][0])), tracked_noise[0]
    hidden, outputs = _features(layers, inputs)
    features, angles = _kernel_features(spectrum, outputs)
    wide = features.astype(np.float64)
    count = len(remembered)
    diagonal = np.empty(count)
    work, root = products.copy(), np.empty_like(products)
    for i in range(count):
        diagonal[i] = spread / row_weights[i] if row_weights[i] > 0.0 else 1.0
        work[i, i] += diagonal[i]
    if not inverse_factor(work, root):
        return False, 0.0
    trace = float(size - count)
    for i in range(count):
        for j in range(i + 1):
            trace += root[i, j] * root[i, j] * diagonal[j]
    trace /= spread
    cross = np.dot(remembered, wide.T)
    solved = np.dot(root.T, np.dot(root, cross))
    whitened = ((wide - np.dot(solved.T, remembered)) / spread).astype(inputs.dtype)
    loss = _descend(
        inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace,
        num_data, learning_rate,
    )  # fmt: skip
    tracked_noise[0] = (1.0 - rate) * spread + rate * noise
    row_weights *= 1.0 - rate
    last = first + rows
    remembered[first:last] = wide
    row_weights[first:last] = rate * num_data / rows
    products[:, first:last] = cross
    products[first:last, :] = cross.T
    products[first:last, first:last] = np.dot(wide, wide.T)
    return True, loss


@njit(cache=True, error_model="numpy")
def bsgd_step(inputs, targets, layers, spectrum, log_noise, num_data, learning_rate):
    """One step of BSGD: whether it was made, and its loss."""
    rows = len(inputs)
    noise = np.exp(float(log_noise[0][0]))
    hidden, outputs = _features(layers, inputs)
    features, angles = _kernel_features(spectrum, outputs)
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
    _step_features(layers, spectrum, hidden, outputs, features, angles, inputs, gradient, learning_rate, num_data)
    by_noise = 0.5 * noise / rows * trace
    _step_noise(log_noise[0], log_noise[1], log_noise[2], by_noise, num_data, learning_rate)
    return True, noise * squares / rows


@njit(cache=True, error_model="numpy")
def svgp_step(
    inputs, targets, layers, inducing, mean, root, log_noise, jitter, least_variance, num_data, learning_rate
):  # fmt: skip
    """One step of SVGP with the linear kernel: whether it was made, and its loss.

    With ``R`` the inverse factor of ``K_uu`` and ``A = R K_uf``, row i has mean ``A_i'm`` and variance
    ``k_ii - |A_i|^2 + |T'A_i|^2`` for ``q = N(m, TT')``. The gradient ``G`` in ``A`` gives ``R'G`` in ``K_uf`` and
    ``R' P(-GA') R`` in ``K_uu``, where ``P`` keeps the lower triangle and half of the diagonal.
    """
    kind = inputs.dtype.type
    rows, count = len(inputs), len(inducing[0])
    noise = np.exp(float(log_noise[0][0]))
    everything = np.concatenate((inducing[0], inputs))
    hidden, features = _features(layers, everything)
    at_points, at_rows = features[:count], features[count:]
    covariance = np.dot(at_points, at_points.T).astype(np.float64)
    for i in range(count):
        covariance[i, i] += jitter
    inverse = np.empty_like(covariance)
    if not inverse_factor(covariance, inverse):
        return False, 0.0
    whitened = np.dot(inverse, np.dot(at_points, at_rows.T).astype(np.float64))
    narrow = whitened.astype(inputs.dtype)
    lower = np.tril(root[0])
    spread = np.dot(lower.T, narrow)
    residuals = np.dot(narrow.T, mean[0]) - targets
    by_whitened = np.dot(lower, spread) - narrow
    scale = kind(1.0 / (rows * noise))
    squares, variances = 0.0, 0.0
    counted = np.empty(rows, inputs.dtype)  # zero for rows whose variance is at its least value
    for i in range(rows):
        variance = kind(jitter)
        for j in range(features.shape[1]):
            variance += at_rows[i, j] * at_rows[i, j]
        for j in range(count):
            variance += spread[j, i] * spread[j, i] - narrow[j, i] * narrow[j, i]
        counted[i] = kind(1.0) if variance >= kind(least_variance) else kind(0.0)
        variances += max(float(variance), least_variance)
        squares += float(residuals[i]) ** 2
        for j in range(count):
            by_whitened[j, i] = scale * (mean[0][j] * residuals[i] + by_whitened[j, i] * counted[i])
            narrow[j, i] *= counted[i] * scale
    wide = by_whitened.astype(np.float64)
    by_covariance = -np.dot(wide, whitened.T)
    for i in range(count):
        by_covariance[i, i] *= 0.5
        by_covariance[i, i + 1 :] = 0.0
    by_covariance = np.dot(inverse.T, np.dot(by_covariance, inverse))
    across = np.dot(inverse.T, wide).astype(inputs.dtype)
    gradient = np.empty_like(features)
    gradient[:count] = np.dot((by_covariance + by_covariance.T).astype(inputs.dtype), at_points)
    gradient[:count] += np.dot(across, at_rows)
    gradient[count:] = np.dot(across.T, at_points)
    for i in range(rows):
        for j in range(features.shape[1]):
            gradient[count + i, j] += scale * counted[i] * at_rows[i, j]
    share = kind(1.0 / num_data)
    by_mean = np.dot(whitened.astype(inputs.dtype), residuals) * scale + mean[0] * share
    by_root = np.tril(np.dot(narrow, spread.T) + lower * share)
    for i in range(count):
        by_root[i, i] -= share / lower[i, i]
    weights_1 = layers[0][0].copy()
    by_hidden = _step_network(layers, hidden, features, everything, gradient, learning_rate, num_data)
    _step(inducing, np.dot(by_hidden[:count], weights_1), num_data, learning_rate)
    _step(mean, by_mean, num_data, learning_rate)
    _step(root, by_root, num_data, learning_rate)
    by_noise = 0.5 * (1.0 - (squares + variances) / (rows * noise))
    _step_noise(log_noise[0], log_noise[1], log_noise[2], by_noise, num_data, learning_rate)
    return True, squares / (rows * noise)


@njit(cache=True, error_model="numpy")
def minimax_step(
    inputs, targets, dual_inputs, layers, weights, log_noise, estimate, dual, inverse, num_data, penalty, box,
    learning_rate,
):  # fmt: skip
    """One step of the paper's Minimax, descent and ascent: the loss, and whether eigenvalues had to be raised."""
    kind = inputs.dtype.type
    rows, size = len(inputs), len(inverse)
    noise = np.exp(float(log_noise[0][0]))
    hidden, features = _features(layers, inputs)
    norm = np.sqrt(np.sum(np.square(estimate[0])))
    if not np.isfinite(norm):
        return np.nan, False
    ratio = penalty / norm
    factor = -ratio / num_data
    multiplier = np.empty((size, size), inputs.dtype)
    along, trace = 0.0, 0.0
    for i in range(size):
        trace += dual[0][i, i]
        for j in range(size):
            multiplier[i, j] = kind(dual[0][i, j]) * kind(factor)
            along += dual[0][i, j] * estimate[0][i, j]
    gradient = np.dot(features, multiplier)
    residuals = np.dot(features, weights[0]) - targets
    loss = float(np.dot(residuals, residuals)) / (rows * noise)
    leverages = 0.0
    for i in range(rows):
        scaled = residuals[i] * kind(1.0 / noise)
        for j in range(size):
            leverages += float(gradient[i, j] * features[i, j])
            gradient[i, j] = (gradient[i, j] + scaled * weights[0][j]) * kind(1.0 / rows)
    trace *= ratio
    misfit = (ratio * along - (-num_data / rows * leverages + noise / num_data * trace)) / norm**2
    half = 0.5 / num_data
    by_estimate = half * (inverse + ratio * dual[0] - misfit * estimate[0])
    by_noise = 0.5 * ((num_data - size - noise * trace / num_data) / num_data - loss)
    _step_weights(weights, features, residuals, noise, num_data, learning_rate)
    _step_network(layers, hidden, features, inputs, gradient, learning_rate, num_data)
    _step_noise(log_noise[0], log_noise[1], log_noise[2], by_noise, num_data, learning_rate)
    _step(estimate, by_estimate, num_data, learning_rate)
    noise = np.exp(float(log_noise[0][0]))
    limit = kind(box)
    for values in (layers[0][0].reshape(-1), layers[1][0], layers[2][0].reshape(-1), layers[3][0], weights[0]):
        for i in range(len(values)):
            values[i] = min(max(values[i], -limit), limit)
    raised = _project(estimate[0], inverse, noise / num_data, box)
    # Ascent, with the second batch.
    features = _features(layers, dual_inputs)[1].astype(np.float64)
    norm = np.sqrt(np.sum(np.square(estimate[0])))
    factor = -half * penalty / norm
    by_dual = factor * estimate[0] - (factor / len(features)) * np.dot(features.T, features)
    for i in range(size):
        by_dual[i, i] -= factor * noise / num_data
    _step(dual, by_dual, num_data, learning_rate)
    norm = np.sqrt(np.sum(np.square(dual[0])))
    if norm > 1.0:
        dual[0][:] = dual[0] / norm
    return loss, raised


@njit(cache=True, error_model="numpy")
def _project(estimate, inverse, floor, box):
    """The Gram estimate into its box and above the floor, and its inverse; True if eigenvalues were raised."""
    size = len(estimate)
    shrink = np.ones(size)
    for i in range(size):
        if estimate[i, i] > box:
            shrink[i] = np.sqrt(box / estimate[i, i])
    for i in range(size):
        for j in range(size):
            estimate[i, j] *= shrink[i] * shrink[j]
    work, root = estimate.copy(), np.empty_like(estimate)
    for i in range(size):
        work[i, i] -= floor
    if inverse_factor(work, root):
        work = estimate.copy()
        inverse_factor(work, root)
        inverse[:] = np.dot(root.T, root)
        return False
    eigenvalues, eigenvectors = np.linalg.eigh(estimate)
    bound = floor * (1.0 + 1e-6) + 1e-14 * eigenvalues[-1]
    low = 0
    while low < size and eigenvalues[low] < bound:
        low += 1
    few = np.ascontiguousarray(eigenvectors[:, :low])
    estimate += np.dot(few * (bound - eigenvalues[:low]), few.T)
    scaled = np.ascontiguousarray(eigenvectors) / np.sqrt(np.maximum(eigenvalues, bound))
    inverse[:] = np.dot(scaled, scaled.T)
    return True
