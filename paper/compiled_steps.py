"""Steps that only the paper needs, as loops that Numba compiles on their first call and keeps beside this file.

Parameters and rules are those of :mod:`finitegp.compiled`.
"""

import numpy as np
from numba import njit

from finitegp.compiled.descent import clamp_to_box, descend
from finitegp.compiled.factors import inverse_factor
from finitegp.compiled.network import kernel_features, network_features, step_network, step_weights
from finitegp.compiled.optimizers import step_noise, step_parameter


@njit(cache=True, error_model="numpy")
def scgd_window_step(
    inputs, targets, layers, spectrum, weights, log_noise, remembered, row_weights, products, tracked_noise, first,
    num_data, rate, rule,
):  # fmt: skip
    """One step of SCGD by the rows that the tracked matrix remembers: whether it was made, and its loss.

    The matrix is ``s I + sum_j w_j u_j u_j'``; ``products`` holds the ``u_j'u_k``. Rows that were not filled yet are
    zero and have no weight. The batch takes the places from ``first`` on, of a batch that is forgotten.
    """
    rows, size = len(inputs), remembered.shape[1]
    noise, spread = np.exp(float(log_noise[0][0])), tracked_noise[0]
    hidden, outputs = network_features(layers, inputs)
    features, angles = kernel_features(spectrum, outputs)
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
    loss = descend(
        inputs, targets, layers, spectrum, hidden, outputs, features, angles, weights, log_noise, whitened, trace,
        num_data, rule,
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
def svgp_step(
    inputs, targets, layers, inducing, mean, root, log_noise, jitter, least_variance, num_data, rule
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
    hidden, features = network_features(layers, everything)
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
    by_hidden = step_network(layers, hidden, features, everything, gradient, rule)
    step_parameter(inducing, np.dot(by_hidden[:count], weights_1), rule)
    step_parameter(mean, by_mean, rule)
    step_parameter(root, by_root, rule)
    by_noise = 0.5 * (1.0 - (squares + variances) / (rows * noise))
    step_noise(log_noise, by_noise, rule)
    return True, squares / (rows * noise)


@njit(cache=True, error_model="numpy")
def minimax_step(
    inputs, targets, dual_inputs, layers, weights, log_noise, estimate, dual, inverse, num_data, penalty, box,
    rule,
):  # fmt: skip
    """One step of the paper's Minimax, descent and ascent: the loss, and whether eigenvalues had to be raised."""
    kind = inputs.dtype.type
    rows, size = len(inputs), len(inverse)
    noise = np.exp(float(log_noise[0][0]))
    hidden, features = network_features(layers, inputs)
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
    step_weights(weights, features, residuals, noise, num_data, rule)
    step_network(layers, hidden, features, inputs, gradient, rule)
    step_noise(log_noise, by_noise, rule)
    step_parameter(estimate, by_estimate, rule)
    noise = np.exp(float(log_noise[0][0]))
    clamp_to_box(layers, None, weights, box)
    raised = _project(estimate[0], inverse, noise / num_data, box)
    # Ascent, with the second batch.
    features = network_features(layers, dual_inputs)[1].astype(np.float64)
    norm = np.sqrt(np.sum(np.square(estimate[0])))
    factor = -half * penalty / norm
    by_dual = factor * estimate[0] - (factor / len(features)) * np.dot(features.T, features)
    for i in range(size):
        by_dual[i, i] -= factor * noise / num_data
    step_parameter(dual, by_dual, rule)
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
