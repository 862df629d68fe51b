"""Batches from sources on disk: uniform over all rows, unbiased in the exhaustive test, and reproducible."""

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from algorithm_problems import NUM_DATA, assert_same_gradients, exact_quantities, gradients_of, tiny_problem
from scipy.stats import chisquare

from finitegp import SCGD, DataError, FeatureGP, Lagged, exact_gradient, train
from finitegp.callbacks import Checkpoint
from finitegp.data import NpySource, Rows, StreamSource, spool
from finitegp.data import sampling as sampling_module
from finitegp.data.sampling import RandomPermutation, Sampler, mix_seed
from finitegp.features import MLPFeatures
from finitegp.schedules import make_optimizer
from finitegp.tables.source import TableSource

# Seeds are fixed, so these tests give the same result in every run; a uniform sampler fails one in ten thousand seeds.
LIKELY = 1e-4
ROOT = Path(__file__).resolve().parents[2]  # where `benchmarks` is


def sorted_table(directory, rows, files=3):
    """Parquet files whose only input and whose target are the number of the row."""
    numbers = np.arange(float(rows))
    for part, values in enumerate(np.array_split(numbers, files)):
        pq.write_table(pa.table({"x": values, "y": values}), directory / f"{part}.parquet", row_group_size=97)
    return TableSource(directory, "y")


def drawn(sampler, epochs, batches):
    """The rows in the first few batches of some epochs."""
    parts = [
        batch.targets[:, 0] for epoch in range(epochs) for batch in itertools.islice(sampler.epoch(epoch), batches)
    ]
    return torch.cat(parts).long().numpy()


# A permutation that is kept, one that is computed, and draws with replacement.
KINDS = pytest.mark.parametrize(("sampling", "kept"), [("shuffle", True), ("shuffle", False), ("independent", True)])


@KINDS
def test_rows_of_a_sorted_table_are_drawn_uniformly(tmp_path, monkeypatch, seed, sampling, kept):
    if not kept:
        monkeypatch.setattr(sampling_module, "_KEPT_PERMUTATION", 0)
    table = sorted_table(tmp_path, 600)
    sampler = Sampler(table, 10, sampling=sampling, seed=seed, dtype=torch.float64, gathered_batches=2)
    counts = np.bincount(drawn(sampler, epochs=300, batches=2), minlength=600)
    assert chisquare(counts).pvalue > LIKELY


def test_the_chi_square_test_finds_out_a_moving_window():
    """It has the power to: rows mixed only with their neighbours, as a shuffle buffer mixes a sorted file."""
    random = np.random.default_rng(0)
    first_rows = [random.permutation(60)[:20] for _ in range(100)]  # the first two batches of ten, of a window of 60
    assert chisquare(np.bincount(np.concatenate(first_rows), minlength=600)).pvalue < 1e-12


