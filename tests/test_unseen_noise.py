"""Rows that landmarks do not see completely, in sums and predictions, against the dense formulas of FITC."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scaled_fits import COUNTS, make_rows, same
from sklearn.gaussian_process.kernels import Matern

from finitegp import DataError, FeatureGP, GPRegressor, ModelFileError
from finitegp.algorithms import exact_gradient
from finitegp.automatic import fit_auto
from finitegp.data import ArraySource
from finitegp.features import ConcatenatedFeatures, LandmarkFeatures, LinearFeatures
from finitegp.lite import load
from finitegp.persistence import load_fit, save_fit
from finitegp.persistence.container import read_container, write_container

LENGTHS, VARIANCE, NOISE, SLOPE = np.array([0.7, 1.9]), 2.5, 0.05, 0.4
KERNEL = VARIANCE * Matern(LENGTHS, nu=1.5)


def rows_of(count, seed, targets=1):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 2))
    return inputs, np.sin(2.0 * inputs[:, :1]) + 0.2 * random.normal(size=(count, targets))


def model_on(places, output_scale=1.0):
    kernel = LandmarkFeatures.at(places, kernel="matern32", length_scales=LENGTHS, variance=VARIANCE)
    line = LinearFeatures(2, bias=False, magnitude=SLOPE)
    model = FeatureGP(ConcatenatedFeatures(line, kernel), noise_variance=NOISE, output_scale=output_scale).double()
    model.noise.set_variance(NOISE)
    model.unseen_scale = 1.0 / NOISE
    return model


class Dense:
    """The posterior of FITC: f = g + h with g of the Nystroem kernel and h white, of the variance that g lacks."""

    def __init__(self, places, output_scale, inputs, targets, weights):
        self.places, self.scale, self.inputs, self.targets = places, output_scale, inputs, targets
        # One observation, of noise divided by the weight.
        self.noise = NOISE / weights + self.lost(inputs)
        self.covariance = self.seen(inputs, inputs) + np.diag(self.noise)

    def seen(self, one, other):
        cross = KERNEL(one, self.places) @ np.linalg.solve(KERNEL(self.places), KERNEL(self.places, other))
        return self.scale * (SLOPE * one @ other.T + cross)

    def lost(self, inputs):
        cross = KERNEL(inputs, self.places)
        return self.scale * (VARIANCE - np.sum(cross * np.linalg.solve(KERNEL(self.places), cross.T).T, axis=1))

    def predict(self, new):
        gain = np.linalg.solve(self.covariance, self.seen(self.inputs, new)).T
        left = self.seen(new, new) - gain @ self.seen(self.inputs, new)
        return gain @ self.targets, left.diagonal() + self.lost(new)

    def without(self, row):
        keep = np.arange(len(self.inputs)) != row
        less = object.__new__(Dense)
        less.places, less.scale = self.places, self.scale
        less.inputs, less.targets, less.noise = self.inputs[keep], self.targets[keep], self.noise[keep]
        less.covariance = self.covariance[np.ix_(keep, keep)]
        return less

    def log_evidence(self):
        fit = np.sum(self.targets * np.linalg.solve(self.covariance, self.targets))
        volume = np.linalg.slogdet(self.covariance)[1] + len(self.targets) * np.log(2.0 * np.pi)
        return -0.5 * (fit + self.targets.shape[1] * volume)


def close(found, expected, tolerance=1e-7):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("output_scale", "targets"), [(1.0, 1), (1.7, 1), (1.0, 3)])
def test_updates_are_the_dense_posterior(output_scale, targets):
    first, more, new = rows_of(15, 0, targets), rows_of(40, 1, targets), rows_of(25, 2)[0]
    weights, counts = np.linspace(0.3, 3.0, 40), 1.0 + np.arange(40) % 3
    model = model_on(first[0], output_scale)
    fitted = model.condition(first)
    updated = fitted.update(ArraySource(*more, weights, counts=counts))
    times = counts.astype(int)
    inputs, values = (np.vstack([one, np.repeat(two, times, axis=0)]) for one, two in zip(first, more, strict=True))
    all_weights = np.concatenate([np.ones(15), np.repeat(weights, times)])
    dense = Dense(first[0], output_scale, inputs, values, all_weights)
    assert dense.noise.max() > 3.0 * dense.noise.min()
    found, (mean, variance) = updated.predict(new), dense.predict(new)
    close(found.mean.reshape(mean.shape), mean)
    close(found.epistemic_variance, variance)
    close(found.noise_variance, NOISE)
    everything = ArraySource(inputs, values, all_weights)
    close(-model.likelihood(everything).total_nlml, dense.log_evidence())
    left_out, noises = updated.leave_out(everything)
    close(noises, dense.noise)
    for row in (0, 14, 15, 40, len(inputs) - 1):
        mean, variance = dense.without(row).predict(inputs[row : row + 1])
        close(left_out.mean[row].reshape(mean[0].shape), mean[0])
        close(left_out.epistemic_variance[row], variance[0])
        close(left_out.noise_variance[row], NOISE / all_weights[row])
    # In any order and in parts, and back.
    parts = [
        ArraySource(*(each[some] for each in (*more, weights)), counts=counts[some])
        for some in (slice(9), slice(9, 40))
    ]
    empty = fitted.forget(first)
    same_as(fitted.update(parts[1]).update(parts[0]), updated, new)
    same_as(fitted.update(parts[0]).merge(empty.update(parts[1])), updated, new)
    same_as(updated.forget(parts[1]).forget(parts[0]), fitted, new)


def same_as(one, other, new):
    for name in ("mean", "epistemic_variance", "noise_variance"):
        close(getattr(one.predict(new), name), getattr(other.predict(new), name), 1e-9)


def test_at_landmarks_there_is_nothing_to_weigh():
    first = rows_of(30, 0)
    weighed, plain = model_on(first[0]), model_on(first[0])
    plain.unseen_scale = 0.0
    one, other = (each.condition(first).posterior.statistics.flatten() for each in (weighed, plain))
    assert torch.equal(one, other)
    at_landmarks, beside = (torch.from_numpy(first[0] + away) for away in (0.0, 0.5))
    assert weighed.with_unseen(weighed(at_landmarks)[0], None) is None
    assert plain.with_unseen(plain(beside)[0], None) is None
    assert float(weighed.with_unseen(weighed(beside)[0].detach(), None).max()) > 1.0


def test_the_noise_is_a_common_factor_that_can_be_learned():
    """The ratio of what is not seen stays, so that sums do not depend on the noise: its optimum by dense matrices."""
    first, more = rows_of(15, 0), rows_of(60, 1)
    model = model_on(first[0])
    model.optimize_noise(more)
    found = model.noise_variance / NOISE
    dense = Dense(first[0], 1.0, *more, np.ones(60))
    seen = dense.covariance - np.diag(dense.noise)
    evidences = []
    for factor in (found, 0.98 * found, 1.02 * found):
        dense.covariance = seen + factor * np.diag(dense.noise)
        evidences.append(dense.log_evidence())
    assert evidences[0] > max(evidences[1:])
    close(-model.likelihood(more).total_nlml, evidences[0])
    exact_gradient(model, more)
    assert abs(float(model.noise.log_variance.grad)) < 1e-9
    close(model.condition(more).posterior.noise_variance, found * NOISE)


def test_other_rules_are_other_models():
    first = rows_of(30, 0)
    one, other = model_on(first[0]), model_on(first[0])
    other.unseen_scale = 0.0
    with pytest.raises(DataError, match="Only posteriors of the same model"):
        one.condition(first).merge(other.condition(first))


@pytest.fixture(scope="module")
def more():
    return make_rows(60, seed=3)


def test_leaving_out_a_row_that_was_added(stack, more):
    fit = stack.update(*more)
    left_out = fit.leave_one_out(*more)
    for row in (0, 5, 30):
        one = tuple(each[row : row + 1] for each in more)
        again = fit.forget(*one).predict(one[0])
        for name in ("mean", "std"):
            assert float(getattr(left_out, name)[row]) == pytest.approx(float(getattr(again, name)), rel=1e-6), name
        assert float(left_out.quantile(0.9)[row]) == pytest.approx(float(again.quantile(0.9)), rel=1e-6)


def test_evidence_of_rows_that_were_added(stack, more):
    inputs, targets = (np.concatenate(each) for each in zip(make_rows(), more, strict=True))
    counts = np.concatenate([COUNTS, np.ones(60)])
    fit = stack.update(*more)
    assert fit.evidence(inputs, targets, counts) == pytest.approx(fit.evidence(), rel=1e-6)
    same(fit.forget(*more).predict(inputs), stack.predict(inputs), rtol=1e-6, atol=1e-6)


def test_files_of_older_releases_keep_their_rule(stack, more, tmp_path):
    """Without the entry in the file rows come and go unweighted, in the library and in lite."""
    save_fit(stack, tmp_path / "new.finitegp")
    header, tensors = read_container(tmp_path / "new.finitegp")
    entries = header["fits"][0]["components"]
    expected = [0.0 if each["name"] == "linear" else 1.0 / each["noise_variance"] for each in entries]
    assert [each.pop("unseen_scale", 0.0) for each in entries] == pytest.approx(expected, rel=1e-12)
    header["fits"][0]["spread"]["gp"].pop("unseen_scale")
    write_container(tmp_path / "old.finitegp", header, tensors)
    old, new = load_fit(tmp_path / "old.finitegp"), load_fit(tmp_path / "new.finitegp")
    points = make_rows(30, seed=2)[0]
    same(old.predict(points), new.predict(points), rtol=0.0, atol=0.0)
    plain = [replace_rule(each) for each in stack.components]
    expected = replace(stack, components=tuple(plain)).update(*more).predict(points)
    same(old.update(*more).predict(points), expected, rtol=1e-7, atol=1e-7)
    ratios = old.update(*more).predict(points).std / new.update(*more).predict(points).std
    assert float(ratios.max() / ratios.min()) > 1.05
    for name, fit in (("old", old), ("new", new)):
        lite = load(tmp_path / f"{name}.finitegp").update(*more)
        close(lite.predict(points).mean, fit.update(*more).predict(points).mean, 1e-9)
        close(lite.predict(points).std, fit.update(*more).predict(points).std, 1e-9)
        close(lite.forget(*more).predict(points).std, fit.predict(points).std, 1e-6)
        # What lite has taken in, the library forgets.
        lite.save(tmp_path / "more.finitegp")
        close(load_fit(tmp_path / "more.finitegp").forget(*more).predict(points).std, fit.predict(points).std, 1e-6)


def replace_rule(component):
    model = component.fitted.model.exact_copy().requires_grad_(False)
    model.unseen_scale = 0.0
    return replace(component, fitted=type(component.fitted)(model, component.fitted.posterior))


def test_error_bars_follow_the_errors():
    """Sixty rows, then 440: the density of other rows rises, and intervals hold about what they say."""
    random = np.random.default_rng([0, 60, 3])
    inputs = random.normal(size=(900, 4))
    targets = np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + 0.3 * random.normal(size=900)
    gp = GPRegressor(effort="low", random_state=0).fit(inputs[:60], targets[:60])
    densities, noises = [], []
    for rows in (slice(60, 60), slice(60, 280), slice(280, 500)):
        if rows.stop > rows.start:
            gp.partial_fit(inputs[rows], targets[rows])
        densities.append(float(np.mean(gp.log_density(inputs[500:], targets[500:]))))
        noises.append(float(gp.fits_[0].predict(inputs[500:]).noise_variance.mean()))
    assert densities[0] + 0.2 < densities[1] < densities[2]
    assert noises[2] < 1.15 * noises[0]
    inside = []
    for coverage in (0.5, 0.9):
        lower, upper = gp.predict_interval(inputs[500:], coverage=coverage)
        inside.append(np.mean((lower <= targets[500:]) & (targets[500:] <= upper)))
    assert 0.45 < inside[0] < 0.68
    assert 0.86 < inside[1] < 0.985


def test_features_of_an_earlier_fit_learn_their_noise_again():
    first, later = make_rows(60, seed=1), make_rows(300, seed=4)
    gp = GPRegressor(effort="low", warm_start=True, random_state=0).fit(*first)
    before = gp.fits_[0].components
    gp.fit(*later)
    for one, other in zip(before, gp.fits_[0].components, strict=True):
        assert one.fitted.model.unseen_scale == other.fitted.model.unseen_scale
        assert one.fitted.posterior.noise_variance != other.fitted.posterior.noise_variance
    new, targets = make_rows(500, seed=5)
    lower, upper = gp.predict_interval(new, coverage=0.9)
    assert 0.84 < np.mean((lower <= targets) & (targets <= upper)) < 0.99


def test_a_line_has_nothing_that_is_not_seen():
    inputs = np.random.default_rng(0).normal(size=(60, 2))
    fit = fit_auto(inputs, inputs[:, 0] + 0.1 * np.cos(99.0 * inputs[:, 1]), effort="low")
    for component in fit.components:
        assert (component.fitted.model.unseen_scale > 0.0) == (component.name != "linear")


@pytest.mark.parametrize("value", [-1.0, 0.0, "yes", None])
def test_entries_of_files_that_make_no_sense(stack, value, tmp_path):
    save_fit(stack, tmp_path / "fit.finitegp")
    header, tensors = read_container(tmp_path / "fit.finitegp")
    header["fits"][0]["components"][1]["unseen_scale"] = value
    write_container(tmp_path / "fit.finitegp", header, tensors)
    with pytest.raises(ModelFileError, match="unseen_scale"):
        load_fit(tmp_path / "fit.finitegp")


def test_without_rows_the_sums_are_weighted_from_the_start(tmp_path):
    """The density of other rows rises with an update, and sums of sites add up to it."""
    random = np.random.default_rng([0, 60, 3])
    inputs = random.normal(size=(900, 4))
    targets = np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + 0.3 * random.normal(size=900)
    fit = fit_auto(inputs[:60], targets[:60], effort="low", keep_rows=False)
    (component,) = fit.components
    assert component.fitted.model.unseen_scale == pytest.approx(1.0 / component.fitted.posterior.noise_variance)
    updated = fit.update(inputs[60:500], targets[60:500])
    before, after = (float(each.log_density(inputs[500:], targets[500:]).mean()) for each in (fit, updated))
    assert after > before + 0.05
    save_fit(fit, tmp_path / "fit.finitegp")
    lite = load(tmp_path / "fit.finitegp").update(inputs[60:500], targets[60:500])
    close(lite.predict(inputs[500:]).std, updated.predict(inputs[500:]).std, 1e-9)
