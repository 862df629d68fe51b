"""``GPRegressor(memory_budget=…)``, and arrays that stay on disk in their own precision."""

import numpy as np
import pytest
from budget_rows import QUICK, make_rows

from finitegp import GPRegressor
from finitegp.automatic import EFFORTS
from finitegp.data import ArraySource
from finitegp.data.row_files import RowFile
from finitegp.errors import DataError


@pytest.fixture
def quick_low(monkeypatch):
    monkeypatch.setitem(EFFORTS, "low", EFFORTS["low"].with_changes(QUICK | {"max_sample": 2500}))


@pytest.fixture
def mapped(tmp_path):
    inputs, targets = make_rows(12_000)
    np.save(tmp_path / "inputs.npy", inputs.astype(np.float32))
    np.save(tmp_path / "targets.npy", targets)
    return tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("inputs", "targets"))


def test_fit_predict_update_save(quick_low, tmp_path):
    inputs, targets = make_rows(2500)
    gp = GPRegressor(effort="low", memory_budget="16MB", random_state=0).fit(inputs, targets)
    assert gp.fits_[0].record["path"] == "networks"
    assert gp.score(inputs, targets) > 0.6
    assert np.isfinite(gp.log_marginal_likelihood())
    chunk = gp.fits_[0].chunk_size
    assert chunk < 4096
    gp.save(tmp_path / "m.finitegp")
    again = GPRegressor.load(tmp_path / "m.finitegp")
    assert (again.memory_budget, again.fits_[0].chunk_size) == ("16MB", chunk)
    for one, other in zip(again.predict(inputs, return_std=True), gp.predict(inputs, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    gp.partial_fit(inputs[:10], targets[:10])
    assert gp.fits_[0].num_data == 2510
    assert gp.fits_[0].chunk_size == chunk


def test_the_bill_is_shown(quick_low, capfd):
    GPRegressor(effort="low", memory_budget="16MB", random_state=0, verbose=True).fit(*make_rows(2500))
    assert "Memory budget 16.0MB, planned peak" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"memory_budget": "lots"}, "memory_budget must be None or a size: 'lots' is not a size"),
        ({"memory_budget": [64]}, "memory_budget must be None or a size: A size must be text"),
        ({"memory_budget": 0}, "memory_budget must be None or a size"),
        ({"memory_budget": "64MB", "feature_map": "mlp"}, "memory_budget is for the automatic fit"),
    ],
)
def test_bad_budgets(parameters, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**parameters).fit(*make_rows(50))


class TestArraysOnDisk:
    def test_the_fit_is_that_of_the_same_numbers_in_memory(self, quick_low, mapped):
        inputs, targets = (np.asarray(part, dtype=np.float64) for part in mapped)
        on_disk, in_memory, listed = (
            GPRegressor(effort="low", random_state=0, memory_budget="32MB").fit(X, y)
            for X, y in (mapped, (inputs, targets), (inputs.tolist(), targets.tolist()))
        )
        assert on_disk.n_features_in_ == 3
        expected = in_memory.predict(inputs, return_std=True)
        for found in (on_disk.predict(mapped[0], return_std=True), listed.predict(inputs, return_std=True)):
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_allclose(on_disk.predict(mapped[0]), expected[0], rtol=1e-9)
        assert on_disk.log_marginal_likelihood() == pytest.approx(in_memory.log_marginal_likelihood(), rel=1e-12)

    def test_files_are_read_instead_of_mapped(self, mapped, tmp_path):
        source = ArraySource(*mapped)
        assert isinstance(source.inputs, RowFile)
        assert isinstance(source.targets, RowFile)
        np.testing.assert_array_equal(source.take(np.array([5, 3])).inputs, mapped[0][[5, 3]])
        # A part of a file, and one with other bytes behind the rows, stay what they are.
        assert isinstance(ArraySource(mapped[0][10:]).inputs, np.memmap)
        assert isinstance(ArraySource(mapped[0][:, :2]).inputs, np.memmap)
        with open(tmp_path / "longer", "wb") as file:
            file.write(np.arange(7.0).tobytes())
        longer = np.memmap(tmp_path / "longer", dtype=np.float64, mode="r", shape=(2, 3))
        np.testing.assert_array_equal(ArraySource(longer).take(np.array([1])).inputs, [[3.0, 4.0, 5.0]])
        changed = np.load(tmp_path / "inputs.npy", mmap_mode="c")
        changed[5] = 7.0  # not in the file
        assert float(ArraySource(changed).take(np.array([5])).inputs[0, 0]) == 7.0

    def test_bad_rows_are_named(self, quick_low, mapped):
        wrong = np.array(mapped[0])
        wrong[11_999, 2] = np.inf
        with pytest.raises(DataError, match="row 11999, column 2 is inf"):
            GPRegressor(effort="low").fit(wrong, mapped[1])
        with pytest.raises(DataError, match="X has 12000 rows, but y has 11999"):
            GPRegressor(effort="low").fit(mapped[0], mapped[1][1:])
        gp = GPRegressor(effort="low", random_state=0).fit(*mapped)
        with pytest.raises(DataError, match="row 11999, column 2 is inf"):
            gp.predict(wrong)
        with pytest.raises(ValueError, match="X has 2 features, but GPRegressor is expecting 3"):
            gp.predict(np.array(mapped[0][:, :2]))

    def test_weights_and_several_targets(self, quick_low, mapped):
        weights = np.ones(12_000)
        both = np.column_stack([mapped[1], -np.asarray(mapped[1])])
        gp = GPRegressor(effort="low", random_state=0).fit(mapped[0], both, sample_weight=2.0 * weights)
        assert [fit.num_data for fit in gp.fits_] == [24_000.0, 24_000.0]
        weights[:100] = 0.0
        without = GPRegressor(effort="low", random_state=0).fit(*mapped, sample_weight=weights)
        assert without.fits_[0].num_data == 11_900
