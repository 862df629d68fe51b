"""Sources of rows that are not in memory: the same rows as arrays, and errors that name file, row and column."""

import gc
import itertools
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import IterableDataset

from finitegp import DataError, FeatureGP
from finitegp.data import (
    ArraySource,
    NpySource,
    ScaledSource,
    Scaling,
    StreamSource,
    as_source,
    open_spool,
    spool,
)
from finitegp.data import tables as tables_module
from finitegp.data.columns import TableEncoder
from finitegp.data.moments import Moments
from finitegp.data.scaling import Standardizer
from finitegp.data.spool import spool_temporarily
from finitegp.data.table_source import TableSource
from finitegp.data.tables import TableReader, _runs_of_row_groups

ROWS, COLUMNS = 500, 3


@pytest.fixture
def arrays(seed):
    random = np.random.default_rng(seed)
    inputs, targets = random.normal(size=(ROWS, COLUMNS)), random.normal(size=(ROWS, 2))
    return inputs, targets, 0.5 + random.random(ROWS), random.integers(1, 5, ROWS).astype(float)


def write_table(directory, arrays, cuts=(200, 450), change=None):
    """The arrays as Parquet files of different lengths, columns a, b, c, targets s, t, weights w, counts n."""
    inputs, targets, weights, counts = arrays
    columns = dict(zip("abc", inputs.T, strict=True)) | dict(zip("st", targets.T, strict=True))
    columns |= {"w": weights, "n": counts}
    edges = [0, *cuts, len(inputs)]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        part = {name: pa.array(values[start:stop]) for name, values in columns.items()}
        if change is not None:
            part = change(number, part)
        pq.write_table(pa.table(part), directory / f"part-{number}.parquet", row_group_size=64)
    return directory


def joined(source):
    chunks = list(source)
    return [None if part[0] is None else torch.cat(part) for part in zip(*chunks, strict=True)]


def assert_rows(found, arrays, dtype=np.float64):
    for part, array in zip(found, arrays, strict=True):
        expected = array.astype(dtype) if part is found[0] else array
        np.testing.assert_array_equal(part.numpy(), expected)


