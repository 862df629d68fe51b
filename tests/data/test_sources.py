"""Sources of rows that are not in memory: the same rows as arrays, and errors that name file, row and column."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from source_rows import COLUMNS, ROWS, assert_rows, joined, write_table
from torch.utils.data import IterableDataset

from finitegp import DataError, FeatureGP
from finitegp.data import NpySource, StreamSource, as_source, open_spool, spool
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.reader import TableReader
from finitegp.tables.source import TableSource


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
        assert_rows(source.take(index), [array[index] for array in arrays])
        assert source.measure().target_mean_square == pytest.approx(float(np.square(arrays[1]).mean()), rel=1e-12)

    @pytest.mark.parametrize("kind", [">f8", np.float32, np.int16, bool])
    def test_npy_of_other_types(self, tmp_path, kind):
        values = (np.arange(12).reshape(6, 2) % 5).astype(kind)
        np.save(tmp_path / "inputs.npy", values)
        np.save(tmp_path / "targets.npy", np.arange(6))
        inputs = NpySource(tmp_path / "inputs.npy", tmp_path / "targets.npy").take(np.array([5, 2])).inputs
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
            assert_rows(data.take(index), [array[index] for array in arrays], dtype)
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


def test_looking_at_the_width_of_a_stream_loses_no_row(arrays):
    inputs, targets = arrays[:2]
    once = StreamSource((row, target) for row, target in zip(inputs, targets, strict=True))
    assert (once.input_dim, once.input_dim) == (inputs.shape[1], inputs.shape[1])
    np.testing.assert_array_equal(torch.cat([rows.inputs for rows in once]), inputs)
    with pytest.raises(DataError, match="read to its end"):
        _ = once.input_dim
    again = StreamSource([(inputs, targets)])
    assert again.input_dim == inputs.shape[1]
    assert sum(len(rows.inputs) for rows in again) == sum(len(rows.inputs) for rows in again) == len(inputs)
    with pytest.raises(DataError, match="yielded no rows"):
        _ = StreamSource(iter([])).input_dim


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((torch.zeros(2), torch.zeros(1)), r"Row 1 of the stream has inputs of shape \(2,\), targets of shape \(1,\)"),
        ((["wide", "long"], 0.0), "Row 1 of the stream is not made of numbers"),
        (([[1.0, 2.0], [3.0]], [0.0, 1.0]), "Row 1 of the stream is not made of numbers"),
    ],
)
def test_rows_of_a_stream_that_differ_or_are_no_numbers_are_named(bad, message):
    with pytest.raises(DataError, match=message):
        list(StreamSource([(torch.zeros(2), 0.0), bad]))


def test_npy_files_that_change_after_they_were_checked(tmp_path, arrays):
    inputs, targets = tmp_path / "inputs.npy", tmp_path / "targets.npy"
    np.save(inputs, arrays[0])
    np.save(targets, arrays[1])
    source = NpySource(inputs, targets)
    assert len(source.take(np.array([3])).inputs) == 1
    changed = arrays[0].copy()
    changed[3] = np.nan  # as large as before, and never checked
    np.save(inputs, changed)
    os.utime(inputs, ns=(0, inputs.stat().st_mtime_ns + 10**9))  # clocks of some file systems are coarse
    for use in (lambda: source.take(np.array([3])), lambda: list(source)):
        with pytest.raises(DataError, match=r"inputs\.npy changed since it was opened"):
            use()
