"""Trees in the noise: added where left-out errors gain by them, in the units of the networks, kept in files."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from finitegp.automatic import fit_auto
from finitegp.automatic.noise_networks import ResidualNoise, log_noise_scale
from finitegp.automatic.noise_trees import add_noise_trees, blended_errors
from finitegp.automatic.table import Table
from finitegp.errors import ModelFileError
from finitegp.features import SoftClip
from finitegp.noise import AddedTrees, InputNoise, MeanVariance, SmoothFloor
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container, write_container

CLIP = SoftClip(3)
FLOOR = 1e-6


class Constant(nn.Module):
    """Noise networks that see no difference between rows."""

    def forward(self, inputs):
        return inputs.new_zeros(len(inputs), 1)


def drawn(count, *, steps, seed=0):
    """Rows with errors of deviation .3 or 1.5, or of .3 alone."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 3))
    loud = (inputs[:, 0] > 0.4) & (inputs[:, 1] < 0.0) if steps else np.zeros(count, bool)
    return inputs, np.where(loud, 1.5, 0.3), random.normal(size=count)


def found_by_networks(errors):
    mean_square = float(np.square(errors).mean())
    module = nn.Sequential(CLIP, MeanVariance(Constant()), SmoothFloor(math.log(FLOOR)))
    noise = InputNoise(module, reads="inputs", variance=mean_square)
    return ResidualNoise(noise, [0], FLOOR, np.full(len(errors), math.log(mean_square)))


def test_steps_in_the_noise_are_found():
    inputs, deviations, chance = drawn(3000, steps=True)
    errors = deviations * chance
    found, record = add_noise_trees(found_by_networks(errors), Table(inputs, errors), errors, CLIP, 512, seed=0)
    assert record["trees"] > 0
    assert record["gain"] > 300.0
    # Up to the common factor, which calibration chooses.
    relative = found.log_variance - 2.0 * np.log(deviations)
    assert np.std(relative) < 0.6 * np.std(2.0 * np.log(deviations))
    # The model says of new rows what the trees of the other folds said of those left out.
    new, expected, _ = drawn(2000, steps=True, seed=1)
    scale = log_noise_scale(found.noise, new)
    assert np.corrcoef(scale, np.log(expected))[0, 1] > 0.9
    assert found.noise.bounds == pytest.approx((float(scale.min()), float(scale.max())), abs=0.3)


def test_nothing_is_added_where_the_noise_is_one():
    for seed in range(3):
        inputs, deviations, chance = drawn(2000, steps=False, seed=seed)
        errors = deviations * chance
        before = found_by_networks(errors)
        found, record = add_noise_trees(before, Table(inputs, errors), errors, CLIP, 512, seed=0)
        assert found is before
        assert record["trees"] == 0


def test_errors_that_are_misfit_rather_than_noise_are_left_to_networks():
    inputs, deviations, chance = drawn(2000, steps=True)
    errors = 0.03 * deviations * chance
    before = found_by_networks(errors)
    assert add_noise_trees(before, Table(inputs, errors), errors, CLIP, 512, seed=0) == (before, {"trees": 0})
    errors *= 3.0
    assert add_noise_trees(found_by_networks(errors), Table(inputs, errors), errors, CLIP, 512, seed=0)[1]["trees"] > 0


def test_counted_rows_are_rows_that_come_as_often():
    inputs, deviations, chance = drawn(800, steps=True)
    errors = deviations * chance
    options = {"clip": CLIP, "chunk_size": 512, "seed": 0}
    before = found_by_networks(errors)
    once, gained = add_noise_trees(before, Table(inputs, errors), errors, **options)
    ones, _ = add_noise_trees(before, Table(inputs, errors, np.ones(800)), errors, **options)
    np.testing.assert_array_equal(once.log_variance, ones.log_variance)
    _, thrice = add_noise_trees(before, Table(inputs, errors, np.full(800, 3.0)), errors, **options)
    assert 2.0 < thrice["gain"] / gained["gain"] < 4.0


def test_trees_have_the_part_in_the_mean_that_errs_least():
    random = np.random.default_rng(0)
    towards, log_variance = random.normal(size=(2, 500))
    truth = 0.3 * towards + 0.01 * np.exp(0.5 * log_variance) * random.normal(size=500)
    blended, part = blended_errors(truth, towards, log_variance)
    weights = np.exp(-log_variance)
    assert part == pytest.approx(float(np.sum(weights * towards * truth) / np.sum(weights * towards**2)), abs=0.02)
    np.testing.assert_allclose(blended, truth - part * towards)
    assert blended_errors(-towards, towards, log_variance)[1] == 0.0
    assert blended_errors(9.0 * towards, towards, log_variance)[1] == 1.0


def test_added_trees_add_what_each_row_comes_to():
    added = AddedTrees(nn.Identity(), 2, 1)
    added.columns.copy_(torch.tensor([[0], [1]]))
    added.thresholds.copy_(torch.tensor([[0.0], [5.0]]))
    added.leaves.copy_(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
    module = nn.Sequential(added)
    inputs = torch.tensor([[0.0, 5.0], [0.1, 5.0], [-1.0, 6.0], [3.0, 6.0]])
    torch.testing.assert_close(module(inputs) - inputs, torch.tensor([[11.0], [12.0], [21.0], [22.0]]).expand(-1, 2))


@pytest.fixture(scope="module")
def fit():
    inputs, deviations, chance = drawn(2500, steps=True)
    quick = {"small_rows": 100, "most_rows_for_both": 0, "members": 2, "hidden": [16, 16], "steps": 100}
    quick |= {"max_steps": 100, "fourier_features": 16, "noise_steps": 20, "noise_networks": 2, "trees": 30}
    return fit_auto(inputs, inputs[:, 0] + deviations * chance, settings=quick)


def test_a_fit_has_them_and_keeps_them_in_its_file(fit, tmp_path):
    assert fit.record["noise_trees"]["trees"] > 0
    save_fit(fit, tmp_path / "model")
    new = drawn(400, steps=True, seed=5)[0]
    found = load_fit(tmp_path / "model").predict(new)
    torch.testing.assert_close(found.noise_variance, fit.predict(new).noise_variance, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("wrong", [-1, 3, 10**6])
def test_trees_of_a_file_that_look_at_columns_that_are_not_there(fit, tmp_path, wrong):
    save_fit(fit, tmp_path / "model")
    header, tensors = read_container(tmp_path / "model")
    (name,) = (name for name in tensors if "noise" in name and name.endswith("columns"))
    tensors[name] = tensors[name].clone()
    tensors[name][-1, -1] = wrong
    write_container(tmp_path / "changed", header, tensors)
    with pytest.raises(ModelFileError, match="trees make no sense"):
        load_fit(tmp_path / "changed")
