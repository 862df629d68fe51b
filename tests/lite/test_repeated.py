"""Rows that come again are predicted by what equal rows had, as often as it was the same; by every verb alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scaled_fits import make_gaussian
from scipy import integrate, stats

from finitegp import GPRegressor, TableRegressor
from finitegp.automatic import fit_auto
from finitegp.automatic.misleading_rows import find_repeated_rows, pairs_by_chance
from finitegp.errors import DataError, ModelFileError
from finitegp.lite import load
from finitegp.lite.container import read_file, write_file
from finitegp.lite.hashing import RepeatedRows, input_codes, row_codes
from finitegp.persistence import load_fit, save_fit
from finitegp.predictive import StudentMixture


def repeating(count=300, seed=0, *, noise=1.0, again=0.3, same=0.9):
    """Rows of which some come again, most of these with the same target."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 3)).round(6)
    targets = inputs[:, 0] + noise * random.normal(size=count)
    copied = random.integers(0, count, size=round(again * count))
    other = targets[copied] + noise * random.normal(size=len(copied))
    kept = random.random(len(copied)) < same
    inputs = np.concatenate([inputs, inputs[copied]])
    order = random.permutation(len(inputs))
    return inputs[order], np.concatenate([targets, np.where(kept, targets[copied], other)])[order]


def by_hand(inputs, targets, counts=None):
    """Of each row left out whether the others with its inputs agree, and it with them: (others, agrees)."""
    counts = np.ones(len(targets), int) if counts is None else counts.astype(int)
    rows = [
        (tuple(row), value) for row, value, times in zip(inputs, targets, counts, strict=True) for _ in range(times)
    ]
    trials = []
    for number, (row, value) in enumerate(rows):
        others = [each for place, (other, each) in enumerate(rows) if other == row and place != number]
        if others and len(set(others)) == 1:
            trials.append((min(len(others), 3), others[0] == value))
    return trials


@pytest.mark.parametrize("counted", [False, True])
def test_agreement_is_that_of_rows_left_out_one_by_one(counted):
    inputs, targets = repeating(again=0.8, same=0.8)
    counts = 1.0 + (np.arange(len(targets)) % 7 == 0) if counted else None
    found = find_repeated_rows(inputs, targets, counts)
    trials = by_hand(inputs, targets, counts)
    expected = 0.5
    for others in (1, 2, 3):
        agree = [agrees for count, agrees in trials if count == others]
        assert len(agree) > 2
        expected = (sum(agree) + 2.0 * expected) / (len(agree) + 2)
        most = (len(trials) + 1) / (len(trials) + 2)
        assert found.agreement[others - 1] == pytest.approx(min(expected, most), abs=1e-12)


def test_more_rows_that_agree_are_no_less_than_fewer_where_there_is_no_evidence():
    inputs = np.random.default_rng(0).normal(size=(100, 2))
    inputs = np.concatenate([inputs, inputs[:30]])  # pairs, and no more
    found = find_repeated_rows(inputs, inputs[:, 0], None)
    assert found.agreement[0] == found.agreement[1] == found.agreement[2] == pytest.approx(61 / 62)


def test_what_is_claimed_of_new_rows_holds():
    """Rows and new rows of one kind: the seen target comes as often as is claimed, by the number of rows seen."""
    inputs, targets = repeating(6000, again=1.5, same=0.85)
    found = find_repeated_rows(inputs[5000:], targets[5000:], None)
    values, chances = found.look_up(inputs[:5000])
    same = np.abs(values - targets[:5000]) <= found.tolerance
    assert (chances > 0).mean() > 0.2
    for chance in np.unique(chances[chances > 0]):
        which = chances == chance
        assert same[which].mean() == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / which.sum()) + 0.01)
    assert not same[chances == 0].any()


