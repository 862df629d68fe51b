"""Features on landmarks against kernel GPs computed densely, by scikit-learn and by the textbook."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from torch import nn

from finitegp import FeatureGP
from finitegp.errors import DataError
from finitegp.features import ConcatenatedFeatures, ConstantFeatures, LandmarkFeatures, LinearFeatures
from finitegp.features.landmarks import landmark_parts, residual_variance

LENGTHS, VARIANCE, NOISE = np.array([0.7, 1.9]), 2.5, 0.05
KERNELS = {"rbf": RBF(LENGTHS), "matern32": Matern(LENGTHS, nu=1.5), "matern52": Matern(LENGTHS, nu=2.5)}


# The landmarks' covariance has a jitter of 1e-10, which interpolation weights multiply: those of rbf are large.
TOLERANCES = {"rbf": 2e-5, "matern32": 1e-7, "matern52": 1e-7}


def make_rows(count, seed):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 2))
    return inputs, np.sin(2.0 * inputs[:, 0]) + 0.2 * random.normal(size=count)


def features_at(landmarks, kernel="matern52"):
    return LandmarkFeatures.at(landmarks, kernel=kernel, length_scales=LENGTHS, variance=VARIANCE)


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_all_rows_as_landmarks_it_is_the_gp_of_the_kernel(kernel):
    (inputs, targets), (new, _) = make_rows(60, 0), make_rows(25, 1)
    dense = GaussianProcessRegressor(ConstantKernel(VARIANCE) * KERNELS[kernel], alpha=NOISE, optimizer=None)
    mean, covariance = dense.fit(inputs, targets).predict(2.0 * new, return_cov=True)
    model = FeatureGP(features_at(inputs, kernel), noise_variance=NOISE)
    found = model.condition((inputs, targets)).predict(2.0 * new, return_covariance=True)
    np.testing.assert_allclose(found.mean, mean, atol=TOLERANCES[kernel])
    np.testing.assert_allclose(found.covariance, covariance, atol=TOLERANCES[kernel])
    np.testing.assert_allclose(found.epistemic_variance, covariance.diagonal(), atol=TOLERANCES[kernel])
    evidence = dense.log_marginal_likelihood_value_
    assert -model.likelihood((inputs, targets)).total_nlml == pytest.approx(evidence, abs=1e-6)


@pytest.mark.parametrize("output_scale", [1.0, 1.7])
def test_with_other_landmarks_what_is_lost_is_a_variance_of_its_own(output_scale):
    """Mean and posterior covariance of the Nyström kernel Q, and the kernel minus Q on top."""
    (inputs, targets), (new, _) = make_rows(60, 0), make_rows(25, 1)
    landmarks = make_rows(7, 2)[0]
    kernel = output_scale * VARIANCE * KERNELS["matern32"]
    solve = np.linalg.inv(kernel(landmarks))

    def nystrom(one, other):
        return kernel(one, landmarks) @ solve @ kernel(landmarks, other)

    gain = nystrom(new, inputs) @ np.linalg.inv(nystrom(inputs, inputs) + NOISE * np.eye(60))
    covariance = kernel(new) - gain @ nystrom(inputs, new)
    model = FeatureGP(features_at(landmarks, "matern32"), noise_variance=NOISE, output_scale=output_scale)
    fitted = model.condition((inputs, targets))
    found = fitted.predict(new, return_covariance=True)
    np.testing.assert_allclose(found.mean, gain @ targets, atol=1e-7)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-7)
    np.testing.assert_allclose(found.epistemic_variance, covariance.diagonal(), atol=1e-7)
    # Without a row: the same formulas with the others.
    gain = nystrom(inputs[:1], inputs[1:]) @ np.linalg.inv(nystrom(inputs[1:], inputs[1:]) + NOISE * np.eye(59))
    left_out = fitted.leave_one_out((inputs, targets))
    assert float(left_out.mean[0]) == pytest.approx(float(gain[0] @ targets[1:]), abs=1e-7)
    variance = kernel(inputs[:1]) - gain @ nystrom(inputs[1:], inputs[:1])
    assert float(left_out.epistemic_variance[0]) == pytest.approx(float(variance[0, 0]), abs=1e-7)


def test_nothing_is_lost_at_landmarks_and_everything_far_away():
    landmarks = make_rows(9, 0)[0]
    features = features_at(landmarks)
    lost = features.residual_variance(features(torch.from_numpy(landmarks)))
    np.testing.assert_allclose(lost, 0.0, atol=1e-8)
    far = torch.full((1, 2), 100.0, dtype=torch.float64)
    np.testing.assert_allclose(features.residual_variance(features(far)), VARIANCE)


def test_landmarks_are_found_beside_other_features():
    inputs = torch.from_numpy(make_rows(5, 1)[0])
    alone = features_at(make_rows(4, 0)[0])
    expected = alone.residual_variance(alone(inputs))
    assert float(expected.min()) > 0.01
    for joined in (
        ConcatenatedFeatures(ConstantFeatures(), LinearFeatures(2), alone),
        ConcatenatedFeatures(LinearFeatures(2), ConcatenatedFeatures(ConstantFeatures(), alone), input_dim=2),
        ConcatenatedFeatures(alone, nn.Sequential(nn.Linear(2, 3, dtype=torch.float64)), input_dim=2),
        ConcatenatedFeatures(nn.Sequential(nn.Linear(2, 3, dtype=torch.float64)), alone, input_dim=2),
    ):
        torch.testing.assert_close(residual_variance(joined, joined(inputs)), expected)
    without = ConcatenatedFeatures(nn.Sequential(nn.Linear(2, 3, dtype=torch.float64)), input_dim=2)
    assert residual_variance(without, without(inputs)) is None
    assert list(landmark_parts(LinearFeatures(2), LinearFeatures(2)(inputs))) == []


def test_the_factor_follows_the_tensors():
    features = features_at(make_rows(6, 0)[0])
    inputs = torch.from_numpy(make_rows(3, 1)[0])
    before = features(inputs)
    state = {name: value * 2.0 if name == "landmarks" else value for name, value in features.state_dict().items()}
    features.load_state_dict(state)
    fresh = LandmarkFeatures(2, 6)
    fresh.load_state_dict(state)
    torch.testing.assert_close(features(inputs), fresh(inputs))
    assert not torch.allclose(features(inputs), before)


def test_bad_kernels_are_named():
    with pytest.raises(ValueError, match=r"kernel must be one of \['rbf', 'matern32', 'matern52'\], but is 'cubic'"):
        LandmarkFeatures(2, 3, kernel="cubic")


def test_means_need_no_features():
    """Landmarks between other features, and an output scale: the mean is that of all features together."""
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(40, 2)), random.normal(size=40)
    kernel = LandmarkFeatures.at(inputs, kernel="matern32", length_scales=[1.0, 2.0], variance=1.5)
    features = ConcatenatedFeatures(ConstantFeatures(), kernel, LinearFeatures(2))
    model = FeatureGP(features, noise_variance=0.1)
    model.set_output_scale(3.0)
    fitted = model.condition((inputs, targets))
    new = random.normal(size=(15, 2))
    torch.testing.assert_close(fitted.predict_mean(new), fitted.predict(new).mean, rtol=1e-9, atol=1e-9)
    with pytest.raises(DataError, match="takes 2 input columns, but got 3"):
        fitted.predict_mean(np.zeros((4, 3)))


def test_rounding_of_distances_is_covered_by_jitter():
    """Rows 3000 length scales from the origin: their squares round to 1e-9, and more than 1e-10 of jitter is needed."""
    inputs = torch.from_numpy(make_rows(300, 0)[0]) * 0.1 + 3000.0
    features = features_at(inputs)
    made = features(inputs)
    torch.testing.assert_close(made @ made.mT, features.covariance(inputs, inputs), rtol=0.0, atol=1e-5)