class Samples(IterableDataset):
    """Single rows of unknown number, from the start at each pass."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __iter__(self):
        yield from zip(*self.arrays, strict=True)


class TestSameRows:
    def test_npy(self, tmp_path, arrays):
        paths = [tmp_path / f"{name}.npy" for name in ("inputs", "targets", "weights", "counts")]
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)
        source = NpySource(*paths[:3], counts=paths[3], chunk_size=64)
        assert (source.num_data, source.input_dim, source.num_targets) == (ROWS, COLUMNS, 2)
        assert_rows(joined(source), arrays)
        index = np.array([499, 0, 7, 7])
        assert_rows(source.gather(index), [array[index] for array in arrays])
        assert source.target_mean_square == pytest.approx(float(np.square(arrays[1]).mean()), rel=1e-12)

    @pytest.mark.parametrize("kind", [">f8", np.float32, np.int16, bool])
    def test_npy_of_other_types(self, tmp_path, kind):
        values = (np.arange(12).reshape(6, 2) % 5).astype(kind)
        np.save(tmp_path / "inputs.npy", values)
        np.save(tmp_path / "targets.npy", np.arange(6))
        inputs = NpySource(tmp_path / "inputs.npy", tmp_path / "targets.npy").gather(np.array([5, 2])).inputs
        np.testing.assert_array_equal(inputs.numpy(), values[[5, 2]].astype(np.float64))
        assert inputs.dtype == (torch.float32 if kind is np.float32 else torch.float64)

    def test_parquet_and_csv(self, tmp_path, arrays):
        source = TableSource(write_table(tmp_path, arrays), ["s", "t"], weights="w", counts="n", chunk_size=70)
        assert source.num_data == ROWS
        assert source.column_names == ["a", "b", "c"]
        assert max(len(rows.inputs) for rows in source) == 70
        assert_rows(joined(source), arrays)
        path = tmp_path / "table.csv"
        lines = [",".join(map(repr, row)) for row in np.column_stack(arrays).tolist()]
        path.write_text("a,b,c,s,t,w,n\n" + "\n".join(lines) + "\n")
        assert_rows(joined(TableSource(path, ["s", "t"], weights="w", counts="n")), arrays)

    def test_an_encoder_makes_numbers_of_text_and_fills_gaps(self, tmp_path):
        table = {"size": [1.0, None, 3.0, 5.0], "cut": ["a", "b", "b", "a"], "price": [1.0, 2.0, 3.0, 4.0]}
        pq.write_table(pa.table(table), tmp_path / "table.parquet")
        reader = TableReader(tmp_path / "table.parquet")
        encoder = TableEncoder.fit(reader, missing="impute", exclude="price")
        source = TableSource(reader, "price", encoder=encoder, chunk_size=3)
        np.testing.assert_array_equal(joined(source)[0].numpy(), encoder.transform(reader))
        assert source.report.imputed == {"size": 1}
        with pytest.raises(DataError, match="uses 'price' as an input"):
            TableSource(reader, "price", encoder=TableEncoder.fit(reader, missing="impute"))

    @pytest.mark.parametrize("one_by_one", [True, False])
    def test_streams(self, arrays, one_by_one):
        if one_by_one:
            source = as_source(Samples(arrays), chunk_size=64)
        else:
            parts = [tuple(array[start : start + 64] for array in arrays) for start in range(0, ROWS, 64)]
            source = StreamSource(parts)
        assert source.num_data is None
        assert_rows(joined(source), arrays)
        assert source.num_data == ROWS
        assert_rows(joined(source), arrays)

    def test_spool(self, tmp_path, arrays):
        for dtype in ("float32", "float64"):
            data = spool(arrays, tmp_path / dtype, chunk_size=37, input_dtype=dtype)
            assert_rows(joined(data), arrays, dtype)
            index = np.array([499, 3, 3, 0])
            assert_rows(data.gather(index), [array[index] for array in arrays], dtype)
            assert_rows(joined(open_spool(tmp_path / dtype)), arrays, dtype)

    def test_conditioning_on_a_table_equals_arrays(self, tmp_path, arrays):
        model = FeatureGP(torch.nn.Linear(COLUMNS, 4), noise_variance=0.1)
        fitted = model.condition(arrays)
        table = TableSource(write_table(tmp_path, arrays), ["s", "t"], weights="w", counts="n", chunk_size=70)
        from_table = model.condition(table)
        torch.testing.assert_close(
            from_table.posterior.weight_mean, fitted.posterior.weight_mean, rtol=1e-10, atol=1e-12
        )
        stream = StreamSource(row for row in zip(*arrays, strict=True))
        assert model.nlml(stream) == pytest.approx(model.nlml(arrays), rel=1e-10)

    @pytest.mark.parametrize("kind", ["chunks", "stream", "table", "spool"])
    def test_counts_are_repetitions(self, tmp_path, arrays, kind):
        model = FeatureGP(torch.nn.Linear(COLUMNS, 4), noise_variance=0.3).double()
        repeats = arrays[3].astype(int)
        repeated = tuple(np.repeat(part, repeats, axis=0) for part in arrays[:3])
        source = {
            "chunks": lambda: [tuple(part[rows] for part in arrays) for rows in (slice(0, 99), slice(99, None))],
            "stream": lambda: StreamSource(zip(*arrays, strict=True)),
            "table": lambda: TableSource(write_table(tmp_path, arrays), ["s", "t"], weights="w", counts="n"),
            "spool": lambda: spool(arrays, tmp_path / "spool", input_dtype="float64", chunk_size=77),
        }[kind]()
        fitted, expected = model.condition(source), model.condition(repeated)
        assert fitted.posterior.statistics.num_data == repeats.sum() != ROWS
        torch.testing.assert_close(fitted.posterior.weight_mean, expected.posterior.weight_mean, rtol=1e-10, atol=1e-12)
        if kind != "stream":
            assert model.nlml(source) == pytest.approx(model.nlml(repeated), rel=1e-10)


def test_large_row_groups_are_read_page_by_page(tmp_path, monkeypatch, generator):
    """Of a large row group only some pages count, unless nobody knows how large its writer makes them."""
    values = torch.randn(400_000, generator=generator, dtype=torch.float64).numpy()
    path = tmp_path / "t.parquet"
    sizes = {}
    for dictionary in (False, True):
        table = pa.table({"x": values, "y": values})
        pq.write_table(table, path, use_dictionary=dictionary, compression="none", row_group_size=400_000)
        chunk = 5 * 1000 * pq.read_metadata(path).row_group(0).total_byte_size / 400_000
        sizes[dictionary] = TableReader(path, chunk_size=1000).reading_bytes - 5_000_000 - chunk
    assert sizes[False] == pytest.approx(1.05 * 2 * 2**20, abs=2)
    assert sizes[True] == pytest.approx(1.05 * 2 * (2**20 + 1_700_000), abs=2)
    monkeypatch.setattr(tables_module, "_WRITERS", ("somebody else",))
    assert TableReader(path, chunk_size=1000).reading_bytes > 5_000_000 + 2 * values.nbytes


@pytest.mark.parametrize(
    ("size", "expected"), [(20, [[0, 1], [2], [3]]), (100, [[0, 1, 2, 3]]), (1, [[0], [1], [2], [3]])]
)
def test_row_groups_are_read_a_few_at_a_time(tmp_path, size, expected):
    path = tmp_path / "t.parquet"
    table = pa.table({"x": np.arange(75.0), "y": np.arange(75.0)})
    with pq.ParquetWriter(path, table.schema) as writer:
        for start, stop in itertools.pairwise((0, 10, 20, 70, 75)):
            writer.write_table(table.slice(start, stop - start))
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    assert list(_runs_of_row_groups([group.num_rows for group in groups], size)) == expected
    source = TableSource(TableReader(path, chunk_size=size), "y")
    assert joined(source)[1][:, 0].tolist() == list(range(75))
    # What benchmarks/reading.py measured: the pages of a row group, here all of it, and some chunks.
    largest = max(group.total_byte_size for group in groups)
    rows = min(size, max(sum(groups[group].num_rows for group in run) for run in expected))
    row_bytes = max(16, *(group.total_byte_size / group.num_rows for group in groups))
    assert source.table.reading_bytes == int(5_000_000 + 1.05 * largest + 5 * rows * row_bytes)


def test_reading_csv_needs_no_more_than_the_file_or_the_blocks_ahead(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,2\n" * 1000)
    constant = 26_000_000
    assert TableReader(path).reading_bytes == constant + path.stat().st_size
    assert TableReader(path, block_size=64).reading_bytes == constant + int(1.2 * 32 * 64)


class TestMoments:
    def test_chunks_in_any_order_equal_the_whole(self, arrays, seed):
        values = 1e6 + arrays[0]  # the sum of squares would lose six digits here
        whole = Standardizer.fit(values)
        cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, ROWS), 20, replace=False))
        parts = [Moments.of(part) for part in np.split(values, cuts)]
        for order in (parts, parts[::-1], parts[10:] + parts[:10]):
            found = sum(order).standardizer()
            np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-14)
            np.testing.assert_allclose(found.scale, whole.scale, rtol=1e-9)
        left, right = sum(parts[:5]), sum(parts[5:])
        np.testing.assert_allclose((left + right).variance, np.var(values, axis=0), rtol=1e-9)
        assert (left + right).count == ROWS
        np.testing.assert_allclose(sum(parts).mean_square, np.square(values).mean(axis=0), rtol=1e-14)

    def test_a_constant_column_is_only_centred(self):
        values = np.full((1000, 1), 0.1)
        found = sum(Moments.of(part) for part in np.split(values, 7 * np.arange(1, 100))).standardizer()
        assert found.scale.tolist() == [1.0]

    def test_scaled_source_equals_the_scaler(self, tmp_path, arrays):
        table = TableSource(write_table(tmp_path, arrays), ["s", "t"], weights="w", counts="n", chunk_size=70)
        scaling = Scaling.measure(table)
        scaled = joined(ScaledSource(table, scaling))
        repeats = arrays[3].astype(int)
        for found, values in zip(scaled, arrays[:2], strict=False):
            expected = Standardizer.fit(np.repeat(values, repeats, axis=0)).transform(values)
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-13)
        assert_rows(scaled[2:], arrays[2:])

    def test_bad_shapes(self):
        with pytest.raises(DataError, match="3 columns cannot be added to moments of 2"):
            Moments.of(np.zeros((3, 3))) + Moments.of(np.zeros((3, 2)))
        with pytest.raises(DataError, match="at least one row"):
            Moments.of(np.zeros((0, 2)))
        with pytest.raises(DataError, match=r"one number per row \(3,\)"):
            Moments.of(np.zeros((3, 2)), np.ones((3, 1)))


class TestSpool:
    def test_is_used_again_until_its_files_change(self, tmp_path, arrays):
        files = tmp_path / "files"
        files.mkdir()
        cache = tmp_path / "cache"
        calls = []

        def spooled():
            table = TableSource(write_table(files, arrays), ["s", "t"], weights="w", counts="n", chunk_size=100)
            return spool(table, cache, progress=lambda *seen: calls.append(seen))

        first = spooled()
        # Chunks end where row groups and files end.
        assert calls[-1] == (ROWS, ROWS)
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        calls.clear()
        again = spooled()  # written again: another time, the same contents
        assert not calls
        assert again.note == ""
        assert again.manifest == first.manifest
        arrays[0][321, 1] += 1.0
        changed = spooled()
        assert calls
        assert "part-1.parquet has other contents" in changed.note
        assert_rows(joined(changed), arrays, np.float32)
        assert len(list(cache.glob("rows-*"))) == 1

    def test_of_other_rows_is_not_overwritten(self, tmp_path, arrays):
        spool(arrays, tmp_path)
        with pytest.raises(DataError, match=r"cannot be compared.*overwrite=True"):
            spool(arrays, tmp_path)
        changed = [array[:100] for array in arrays]
        assert spool(tuple(changed), tmp_path, overwrite=True).num_data == 100

    def test_other_columns_or_scaling_are_other_rows(self, tmp_path, arrays):
        files = tmp_path / "files"
        files.mkdir()
        table = TableSource(write_table(files, arrays), ["s", "t"], weights="w", counts="n")
        spool(ScaledSource(table, Scaling.measure(table)), tmp_path / "cache")
        with pytest.raises(DataError, match="other rows"):
            spool(table, tmp_path / "cache")
        with pytest.raises(DataError, match="other rows"):
            spool(TableSource(files, "s"), tmp_path / "cache")

    @pytest.mark.parametrize("damage", ["flip", "truncate", "lengthen", "remove"])
    def test_a_damaged_file_is_found(self, tmp_path, arrays, damage):
        path = spool(arrays, tmp_path)._file.path
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0x10
        if damage == "remove":
            path.unlink()
        else:
            size = len(content)
            path.write_bytes({"flip": content, "truncate": content[:-1], "lengthen": content + b"x"}[damage])
            assert path.stat().st_size != size or damage == "flip"
        message = {"flip": "is damaged: its checksum", "remove": "cannot be read"}.get(damage, "cut off or changed")
        with pytest.raises(DataError, match=message):
            open_spool(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            {"num_data": 10**15},
            {"input_dim": 10**12},
            {"input_dim": "3"},
            {"file": "../rows.bin"},
            {"input_dtype": "object"},
            {"format": "another"},
        ],
    )
    def test_a_damaged_manifest_is_found(self, tmp_path, arrays, change):
        spool(arrays, tmp_path)
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(DataError):
            open_spool(tmp_path)
        path.write_text(path.read_text()[:-20])
        with pytest.raises(DataError, match="cannot be read"):
            open_spool(tmp_path)

    def test_an_interrupted_spool_leaves_nothing(self, tmp_path, arrays):
        def interrupt(done, _):
            if done > 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            spool(as_source(arrays, chunk_size=60), tmp_path, progress=interrupt)
        assert [path.name for path in tmp_path.iterdir()] in ([], ["lock"])
        with pytest.raises(DataError, match="holds no whole spool"):
            open_spool(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.parametrize("had_one", [False, True])
    def test_a_killed_spool_is_not_used(self, tmp_path, arrays, had_one):
        shorter = tuple(array[:50] for array in arrays)
        if had_one:
            spool(shorter, tmp_path)
        child = os.fork()
        if child == 0:
            spool(
                as_source(arrays, chunk_size=60),
                tmp_path,
                overwrite=True,
                progress=lambda done, _: os._exit(7) if done > 100 else None,
            )
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(list(tmp_path.glob("*.part"))) == 1  # it was in the middle of writing
        if had_one:
            assert_rows(joined(open_spool(tmp_path)), shorter, np.float32)
        else:
            with pytest.raises(DataError, match="holds no whole spool"):
                open_spool(tmp_path)
        assert_rows(joined(spool(arrays, tmp_path, overwrite=True)), arrays, np.float32)
        assert not list(tmp_path.glob("*.part"))

    def test_refuses_columns_that_float32_would_spoil(self, tmp_path, arrays):
        inputs = arrays[0].copy()
        inputs[:, 1] = 1.7e15 + 1e6 * inputs[:, 1]
        source = ArraySource(inputs, arrays[1], column_names=["a", "time", "c"])
        with pytest.raises(DataError, match=r"too coarse for the columns 'time'.*standardise"):
            spool(source, tmp_path / "raw")
        assert spool(source, tmp_path / "wide", input_dtype="float64").num_data == ROWS
        scaled = joined(spool(ScaledSource(source, Scaling.measure(source)), tmp_path / "scaled"))[0].numpy()
        np.testing.assert_allclose(scaled, Standardizer.fit(inputs).transform(inputs), rtol=1e-6, atol=1e-7)
        inputs[7, 2] = 1e39
        with pytest.raises(DataError, match=r"row 7, column 2 \('c'\) is 1e\+39, too large"):
            spool(ArraySource(inputs, arrays[1], column_names=["a", "b", "c"]), tmp_path / "large")

    def test_a_temporary_one_goes_with_its_source(self, arrays):
        source = spool_temporarily(arrays)
        directory = source.directory
        assert_rows(joined(source), arrays, np.float32)
        del source
        gc.collect()
        assert not directory.exists()

    def test_refuses_chunks_that_differ(self, tmp_path):
        chunks = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(2, 2), torch.zeros(2, 2))]
        with pytest.raises(DataError, match="chunk from row 3 on has 2 inputs, 2 targets"):
            spool(chunks, tmp_path)
        counted = [(*chunks[0], None, torch.ones(3)), chunks[0]]
        with pytest.raises(DataError, match=r"chunk from row 3 on has .* no weights and no counts, unlike"):
            spool(counted, tmp_path)

    def test_a_column_of_weights_is_not_one_of_counts(self, tmp_path, arrays):
        for name, array in zip(("inputs", "targets", "numbers"), arrays, strict=False):
            np.save(tmp_path / f"{name}.npy", array)
        paths = [tmp_path / f"{name}.npy" for name in ("inputs", "targets", "numbers")]
        weighted = spool(NpySource(*paths), tmp_path / "cache")
        assert (weighted.has_weights, weighted.has_counts) == (True, False)
        with pytest.raises(DataError, match="other rows"):
            spool(NpySource(*paths[:2], counts=paths[2]), tmp_path / "cache")


class TestErrors:
    @pytest.mark.parametrize("value", [np.nan, np.inf, None])
    def test_a_bad_value_is_named_by_file_row_and_column(self, tmp_path, arrays, value):
        def change(number, part):
            if number == 1:
                values = part["b"].to_pylist()
                values[17] = value
                part["b"] = pa.array(values, pa.float64())
            return part

        table = TableSource(write_table(tmp_path, arrays, change=change), ["s", "t"], weights="w", counts="n")
        message = r"row 17 of .*part-1\.parquet, column 1 \('b'\) is (nan|inf)"
        with pytest.raises(DataError, match=message):
            spool(table, tmp_path / "cache")
        assert not (tmp_path / "cache" / "manifest.json").exists()

    def test_a_bad_target_or_weight_is_named(self, tmp_path, arrays):
        arrays[1][210, 1] = np.nan
        with pytest.raises(DataError, match=r"target 't' is missing .* row 10 of .*part-1"):
            list(TableSource(write_table(tmp_path, arrays), ["s", "t"]))
        arrays[1][210, 1] = 0.0
        arrays[2][460] = -1.0
        with pytest.raises(DataError, match=r"weights must be positive, but row 10 of .*part-2\.parquet has -1"):
            list(TableSource(write_table(tmp_path, arrays), ["s", "t"], weights="w", counts="n"))
        arrays[3][3] = 0.0
        with pytest.raises(DataError, match=r"counts must be positive, but row 3 of .*part-0\.parquet has 0"):
            list(TableSource(write_table(tmp_path, arrays), ["s", "t"], counts="n"))

    def test_a_missing_column_and_drifting_types(self, tmp_path, arrays):
        def drop(number, part):
            return {name: values for name, values in part.items() if number != 2 or name != "c"}

        with pytest.raises(DataError, match=r"part-2\.parquet lacks the column 'c'"):
            TableSource(write_table(tmp_path, arrays, change=drop), "t")

        def drift(number, part):
            return part if number != 1 else part | {"a": pa.array(["x"] * len(part["a"]))}

        with pytest.raises(DataError, match=r"'a' is double in .*part-0\.parquet but text in .*part-1\.parquet"):
            TableSource(write_table(tmp_path, arrays, change=drift), "t")

    def test_text_columns_and_unknown_names(self, tmp_path):
        pq.write_table(pa.table({"cut": ["a", "b"], "y": [1.0, 2.0]}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"not numbers: 'cut'.*TableEncoder"):
            TableSource(tmp_path / "t.parquet", "y")
        with pytest.raises(DataError, match="no column 'x'"):
            TableSource(tmp_path / "t.parquet", "x")
        for kind in ("weights", "counts"):
            with pytest.raises(DataError, match=f"{kind} 'cut' must be numbers"):
                TableSource(tmp_path / "t.parquet", "y", **{kind: "cut"})

    def test_a_file_that_changes_between_passes(self, tmp_path, arrays):
        table = TableSource(write_table(tmp_path, arrays), ["s", "t"])
        list(table)
        part = pq.read_table(tmp_path / "part-2.parquet")
        pq.write_table(part.slice(0, 20), tmp_path / "part-2.parquet")
        with pytest.raises(DataError, match=r"part-2\.parquet changed since it was opened"):
            list(table)

    def test_a_stream_that_changes_or_ends(self):
        rows = [(torch.zeros(2), 0.0)] * 5
        source = StreamSource(rows)
        list(source)
        rows.append(rows[0])
        with pytest.raises(DataError, match="5 rows before, 6 rows now"):
            list(source)
        once = StreamSource(iter(rows))
        list(once)
        with pytest.raises(DataError, match=r"read to its end.*spool"):
            list(once)
        with pytest.raises(DataError, match="yielded no rows"):
            list(StreamSource([]))

    def test_bad_rows_of_a_stream(self):
        good = (torch.zeros(2), 0.0)
        for bad, message in (
            ("text", "Row 3 of the stream must be .inputs, target.*is a str"),
            ((torch.zeros(2), 0.0, None, 2.0), "Row 3 of the stream has inputs .* and 3 parts"),
            ((torch.zeros(3), 0.0), r"Row 3 of the stream has inputs of shape \(3,\)"),
            ((torch.zeros(4, 2), torch.zeros(4)), "mixes single rows and chunks, first at row 3"),
            ((torch.tensor([0.0, np.nan]), 0.0), "row 3, column 1 is nan"),
        ):
            with pytest.raises(DataError, match=message):
                list(StreamSource([good, good, good, bad, good]))

    def test_npy_files(self, tmp_path):
        paths = inputs, targets = tmp_path / "inputs.npy", tmp_path / "targets.npy"
        values = np.zeros((10, 2))
        np.save(inputs, values)
        np.save(targets, np.zeros(9))
        with pytest.raises(DataError, match=r"inputs\.npy has 10 rows, but .*targets\.npy has 9"):
            NpySource(*paths)
        bad = np.zeros(10)
        bad[4] = np.inf
        np.save(targets, bad)
        with pytest.raises(DataError, match=r"targets must be finite, but row 4 of .*targets\.npy, column 0 is inf"):
            NpySource(*paths, chunk_size=3)
        np.save(targets, np.zeros(10))
        values[8, 1] = np.nan
        np.save(inputs, values)
        with pytest.raises(DataError, match=r"row 8 of .*inputs\.npy, column 1 \('b'\) is nan"):
            NpySource(*paths, chunk_size=3, column_names=["a", "b"])
        values[8, 1] = 0.0
        np.save(inputs, values)
        np.save(tmp_path / "counts.npy", np.where(np.arange(10) == 7, 0, 1))
        with pytest.raises(DataError, match=r"counts must be positive, but row 7 of .*counts\.npy has 0"):
            NpySource(*paths, counts=tmp_path / "counts.npy", chunk_size=3)
        np.save(inputs, np.asfortranarray(values))
        with pytest.raises(DataError, match="Fortran order"):
            NpySource(*paths)
        np.save(inputs, values.astype(object), allow_pickle=True)
        with pytest.raises(DataError, match="must hold numbers"):
            NpySource(*paths)
        inputs.write_bytes(b"not an array")
        with pytest.raises(DataError, match=r"not a whole \.npy file"):
            NpySource(*paths)
        with pytest.raises(DataError, match="cannot be read"):
            NpySource(tmp_path / "absent.npy", targets)