def test_only_rows_that_repeat_by_themselves_with_the_same_target():
    inputs, targets = repeating()
    random = np.random.default_rng(1)
    assert find_repeated_rows(inputs, targets, None) is not None
    different = np.unique(inputs, axis=0)
    assert find_repeated_rows(different, random.normal(size=len(different)), None) is None, "nothing repeats"
    twice = np.repeat(different, 2, axis=0)
    assert find_repeated_rows(twice, np.repeat(random.normal(size=len(different)), 2), None) is None, "all twice"
    assert find_repeated_rows(inputs, random.normal(size=len(targets)), None) is None, "measured again"
    coins = (random.random(len(targets)) < 0.9).astype(float)
    assert find_repeated_rows(inputs, coins, None) is None, "the same by chance"
    assert find_repeated_rows(inputs[:20], targets[:20], None) is None, "too few"
    assert find_repeated_rows(inputs, targets, np.full(len(targets), 1.5)) is None, "weights"
    assert find_repeated_rows(inputs, np.zeros(len(targets)), None) is None, "nothing to know"
    cells = np.stack(np.meshgrid(*3 * [np.arange(6.0)]), axis=-1).reshape(-1, 3)
    measured = random.normal(size=len(cells))
    pasted = random.choice(len(cells), size=40, replace=False)
    grid = np.concatenate([cells, cells[pasted]]), np.concatenate([measured, measured[pasted]])
    assert find_repeated_rows(*grid, None) is None, "a grid of which some rows were pasted twice"
    assert find_repeated_rows(grid[0] + 1e-3 * np.arange(3) * grid[1][:, None], grid[1], None) is not None, "no grid"


def test_a_category_is_as_coarse_in_columns_of_its_own_as_in_one():
    random = np.random.default_rng(0)
    shops, sizes = random.integers(0, 40, 600), random.integers(0, 9, (600, 2)).astype(float)
    one_hot = (shops[:, None] == np.arange(40)).astype(float)
    expected = pairs_by_chance(np.column_stack([shops, sizes]))
    assert pairs_by_chance(np.column_stack([one_hot, sizes])) == pytest.approx(expected)
    assert pairs_by_chance(np.column_stack([one_hot[:, :1], sizes[:, :1]])) > 100.0 * expected


def test_pairs_by_chance_are_those_of_shuffled_columns():
    random = np.random.default_rng(0)
    inputs = random.integers(0, 4, size=(400, 3)).astype(float) ** 2
    found = []
    for _ in range(200):
        shuffled = np.column_stack([random.permutation(column) for column in inputs.T])
        sizes = np.unique(shuffled, axis=0, return_counts=True)[1]
        found.append(float((sizes * (sizes - 1.0)).sum()))
    assert pairs_by_chance(inputs) == pytest.approx(np.mean(found), rel=0.02)


def test_rows_come_and_go_as_in_a_dictionary():
    random = np.random.default_rng(0)
    found = RepeatedRows(input_codes(np.full((1, 2), 9.0)), np.zeros(1), np.ones(1), np.array([0.5, 0.6, 0.7]), 1e-6)
    kept = {(9.0, 9.0): [0.0]}
    every = np.array([[one, two] for one in range(3) for two in range(3)], float)
    disagreed = 0
    for _ in range(60):
        inputs, targets = random.integers(0, 3, size=(5, 2)).astype(float), random.integers(0, 3, size=5).astype(float)
        found = found.added(inputs, targets)
        for row, value in zip(map(tuple, inputs), targets, strict=True):
            kept.setdefault(row, []).append(value)
        rows = [(row, value) for row, values in kept.items() for value in values]
        for number in random.choice(len(rows), size=min(4, len(rows) - 1), replace=False):
            row, value = rows[number]
            found = found.without(np.array([row]), np.array([value]))
            kept[row].remove(value)
        values, chances = found.look_up(every)
        for place, value, chance in zip(map(tuple, every), values, chances, strict=True):
            seen = kept.get(place, [])
            disagreed += len(set(seen)) > 1
            assert chance == (0.0 if len(set(seen)) != 1 else found.agreement[min(len(seen), 3) - 1])
            assert chance == 0.0 or value == seen[0]
    assert disagreed
    for row, own in rows:
        if own in kept[row]:
            left = found.without(np.array([row]), np.array([own])).look_up(np.array([row]))
            found_without = found.look_up(np.array([row]), np.array([own]))
            assert left.chances == found_without.chances
            assert left.values == found_without.values
    assert found.has(np.array([rows[0][0]]), np.array([0.5])).tolist() == [False]


def test_inputs_in_32_bits_are_those_in_64():
    random = np.random.default_rng(0)
    inputs = np.concatenate([random.normal(size=(1000, 3)), 1e30 * random.normal(size=(1000, 3)), np.zeros((1, 3))])
    np.testing.assert_array_equal(input_codes(inputs), input_codes(inputs.astype(np.float32).astype(np.float64)))
    assert len(np.unique(input_codes(np.concatenate([inputs, 1e200 * inputs[:-1]])))) == 4001