class TestRandomPermutation:
    @pytest.mark.parametrize("size", [1, 2, 3, 6, 64, 65, 1000, 70_001])
    def test_is_a_permutation(self, seed, size):
        found = RandomPermutation(size, mix_seed(seed, 0, 0))(np.arange(size))
        assert np.array_equal(np.sort(found), np.arange(size))

    def test_is_computed_entry_by_entry(self, seed):
        permutation = RandomPermutation(10**12, seed)
        whole = permutation(np.arange(100))
        assert np.array_equal(np.concatenate([permutation(np.arange(100)[i : i + 1]) for i in range(100)]), whole)
        assert len(set(whole.tolist())) == 100
        assert chisquare(np.bincount(RandomPermutation(10**12, 3)(np.arange(20_000)) * 50 // 10**12)).pvalue > LIKELY

    @pytest.mark.parametrize("size", [7, 20, 33])
    def test_all_ordered_pairs_are_equally_frequent(self, size, seed):
        epochs = np.array([mix_seed(seed, 0, epoch) for epoch in range(60_000)], dtype=np.uint64)
        first, second = (RandomPermutation(size, epochs)(np.full(len(epochs), place)) for place in (1, size - 1))
        counts = np.bincount(first * size + second, minlength=size**2).reshape(size, size)
        assert np.diagonal(counts).sum() == 0
        assert chisquare(counts[~np.eye(size, dtype=bool)]).pvalue > LIKELY

    def test_distances_of_neighbours_are_spread(self, seed):
        size = 100_003
        found = RandomPermutation(size, mix_seed(seed, 1, 0))(np.arange(size))
        steps = np.diff(found) % size
        assert chisquare(np.bincount(steps * 200 // size, minlength=200)).pvalue > LIKELY

    def test_refuses_sizes_it_cannot_do(self):
        with pytest.raises(ValueError, match="size must lie"):
            RandomPermutation(0, 1)


def every_source(directory, rows):
    """The six rows through each source that claims uniformity."""
    arrays = [part.numpy() for part in rows if part is not None]
    names = [name for name, part in zip(Rows._fields, rows, strict=True) if part is not None]
    columns = dict(zip("abc", arrays[0].T, strict=True)) | {"y": arrays[1][:, 0]}
    columns |= dict(zip(names[2:], arrays[2:], strict=True))
    special = {name: name for name in names[2:]}
    yield "arrays", tuple(arrays)
    yield "chunks", [tuple(part[:4] for part in arrays), tuple(part[4:] for part in arrays)]
    paths = {name: directory / f"{name}.npy" for name in names}
    for path, array in zip(paths.values(), arrays, strict=True):
        np.save(path, array)
    yield "npy", NpySource(**paths, chunk_size=2)
    (directory / "parquet").mkdir()
    for part, (start, stop) in enumerate([(0, 1), (1, 6)]):
        table = pa.table({name: values[start:stop] for name, values in columns.items()})
        pq.write_table(table, directory / "parquet" / f"{part}.parquet")
    yield "parquet", TableSource(directory / "parquet", "y", **special, chunk_size=2)
    lines = [",".join(map(repr, line)) for line in zip(*(values.tolist() for values in columns.values()), strict=True)]
    (directory / "table.csv").write_text(",".join(columns) + "\n" + "\n".join(lines) + "\n")
    yield "csv", TableSource(directory / "table.csv", "y", **special)
    yield "stream", StreamSource(zip(*arrays, strict=True))
    yield "spool", spool(tuple(arrays), directory / "spool", input_dtype="float64", chunk_size=4)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ("shuffle", True),
        pytest.param("shuffle", False, marks=pytest.mark.slow),
        pytest.param("independent", True, marks=pytest.mark.slow),
    ],
)
def test_exhaustive_unbiasedness_through_every_source(tmp_path, monkeypatch, generator, sampling, kept):
    """The mean gradient over all batches that can be drawn is the exact gradient, and they are equally frequent."""
    if not kept:
        monkeypatch.setattr(sampling_module, "_KEPT_PERMUTATION", 0)
    model, rows = tiny_problem(generator, "input")
    gram, _, weights = exact_quantities(model, rows)
    algorithm = SCGD(model, NUM_DATA, input_dim=3)
    algorithm.tracked_gram.copy_(gram)
    algorithm.weights.data.copy_(weights)
    exact_gradient(model, rows)
    expected = {f"model.{name}": gradient / NUM_DATA for name, gradient in gradients_of(model).items()}
    number_of = {target: number for number, target in enumerate(rows.targets[:, 0].tolist())}
    for name, data in every_source(tmp_path, rows):
        sampler = Sampler(data, 2, sampling=sampling, seed=1, dtype=torch.float64)
        seen, counts = {}, Counter()
        for epoch in range(200):
            for batch in sampler.epoch(epoch):
                pair = tuple(number_of[target] for target in batch.targets[:, 0].tolist())
                pair = pair if sampling == "independent" else tuple(sorted(pair))
                seen[pair] = batch
                counts[pair] += 1
        number = 36 if sampling == "independent" else 15
        assert len(seen) == number, name
        assert chisquare(list(counts.values())).pvalue > LIKELY, name
        total = {}
        for batch in seen.values():
            for parameter in algorithm.parameters():
                parameter.grad = None
            algorithm.gradient(batch)
            for key, gradient in gradients_of(algorithm).items():
                total[key] = total.get(key, 0.0) + gradient / number
        assert_same_gradients(total, expected)


def test_counts_are_relative_weights_in_batches_of_every_source(tmp_path, generator):
    _, rows = tiny_problem(generator, "input")
    counts = torch.tensor([1.0, 4.0, 2.0, 2.5, 0.5, 2.0], dtype=torch.float64)  # mean 2
    rows = rows._replace(counts=counts)
    expected = dict(zip(rows.targets[:, 0].tolist(), (rows.weights * counts / 2.0).tolist(), strict=True))
    for name, data in every_source(tmp_path, rows):
        batches = list(Sampler(data, 4, dtype=torch.float64).epoch(0))
        assert all(batch.counts is None for batch in batches), name
        targets, weights = (torch.cat([getattr(batch, part) for batch in batches]) for part in ("targets", "weights"))
        assert dict(zip(targets[:, 0].tolist(), weights.tolist(), strict=True)) == pytest.approx(expected, rel=1e-14)


def test_a_source_of_counts_without_their_mean_is_refused(tmp_path, generator):
    data = spool((torch.zeros(3, 1), torch.zeros(3), None, torch.ones(3)), tmp_path)
    without_mean = replace(data.measure(), mean_count=None)
    data.measure = lambda: without_mean
    with pytest.raises(DataError, match="gives no mean_count"):
        next(Sampler(data, 2).epoch(0))


@pytest.mark.parametrize("sampling", ["shuffle", "independent"])
def test_batches_do_not_depend_on_how_they_are_read(tmp_path, monkeypatch, generator, sampling):
    monkeypatch.setattr(sampling_module, "_KEPT_PERMUTATION", 0)
    data = spool((torch.randn(103, 2, generator=generator), torch.arange(103.0)), tmp_path)
    samplers = [Sampler(data, 10, sampling=sampling, seed=5, gathered_batches=size) for size in (1, 3, 32)]
    epochs = [list(sampler.epoch(2, stream=1)) for sampler in samplers]
    assert [len(batch.inputs) for batch in epochs[0]] == [10] * 10 + ([3] if sampling == "shuffle" else [10])
    for other in epochs[1:]:
        assert all(torch.equal(one.inputs, two.inputs) for one, two in zip(epochs[0], other, strict=True))
    for sampler in samplers:
        rest = list(sampler.epoch(2, stream=1, skip=4))
        assert all(torch.equal(one.targets, two.targets) for one, two in zip(epochs[0][4:], rest, strict=True))
        for stop in (4, 5, 7, 500):
            some = list(sampler.epoch(2, stream=1, skip=4, stop=stop))
            assert all(torch.equal(one.targets, two.targets) for one, two in zip(rest[: stop - 4], some, strict=True))
    assert not torch.equal(epochs[0][0].targets, next(samplers[0].epoch(2)).targets)
    assert not torch.equal(epochs[0][0].targets, next(samplers[0].epoch(3, stream=1)).targets)


class TestTraining:
    def problem(self, generator, rows=300):
        inputs = torch.randn(rows, 2, generator=generator)
        targets = torch.sin(2.0 * inputs[:, 0]) + 0.1 * torch.randn(rows, generator=generator)
        return inputs, targets

    def trained(self, data, **arguments):
        model = FeatureGP(MLPFeatures(2, hidden=(8, 8), seed=0), noise_variance=0.1)
        algorithm = Lagged(model, num_data=300, block=5, window=50)
        run = train(algorithm, make_optimizer(algorithm), data, batch_size=32, **arguments)
        return model, run

    def test_from_disk_equals_arrays_to_the_bit(self, tmp_path, generator):
        inputs, targets = self.problem(generator)
        expected, _ = self.trained((inputs, targets), epochs=3)
        pq.write_table(
            pa.table({"a": inputs[:, 0].numpy(), "b": inputs[:, 1].numpy(), "y": targets.numpy()}),
            tmp_path / "t.parquet",
        )
        spooled = spool((inputs, targets), tmp_path / "cache")
        for data in (spooled, TableSource(tmp_path / "t.parquet", "y")):
            model, _ = self.trained(data, epochs=3)
            for one, two in zip(model.parameters(), expected.parameters(), strict=True):
                assert torch.equal(one, two)
        assert model.nlml(spooled) == expected.nlml((inputs, targets))
        fitted = model.condition(spooled)
        torch.testing.assert_close(
            fitted.predict(inputs[:5]).mean, expected.condition((inputs, targets)).predict(inputs[:5]).mean
        )

    def test_resumes_to_the_bit(self, tmp_path, generator, monkeypatch):
        monkeypatch.setattr(sampling_module, "_KEPT_PERMUTATION", 0)
        data = spool(self.problem(generator), tmp_path / "cache")
        expected, _ = self.trained(data, epochs=4)
        path = tmp_path / "run.safetensors"
        self.trained(data, epochs=2, callbacks=[Checkpoint(path)])
        model, run = self.trained(data, epochs=4, resume=path)
        assert run.epoch == 4
        assert all(torch.equal(one, two) for one, two in zip(model.parameters(), expected.parameters(), strict=True))

    def test_arguments_are_checked(self, tmp_path, generator):
        arrays = self.problem(generator)
        with pytest.raises(ValueError, match="sampling must be 'shuffle' or 'independent', but is 'sorted'"):
            Sampler(arrays, 10, sampling="sorted")
        with pytest.raises(ValueError, match="batch_size must be at least 1"):
            Sampler(spool(arrays, tmp_path), 0)
        with pytest.raises(DataError, match="made for 300 rows, but the data have 200"):
            self.trained(spool(tuple(part[:200] for part in arrays), tmp_path / "less"), epochs=1)

    def test_arrays_are_kept_in_memory_as_before(self, generator):
        inputs, targets = self.problem(generator)
        sampler = Sampler((inputs, targets), 32, seed=3)
        assert sampler.kept is not None
        order = torch.randperm(300, generator=torch.Generator().manual_seed(mix_seed(3, 0, 5)))
        batches = list(sampler.epoch(5))
        assert torch.equal(torch.cat([batch.inputs for batch in batches]), inputs[order])
        assert isinstance(batches[0], Rows)


MEMORY_SCRIPT = """
import json, sys, tempfile
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, torch
from finitegp import FeatureGP, Lagged, train
from finitegp.data import spool
from finitegp.tables.source import TableSource
from benchmarks.process_memory import peak_memory_bytes, reset_peak_memory, resident_memory_bytes
from finitegp.features import MLPFeatures
from finitegp.schedules import make_optimizer

torch.set_num_threads(1)
rows = int(sys.argv[1])
with tempfile.TemporaryDirectory() as directory:
    writer, random = None, np.random.default_rng(0)
    for start in range(0, rows, 50_000):
        values = random.normal(size=(17, min(50_000, rows - start))).astype(np.float32)
        table = pa.table({f"x{i}": column for i, column in enumerate(values)})
        writer = writer or pq.ParquetWriter(f"{directory}/t.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    del table, values
    # What torch and SciPy load when they are first used is none of the rows' business.
    model = FeatureGP(MLPFeatures(16, hidden=(16, 16), seed=0), noise_variance=1.0)
    algorithm = Lagged(model, num_data=20)
    train(algorithm, make_optimizer(algorithm), (torch.randn(20, 16), torch.randn(20)), epochs=1, batch_size=10)
    reset_peak_memory()
    before = resident_memory_bytes()
    data = spool(TableSource(f"{directory}/t.parquet", "x16"), f"{directory}/cache")
    model = FeatureGP(MLPFeatures(16, hidden=(16, 16), seed=0), noise_variance=1.0)
    algorithm = Lagged(model, num_data=rows)
    train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=512)
    model.nlml(data)
    print(json.dumps(peak_memory_bytes() - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_rows():
    peaks = []
    for rows in (100_000, 1_000_000):
        found = subprocess.run(
            [sys.executable, "-c", MEMORY_SCRIPT, str(rows)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        peaks.append(float(found.stdout))
    # The inputs of 1,000,000 rows are 64 MB in memory.
    assert peaks[1] < 1.1 * peaks[0] + 1e6, peaks
