"""Float32 changes predictions of many rows by less than is stated, and is not used where it would change them more."""

import numpy as np
import pytest
import torch
from test_frozen import COLUMNS, joined, noise_module, rows

from finitegp import FeatureGP
from finitegp.data import Rows
from finitegp.frozen import frozen_map
from finitegp.noise import InputNoise
from finitegp.single_precision import TOLERANCE, made_rows
from finitegp.trees import BoostedTrees


def fit(noise_variance, bounds=(-1.0, 1.0)):
    noise = InputNoise(noise_module(), reads="inputs", variance=noise_variance, bounds=bounds)
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(500, COLUMNS)))
    return FeatureGP(joined(), noise_model=noise, output_scale=2.5).condition((inputs, inputs.sin().sum(dim=1)))


def both(fitted, inputs):
    return (fitted.predict_rows(Rows(inputs), rounded=rounded) for rounded in (False, True))


def test_a_map_in_float32_is_next_to_its_module():
    module, inputs = joined().double(), rows()
    found = frozen_map(module, np.float32)(inputs.numpy().T.copy())
    assert found.dtype == np.float32
    with torch.no_grad():
        np.testing.assert_allclose(found.T, module(inputs), rtol=1e-4, atol=1e-5)


def test_thresholds_are_compared_with_inputs_as_they_are():
    module = noise_module().double()
    trees = BoostedTrees.of(module[1])
    inputs = rows(600).numpy()
    # Right above thresholds: in float32 they are equal.
    inputs[:, 0] = np.nextafter(np.resize(trees.thresholds[trees.columns == 0], 600), np.inf)
    inputs = module[0](torch.from_numpy(inputs)).numpy()
    added = frozen_map(module[1], np.float32)(inputs.T.copy()) - frozen_map(module[1].module, np.float32)(
        inputs.T.copy()
    )
    np.testing.assert_allclose(added[0], trees.predict(inputs), atol=1e-5)


@pytest.mark.parametrize("noise_variance", [0.1, 1e-3])
def test_float32_is_within_its_tolerance(noise_variance):
    fitted = fit(noise_variance)
    inputs = torch.from_numpy(np.random.default_rng(1).normal(size=(1000, COLUMNS)))
    exact, single = both(fitted, inputs)
    assert not torch.equal(single.mean, exact.mean)
    least = exact.noise_variance.sqrt().min()
    assert float((single.mean - exact.mean).abs().max() / least) < TOLERANCE
    assert float((single.std / exact.std - 1.0).abs().max()) < TOLERANCE
    assert not torch.equal(single.noise_variance, exact.noise_variance)
    torch.testing.assert_close(fitted.mean_of_rows(Rows(inputs), rounded=True), single.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("noise_variance", "bounds"), [(1e-9, (-1.0, 1.0)), (0.1, None)])
def test_means_stay_float64_where_the_smallest_noise_is_small(noise_variance, bounds):
    fitted = fit(noise_variance, bounds)
    fitted.model.noise.max_log_scale = 30.0  # without bounds the noise variance may fall by exp(-30)
    exact, single = both(fitted, rows(300)[4:])
    assert torch.equal(single.mean, exact.mean)
    assert not torch.equal(single.epistemic_variance, exact.epistemic_variance)
    assert float((single.std / exact.std - 1.0).abs().max()) < TOLERANCE


def test_rows_far_outside_pass_in_float64():
    fitted, inputs = fit(0.1), made_rows(COLUMNS)
    assert float(inputs.abs().max()) <= 100.0
    exact, single = both(fitted, inputs)
    assert not torch.equal(single.mean, exact.mean)
    inputs[7, 0] = 101.0
    exact, single = both(fitted, inputs)
    assert torch.equal(single.mean, exact.mean)
    assert torch.equal(single.std, exact.std)


def test_updates_are_predicted_by_their_own_posterior():
    fitted, inputs = fit(0.1), rows(300)[4:]
    list(both(fitted, inputs))
    more = fitted.update((inputs, torch.ones(len(inputs), dtype=torch.float64)))
    exact, single = both(more, inputs)
    torch.testing.assert_close(single.mean, exact.mean, rtol=0.0, atol=1e-4)
    assert float((fitted.predict(inputs).mean - single.mean).abs().max()) > 0.1