def test_merging_is_adding():
    one, two = repeating(seed=1), repeating(seed=1)
    first = find_repeated_rows(*one, None)
    together, added = first.merged(find_repeated_rows(*two, None)), first.added(*two)
    for name in ("codes", "targets", "counts"):
        np.testing.assert_array_equal(getattr(together, name), getattr(added, name))


def test_codes_are_of_equal_rows():
    random = np.random.default_rng(0)
    rows = random.integers(0, 4, size=(2000, 3)) * 0.1 - 0.1
    codes, groups = row_codes(rows.T), np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    assert len(np.unique(codes)) == groups.max() + 1 == len(np.unique(np.column_stack([codes, groups]), axis=0))
    assert (input_codes(rows) < 2**53).all()


def test_mixtures_with_values_by_integration():
    base = StudentMixture(
        np.array([0.3, 0.7]),
        np.array([[0.0, 1.0], [0.5, 1.5]]),
        np.array([[1.0, 0.5], [2.0, 0.3]]),
        np.array([[5.0], [np.inf]]),
    )
    mixture = base.with_values(np.array([2.0, 0.0]), np.array([0.6, 0.0]), 0.01)
    parts = [stats.t(5.0, 0.0, 1.0), stats.norm(0.5, 2.0), stats.norm(2.0, 0.01)]
    weights = [0.12, 0.28, 0.6]
    for value in (-1.0, 1.995, 2.0, 2.3):
        density = sum(weight * part.pdf(value) for weight, part in zip(weights, parts, strict=True))
        below = sum(weight * part.cdf(value) for weight, part in zip(weights, parts, strict=True))
        row = mixture.take(np.array([0]))
        assert float(np.exp(row.log_density(np.array([value])))[0]) == pytest.approx(density, rel=1e-10)
        assert float(row.cumulative(np.array([value]))[0]) == pytest.approx(below, rel=1e-10)
        assert float(row.quantile(below)[0]) == pytest.approx(value, rel=1e-9)

        def square(place, value=value):
            return (sum(w * p.cdf(place) for w, p in zip(weights, parts, strict=True)) - (place >= value)) ** 2

        ends = [-1000.0, value, 1.9, 2.0, 2.1, 1000.0]
        crps = sum(
            integrate.quad(square, *pair, limit=400)[0] for pair in zip(sorted(ends), sorted(ends)[1:], strict=False)
        )
        assert float(row.crps(np.array([value]))[0]) == pytest.approx(crps, rel=1e-5)
    mean = 0.28 * 0.5 + 0.6 * 2.0
    assert float(mixture.mean[0]) == pytest.approx(mean, rel=1e-12)
    moment = 0.12 * 5.0 / 3.0 + 0.28 * (4.0 + 0.25) + 0.6 * (1e-4 + 4.0)
    assert float(mixture.variance[0]) == pytest.approx(moment - mean**2, rel=1e-12)
    # The second row is new: it is what it was.
    for name in ("mean", "variance"):
        assert getattr(mixture, name)[1] == pytest.approx(getattr(base, name)[1], rel=1e-14)
    for probability in (0.05, 0.5, 0.9):
        assert mixture.quantile(probability)[1] == pytest.approx(base.quantile(probability)[1], rel=1e-14)
    joined = StudentMixture.concatenate([mixture, mixture.take(np.array([0]))])
    np.testing.assert_array_equal(joined.mean, mixture.mean[[0, 1, 0]])


@pytest.fixture(scope="module")
def fit():
    return fit_auto(*repeating(), effort="low", settings={"trees": 0})


def test_predictions_of_rows_that_were_seen(fit):
    inputs, _ = repeating()
    assert fit.repeated is not None
    values, chances = fit.repeated.look_up(inputs)
    plain, found = replace(fit, repeated=None).predict(inputs), fit.predict(inputs)
    known = torch.from_numpy(chances > 0.0)
    assert 0 < int(known.sum()) < len(known)
    for name in ("mean", "std"):
        torch.testing.assert_close(getattr(found, name)[~known], getattr(plain, name)[~known], rtol=1e-12, atol=0.0)
    expected = plain.mean + torch.from_numpy(chances * (values - plain.mean.numpy()))
    torch.testing.assert_close(found.mean, expected)
    torch.testing.assert_close(fit.predict_mean(inputs), found.mean)
    assert bool((found.std[known] < plain.std[known]).all())
    torch.testing.assert_close(found.noise_variance / found.variance, plain.noise_variance / plain.variance)
    low, high = found.interval(0.5)
    sure = torch.from_numpy(chances > 0.8)
    assert float((high - low)[sure].max()) < 1e-4
    new = np.ones(len(inputs), bool)
    torch.testing.assert_close(fit.predict(inputs, new=new).mean, plain.mean, rtol=1e-12, atol=1e-12)
    joint = fit.predict(inputs[:9], return_covariance=True)
    torch.testing.assert_close(joint.covariance.diagonal(), joint.epistemic_variance)


