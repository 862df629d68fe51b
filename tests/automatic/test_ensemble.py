"""Members trained together are members trained alone, and see nothing of their folds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from finitegp import FeatureGP
from finitegp.algorithms import Lagged
from finitegp.automatic import ensemble
from finitegp.automatic.ensemble import fit_clip, make_folds, make_network, train_ensemble
from finitegp.automatic.lagged_training import BatchedNetworks, LaggedHeads, train_lagged
from finitegp.automatic.settings import AutoSettings
from finitegp.automatic.table import Table
from finitegp.data import Rows

VALIDATION = 60
SETTINGS = AutoSettings(members=4, hidden=(16, 16), steps=30, batch_size=32)


def make_table(rows=300, seed=0, counts=False):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, 3))
    targets = np.sin(2.0 * inputs[:, 0]) + inputs[:, 1] + 0.1 * rng.normal(size=rows)
    return Table(inputs, targets, rng.integers(1, 4, size=rows).astype(float) if counts else None)


@pytest.mark.parametrize("counts", [False, True])
def test_together_is_the_same_as_alone(counts):
    table = make_table(counts=counts)
    inputs, targets = torch.from_numpy(table.inputs).float(), torch.from_numpy(table.targets).float()
    weights = None if table.counts is None else torch.from_numpy(table.counts / table.counts.mean()).float()
    rows = [np.delete(np.arange(300), fold) for fold in make_folds(300, 2, seed=0)]
    together = [make_network(3, SETTINGS, seed=seed) for seed in (0, 1)]
    batched = BatchedNetworks(together)
    train_lagged(batched, inputs, targets, weights, rows, SETTINGS, weight_decay=0.1, seeds=[5, 6])
    batched.write_back()
    for member in (0, 1):
        network = make_network(3, SETTINGS, seed=member)
        before = network(inputs).detach()
        alone = BatchedNetworks([network])
        own = rows[member : member + 1]
        train_lagged(alone, inputs, targets, weights, own, SETTINGS, weight_decay=0.1, seeds=[5 + member])
        alone.write_back()
        after = network(inputs).detach()
        assert float((after - before).abs().max()) > 0.1
        torch.testing.assert_close(together[member](inputs).detach(), after, rtol=1e-3, atol=1e-3)


def test_heads_follow_lagged(generator):
    """Gradients, weights and noise of one member are those of the algorithm ``Lagged``, where no error is far off."""
    network = make_network(3, SETTINGS, seed=0)
    model = FeatureGP(network, noise_variance=0.1)
    algorithm = Lagged(model, 300, block=5, window=100)
    heads = LaggedHeads(1, 16, [300])
    batches = [
        Rows(torch.randn(32, 3, generator=generator), 0.2 * torch.randn(32, 1, generator=generator)) for _ in range(12)
    ]
    algorithm.initialize(batches[:2])
    batched = BatchedNetworks([network])
    for batch in batches[:2]:
        heads.take_up(batched.forward(batch.inputs[None]), batch.observed.t(), None)
    heads.refresh()
    for number, batch in enumerate(batches[2:]):
        model.zero_grad()
        found = algorithm.gradient(batch)
        features = batched.forward(batch.inputs[None])
        batched.backward(heads.gradient(features, batch.observed.t(), None))
        expected = network.second.layers[0].weight.grad
        torch.testing.assert_close(batched.parameters[4].grad[0].t(), expected, rtol=1e-3, atol=1e-5)
        algorithm.track(batch, found)
        heads.take_up(features, batch.observed.t(), None)
        if number % 5 == 4:
            heads.refresh()
            assert float(heads.noise_variance[0]) == pytest.approx(model.noise_variance, rel=1e-4)
            torch.testing.assert_close(heads.weights[0], algorithm.weights.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_folds_are_left_out(threads):
    """Targets of a fold do not reach its predictions; those of other rows do, whatever the number of threads."""
    table, validation = make_table(), make_table(VALIDATION, seed=9)
    # Which decay wins the race may depend on them.
    settings = SETTINGS.with_changes({"weight_decays": (0.1,)})
    first = train_ensemble(table, validation, settings, seed=3, threads=threads)
    changed = Table(table.inputs, table.targets.copy())
    fold = first.folds[0]
    changed.targets[fold] += 100.0 * np.random.default_rng(1).normal(size=len(fold))
    second = train_ensemble(changed, validation, settings, seed=3, threads=1)
    np.testing.assert_array_equal(first.out_of_fold[: len(fold)], second.out_of_fold[: len(fold)])
    assert np.abs(first.out_of_fold[len(fold) :] - second.out_of_fold[len(fold) :]).min() > 0.0
    # What is kept of each member predicts its fold as it did.
    np.testing.assert_allclose(
        first.predict(table.inputs)[0, fold], first.out_of_fold[: len(fold)], rtol=1e-3, atol=1e-4
    )


def test_weights_are_the_posterior_of_the_members_rows():
    table = make_table(counts=True)
    found = train_ensemble(table, make_table(VALIDATION, seed=9), SETTINGS, seed=0)
    kept = np.delete(np.arange(len(table)), found.folds[1])
    fitted = FeatureGP(found.feature_maps()[1], 0.1).condition(table.take(kept).source(), optimize_noise=True)
    np.testing.assert_allclose(fitted.predict(table.inputs).mean, found.predict(table.inputs)[1], rtol=1e-3, atol=1e-3)
    assert found.noise_variances[1] == pytest.approx(fitted.model.noise_variance, rel=1e-2)


def test_the_weight_decay_with_the_smallest_error_wins():
    table, validation = make_table(), make_table(VALIDATION, seed=9)
    decays = 0.0, 100.0  # the latter leaves nothing of a network
    found = train_ensemble(table, validation, SETTINGS.with_changes({"weight_decays": decays}), seed=0)
    assert found.race["weight_decay"] == 0.0
    assert found.race["rmse"][0] < found.race["rmse"][1]
    alone = train_ensemble(table, validation, SETTINGS.with_changes({"weight_decays": [0.0]}), seed=0)
    np.testing.assert_allclose(found.out_of_fold, alone.out_of_fold, rtol=1e-3, atol=1e-3)


def test_the_race_counts_the_error_of_the_mean_of_all_members():
    """With two members it is exactly that of their mean."""
    table, validation = make_table(), make_table(VALIDATION, seed=9)
    two = SETTINGS.with_changes({"members": 2, "weight_decays": (0.1, 100.0)})
    found = train_ensemble(table, validation, two, seed=0)
    error = found.predict(validation.inputs).mean(axis=0) - validation.targets
    assert found.race["rmse"][0] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)


def test_a_member_that_went_astray_is_trained_again(monkeypatch):
    """Its residuals would be taken for noise."""
    table, validation = make_table(), make_table(VALIDATION, seed=9)
    plain = SETTINGS.with_changes({"weight_decays": (0.1,)})
    usual = train_ensemble(table, validation, plain, seed=0)
    assert usual.race["trained_again"] == []
    original, rates = ensemble._train_group, []

    def train(group, *rest):
        rates.append(rest[-1].learning_rate)
        found = original(group, *rest)
        astray = rates[-1] == plain.learning_rate
        pairs = zip(group.seeds, found, strict=True)
        return [replace(each, weights=50.0 * each.weights) if astray and seed == 2 else each for seed, each in pairs]

    monkeypatch.setattr(ensemble, "_train_group", train)
    mended = train_ensemble(table, validation, plain, seed=0)
    assert mended.race["trained_again"] == [2]
    assert rates[2:] == [plain.learning_rate / 3]
    kept = slice(0, len(usual.folds[0]) + len(usual.folds[1]))
    np.testing.assert_array_equal(mended.out_of_fold[kept], usual.out_of_fold[kept])
    assert float(mended.weights[2].abs().max()) < 10.0 * float(usual.weights[2].abs().max())


def test_of_two_members_one_can_have_gone_astray():
    """Half the sum of two errors is never far below the larger one: the smaller one is what it is compared with."""
    table, validation = make_table(), make_table(VALIDATION, seed=9)
    plain = SETTINGS.with_changes({"members": 2, "weight_decays": (0.1,)})
    found = train_ensemble(table, validation, plain, seed=0)
    members = [
        ensemble._Member(network, weights, found.out_of_fold, 0.1)
        for network, weights in zip(found.networks, found.weights, strict=True)
    ]
    assert ensemble._failed(members, found.clip, validation, plain, found.device) == []
    members[1] = replace(members[1], weights=50.0 * members[1].weights)
    assert ensemble._failed(members, found.clip, validation, plain, found.device) == [1]


@pytest.mark.slow
def test_processes_find_what_threads_find(monkeypatch):
    monkeypatch.setattr(ensemble, "_MANY_STEPS", 0)  # long training: one member for each process
    table, validation = make_table(), make_table(VALIDATION, seed=9)
    here = train_ensemble(table, validation, SETTINGS, seed=1)
    told = []
    there = train_ensemble(table, validation, SETTINGS, seed=1, threads=2, processes=True, progress=told.append)
    np.testing.assert_array_equal(here.out_of_fold, there.out_of_fold)
    np.testing.assert_array_equal(here.weights, there.weights)
    assert [part.split(",")[0] for part in told] == [f"network {count} of 6" for count in (2, 4, 5, 6)]
    # The score is that of the rows which the last group left out.
    fold = there.folds[-1]
    left_out, predicted = table.targets[fold], there.out_of_fold[-len(fold) :]
    expected = 1.0 - np.mean((left_out - predicted) ** 2) / left_out.var()
    assert told[-1].endswith(f", left-out R2 {expected:.3f}")


def test_errors_far_off_pull_no_harder(generator):
    features, heads = torch.randn(1, 50, 3, generator=generator), LaggedHeads(1, 3, [50])
    targets = torch.zeros(1, 50)
    targets[0, 7] = 4.0 * 0.1**0.5  # the noise variance is 0.1 at first
    heads.weights = torch.randn(1, 3, 1, generator=generator) * 1e-6
    there = heads.gradient(features, targets, None)
    targets[0, 7] *= 100.0
    torch.testing.assert_close(heads.gradient(features, targets, None), there, rtol=1e-4, atol=1e-9)


def test_rows_are_weighted_by_their_noise(generator):
    """The logarithm of the noise is linear in the first feature here: weights fall with it, and their mean is one."""
    heads = LaggedHeads(1, 3, [5000])
    slopes = torch.tensor([[1.0], [0.0], [0.0]])
    weights = torch.tensor([[0.5], [-1.0], [2.0]])
    for number in range(400):
        features = torch.randn(1, 128, 3, generator=generator)
        deviation = 0.1 * torch.exp(0.5 * features[0] @ slopes)
        targets = (features[0] @ weights + deviation * torch.randn(128, 1, generator=generator)).t()
        if number >= 10:
            heads.gradient(features, targets, None)
        heads.take_up(features, targets, None)
        if number % 5 == 4:
            heads.refresh()
    assert heads.log_slopes[0, :, 0].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=0.15)
    features = torch.randn(1, 1000, 3, generator=generator)
    found = heads.row_weights(features, None)[0]
    assert float(found.mean()) == pytest.approx(1.0, rel=1e-5)
    relation = np.corrcoef(found.log().numpy(), features[0, :, 0].numpy())[0, 1]
    assert relation < -0.98
    counts = torch.full((1, 1000), 2.0)
    torch.testing.assert_close(heads.row_weights(features, counts)[0], 2.0 * found)


def test_clip_ends_one_deviation_outside():
    table = make_table()
    clip = fit_clip(table.inputs)
    np.testing.assert_allclose(clip(torch.full((1, 3), 1e9)).numpy()[0], table.inputs.max(axis=0) + 1.0, rtol=1e-6)