def test_draws_have_the_distribution_that_is_predicted(fit):
    inputs = repeating()[0][:30]
    found, draws = fit.predict(inputs), fit.sample(inputs, 4000, seed=1)
    for probability in (0.1, 0.5, 0.9):
        below = (draws < found.quantile(probability) + 1e-9).double().mean(dim=0)
        exact = found.cumulative(found.quantile(probability) + 1e-9)
        assert float((below - exact).abs().max()) < 0.05
    # Rows that are none that were seen, though their inputs are equal, have none of their targets.
    new = np.arange(30) % 2 == 0
    found, draws = fit.predict(inputs, new=new), fit.sample(inputs, 4000, seed=1, new=new)
    plain = replace(fit, repeated=None).sample(inputs, 4000, seed=1)
    assert torch.equal(draws[:, new], plain[:, new])
    below = (draws < found.quantile(0.5) + 1e-9).double().mean(dim=0)
    assert float((below - found.cumulative(found.quantile(0.5) + 1e-9)).abs().max()) < 0.05


def test_a_row_that_is_left_out_is_a_row_that_is_forgotten(fit):
    inputs, targets = repeating()
    left_out = fit.leave_one_out(inputs, targets).mixture.weights[-1]
    kinds = set()
    for number, (row, value) in enumerate(zip(inputs, targets, strict=True)):
        seen = fit.repeated.without(row[None], value[None]).look_up(row[None])
        assert left_out[number] == seen.chances[0]
        kinds.add((fit.repeated.look_up(row[None]).chances[0], seen.chances[0]))
    assert len(kinds) > 3  # single ones, pairs that agree, and pairs that do not


def test_what_was_taken_in_by_mistake_can_be_taken_back(fit):
    inputs, _ = repeating()
    before = fit.predict(inputs[:5])
    wrong = fit.update(inputs[:5], before.mean + 1.0)
    assert bool((wrong.predict(inputs[:5]).std > before.std).any())
    after = wrong.forget(inputs[:5], before.mean + 1.0).predict(inputs[:5])
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(after.std, before.std, rtol=1e-6, atol=1e-8)


def test_copies_count_once_however_they_come():
    inputs, targets = repeating(200, again=0.5, same=1.0)
    fit = fit_auto(inputs, targets, effort="low", settings={"trees": 0})
    assert fit.counts_copies_once
    more = repeating(40, seed=5, again=0.5, same=1.0)
    together, one_by_one = fit.update(*more), fit
    for row, value in zip(*more, strict=True):
        one_by_one = one_by_one.update(row[None], value[None])
    asked = np.random.default_rng(2).normal(size=(20, 3))
    torch.testing.assert_close(one_by_one.predict(asked).mean, together.predict(asked).mean, rtol=1e-8, atol=1e-8)
    assert together.num_data == one_by_one.num_data == fit.num_data + 40
    for row, value in zip(*more, strict=True):
        one_by_one = one_by_one.forget(row[None], value[None])
    assert one_by_one.num_data == fit.num_data
    torch.testing.assert_close(one_by_one.predict(asked).mean, fit.predict(asked).mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        together.forget(*more).predict(asked).mean, fit.predict(asked).mean, rtol=1e-7, atol=1e-7
    )


def test_rows_that_are_taken_in_are_known_then():
    base = make_gaussian()
    inputs, targets = repeating()
    base = replace(base, repeated=find_repeated_rows(inputs, targets, None))
    new, value = np.array([[3.0, 3.0]]), np.array([7.0])
    assert base.repeated.look_up(np.column_stack([new, new[:, :1]])).chances[0] == 0.0
    base = replace(base, repeated=find_repeated_rows(inputs[:, :2], targets, None))
    more = base.update(new, value)
    chance = base.repeated.agreement[0]
    assert float(more.predict(new).mean[0]) == pytest.approx(
        float((1 - chance) * replace(more, repeated=None).predict(new).mean[0] + chance * 7.0)
    )
    again = more.forget(new, value)
    torch.testing.assert_close(again.predict(new).mean, base.predict(new).mean)
    assert again.repeated.look_up(new).chances[0] == 0.0
    assert base.merge(more).repeated.look_up(new).chances[0] == chance
    assert replace(base, repeated=None).merge(more).repeated is more.repeated


def test_files_and_the_small_reader(fit, tmp_path):
    inputs, _ = repeating()
    path = tmp_path / "model.finitegp"
    save_fit(fit, path)
    torch.testing.assert_close(load_fit(path).predict(inputs).mean, fit.predict(inputs).mean)
    model = load(path)
    found, expected = model.predict(inputs), fit.predict(inputs)
    for mine, theirs in ((found.mean, expected.mean), (found.std, expected.std)):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-9)
    for coverage in (0.5, 0.95):
        for mine, theirs in zip(found.interval(coverage), expected.interval(coverage), strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-9, atol=1e-9)
    new = np.array([[5.0, 5.0, 5.0]])
    changed = model.update(new, [3.0])
    changed.save(tmp_path / "changed.finitegp")
    again = load_fit(tmp_path / "changed.finitegp")
    assert again.repeated.look_up(new).values[0] == 3.0
    assert changed.forget(new, [3.0]).fits[0].repeated.look_up(new).chances[0] == 0.0
    assert model.merge(changed).fits[0].repeated.look_up(new).chances[0] == fit.repeated.agreement[0]


@pytest.mark.parametrize(
    ("name", "value"), [("agreement", [0.5, 0.5]), ("agreement", [0.5, 0.5, 1.5]), ("tolerance", 0.0), ("counts", -1.0)]
)
def test_damaged_files_are_refused(fit, name, value, tmp_path):
    path = tmp_path / "model.finitegp"
    save_fit(fit, path)
    header, arrays = read_file(path)
    if name == "counts":
        arrays["fits.0.repeated.counts"] = np.full_like(arrays["fits.0.repeated.counts"], value)
    else:
        header["fits"][0]["repeated"][name] = value
    write_file(path, header, arrays)
    with pytest.raises(ModelFileError, match="rows that repeat"):
        load_fit(path)


def test_nothing_is_kept_where_no_row_may_be():
    inputs, targets = repeating()
    regressor = GPRegressor(effort="low", keep_rows=False).fit(inputs, targets)
    assert regressor.fits_[0].repeated is None
    quick = {"small_rows": 50, "most_rows_for_both": 50, "steps": 20, "max_steps": 20, "noise_steps": 10, "trees": 0}
    assert fit_auto(inputs, targets, effort="low", settings=quick).repeated is not None
    assert fit_auto(inputs, targets, effort="low", settings=quick, keep_rows=False).repeated is None
    assert fit_auto(inputs, targets, effort="low", settings=quick, may_be_copies=False).repeated is None
    regressor = GPRegressor(effort="low", repeated_rows=False).fit(inputs, targets)
    assert regressor.fits_[0].repeated is None
    assert regressor.fits_[0].keeps_rows


def test_a_row_with_a_new_category_is_not_one_that_was_seen():
    inputs, targets = repeating(150)
    table = {"a": inputs[:, 0], "kind": np.where(inputs[:, 1] > 0, "x", "y"), "b": inputs[:, 2]}
    model = TableRegressor(effort="low").fit(table, targets)
    assert model.regressor_.fits_[0].repeated is not None
    row = {name: values[:1] for name, values in table.items()}
    with pytest.warns(UserWarning, match="kind"):
        _, std = model.predict(row | {"kind": np.array(["z"])}, return_std=True)
    _, seen = model.predict(row, return_std=True)
    assert std[0] > 3.0 * seen[0]


@pytest.mark.parametrize("verb", ["update", "forget"])
def test_wrong_rows_are_refused_by_name_and_change_nothing(fit, verb):
    before = fit.repeated.counts.copy()
    with pytest.raises(DataError, match="targets"):
        getattr(fit, verb)(np.zeros((2, 3)), np.zeros(3))
    np.testing.assert_array_equal(fit.repeated.counts, before)
