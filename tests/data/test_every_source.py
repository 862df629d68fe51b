"""What every source of rows must do, whatever it is: one check, run over all of them."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from finitegp import DataError, FeatureGP
from finitegp.data import (
    ArraySource,
    IterableSource,
    NpySource,
    Rows,
    ScaledSource,
    Scaling,
    Share,
    Source,
    StreamSource,
    spool,
)
from finitegp.data.sampling import Sampler
from finitegp.data.scaling import Standardizer
from finitegp.tables.source import TableSource

ROWS, COLUMNS = 60, 3


def make_rows(*, targets=2, weights=True, counts=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    return Rows(
        torch.randn(ROWS, COLUMNS, **draw),
        torch.randn(ROWS, targets, **draw) if targets else None,
        0.5 + torch.rand(ROWS, **draw) if weights else None,
        torch.randint(1, 5, (ROWS,), generator=generator).double() if counts else None,
    )


def as_arrays(rows):
    return [None if part is None else part.numpy() for part in rows]


def arrays(directory, rows):
    inputs, targets, weights, counts = as_arrays(rows)
    return ArraySource(inputs, targets, weights, counts=counts, chunk_size=7)


def frames(directory, rows):
    inputs, targets, weights, counts = as_arrays(rows)
    frame = pd.DataFrame(inputs, columns=["a", "b", "c"])
    return ArraySource(frame, None if targets is None else pd.DataFrame(targets), weights, counts=counts, chunk_size=7)


def tensors(directory, rows):
    return ArraySource(*rows[:3], counts=rows.counts, chunk_size=100)


def pieces(rows, size):
    return [rows.take(slice(start, start + size)) for start in range(0, ROWS, size)]


def chunks(directory, rows):
    return IterableSource(pieces(rows, 13))


def single_rows(rows):
    return [tuple(None if part is None else part[row] for part in rows) for row in range(ROWS)]


def stream(directory, rows):
    return StreamSource(single_rows(rows), chunk_size=7)


def stream_of_chunks(directory, rows):
    return StreamSource(pieces(rows, 13), chunk_size=7)


def stream_once(directory, rows):
    return StreamSource(iter(single_rows(rows)), chunk_size=7)


def npy(directory, rows):
    paths = {}
    for name, part in zip(Rows._fields, as_arrays(rows), strict=True):
        if part is not None:
            paths[name] = directory / f"{name}.npy"
            np.save(paths[name], part)
    return NpySource(**paths, chunk_size=7, column_names=["a", "b", "c"])


def spooled(directory, rows):
    return spool(tensors(directory, rows), directory, input_dtype="float64", chunk_size=7, overwrite=True)


def columns_of(rows):
    columns = dict(zip("abc", rows.inputs.T.numpy(), strict=True))
    columns |= (
        {} if rows.targets is None else {f"y{number}": part.numpy() for number, part in enumerate(rows.targets.T)}
    )
    columns |= {} if rows.weights is None else {"w": rows.weights.numpy()}
    return columns | ({} if rows.counts is None else {"n": rows.counts.numpy()})


def table_of(place, rows):
    return TableSource(
        place,
        None if rows.targets is None else [f"y{number}" for number in range(rows.targets.shape[1])],
        weights=None if rows.weights is None else "w",
        counts=None if rows.counts is None else "n",
        chunk_size=7,
    )


def parquet(directory, rows):
    for number, (start, stop) in enumerate([(0, 10), (10, 11), (11, ROWS)]):
        part = pa.table({name: values[start:stop] for name, values in columns_of(rows).items()})
        pq.write_table(part, directory / f"part-{number}.parquet", row_group_size=9)
    return table_of(directory, rows)


def csv(directory, rows):
    pyarrow.csv.write_csv(pa.table(columns_of(rows)), directory / "rows.csv")
    return table_of(directory / "rows.csv", rows)


def unscaled(rows):
    """A scaling that changes nothing."""
    width = 1 if rows.targets is None else rows.targets.shape[1]
    return Scaling(*(Standardizer(np.zeros(size), np.ones(size)) for size in (COLUMNS, width)))


def scaled_arrays(directory, rows):
    return ScaledSource(arrays(directory, rows), unscaled(rows))


def scaled_stream(directory, rows):
    return ScaledSource(stream_once(directory, rows), unscaled(rows))


def scaled_table(directory, rows):
    return ScaledSource(parquet(directory, rows), unscaled(rows))


class OwnSource(Source):
    """As a user would write one: nothing but a pass."""

    def __init__(self, rows):
        self.pieces = pieces(rows, 13)

    def __iter__(self):
        return iter(self.pieces)


def own(directory, rows):
    return OwnSource(rows)


def own_in_other_chunks(directory, rows):
    return OwnSource(rows).with_chunks(5)


CHECKED_AS_THEY_PASS = [arrays, frames, tensors, chunks, stream, stream_of_chunks, stream_once, npy, spooled, parquet]
CHECKED_AS_THEY_PASS += [csv, scaled_arrays, scaled_stream, scaled_table]
SOURCES = [*CHECKED_AS_THEY_PASS, own, own_in_other_chunks]


def joined(chunks):
    """All rows of some chunks as one."""
    return Rows(*(None if part[0] is None else torch.cat(part) for part in zip(*chunks, strict=True)))


def assert_same(found, expected):
    for name, one, other in zip(Rows._fields, found, expected, strict=True):
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == torch.float64 and torch.equal(one, other)), name


def check_source(make, rows):
    """What every source must do. ``make()`` gives a new source of ``rows``, unread, each time."""
    count, num_targets = len(rows.inputs), 0 if rows.targets is None else rows.targets.shape[1]

    # What it declares is true or None, before it is read.
    source = make()
    assert source.num_data in (None, count)
    assert source.input_dim in (None, rows.inputs.shape[1])
    assert source.num_targets in (None, num_targets)
    assert source.column_names is None or len(source.column_names) == rows.inputs.shape[1]
    assert source.reading_bytes >= 0
    assert all(path.exists() for path in source.files())
    assert json.loads(json.dumps(source.fingerprint())) == json.loads(json.dumps(make().fingerprint()))
    located = source.locate(count - 1)
    assert located is None or located[0] in source.files()

    # A pass has all rows once, in order, in chunks no larger than it declares.
    passed = list(source)
    assert_same(joined(passed), rows)
    sizes = [len(chunk.inputs) for chunk in passed]
    assert min(sizes) > 0
    assert source.chunk_size is None or max(sizes) <= source.chunk_size
    assert all(isinstance(chunk, Rows) for chunk in passed)

    # A second pass is the same, or a clear error.
    if source.can_reread:
        assert_same(joined(source), rows)
    else:
        with pytest.raises(DataError, match=r"read to its end.*finitegp\.data\.spool"):
            list(source)

    # Shares are all rows once, and a share of the whole is a pass.
    for shares in (1, 2, 3, 7, 100):
        one = make()
        parts = ((one if one.can_reread else make()).part(Share(index, shares)) for index in range(shares))
        found = joined(itertools.chain(*parts))
        by_input, expected = (each.take(each.inputs[:, 0].argsort()) for each in (found, rows))
        assert_same(by_input, expected)

    # Other chunks have the same rows, and the source keeps its own.
    for size in (1, 4, 1000):
        source = make()
        before = source.chunk_size
        other = source.with_chunks(size)
        assert (other.chunk_size, source.chunk_size) == (size, before)
        for name in ("num_data", "input_dim", "num_targets", "column_names", "can_reread", "can_take", "fits_memory"):
            assert getattr(other, name) == getattr(source, name), name
        assert (other.fingerprint(), other.files()) == (source.fingerprint(), source.files())
        found = list(other)
        assert max(len(chunk.inputs) for chunk in found) <= size
        assert_same(joined(found), rows)
        assert other.num_data == source.num_data
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        make().with_chunks(0)

    # Rows are taken by number in any order, or not at all.
    source = make()
    if source.can_take:
        for numbers in ([5], [count - 1, 0, 7, 7], range(count), []):
            index = np.array(numbers, dtype=np.int64)
            assert_same(source.take(index), rows.take(torch.from_numpy(index)))
            assert_same(source.with_chunks(3).take(index), rows.take(torch.from_numpy(index)))
        for wrong in (-1, count):
            with pytest.raises(IndexError, match=f"numbered from 0 to {count - 1}, but {wrong} was asked for"):
                source.take(np.array([0, wrong]))
    else:
        with pytest.raises(DataError, match="spool"):
            source.take(np.array([0]))

    # What it measures are the sums of the rows.
    measured = make().measure()
    assert (measured.num_data, measured.num_targets) == (count, num_targets)
    assert (measured.mean_count is None) == (rows.counts is None)
    if rows.targets is None:
        check_new_rows(make, rows)
    else:
        check_training_rows(make, rows)


def check_training_rows(make, rows):
    """Batches of one epoch are all rows; sums over the rows respect weights and counts."""
    kind = {"sampling": "shuffle", "dtype": torch.float64}
    batches = joined(Sampler(make(), 8, **kind).epoch(0))
    expected = joined(Sampler(tuple(rows), 8, **kind).epoch(0))
    assert_same(batches._replace(weights=None), expected._replace(weights=None))
    torch.testing.assert_close(batches.weights, expected.weights, rtol=1e-14, atol=0.0)
    assert torch.equal(batches.inputs[:, 0].sort().values, rows.inputs[:, 0].sort().values)
    model = FeatureGP(torch.nn.Linear(COLUMNS, 4), noise_variance=0.1).double()
    found, expected = (model.statistics(data) for data in (make(), tuple(rows)))
    torch.testing.assert_close(found.gram, expected.gram, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.projected_targets, expected.projected_targets, rtol=1e-12, atol=1e-12)
    assert found.num_data == pytest.approx(ROWS if rows.counts is None else float(rows.counts.sum()))


def check_new_rows(make, rows):
    """Rows without targets are predicted, and refused where targets are needed."""
    training = make_rows(targets=1, weights=False, counts=False, seed=1)
    model = FeatureGP(torch.nn.Linear(COLUMNS, 4), noise_variance=0.1).double()
    fitted = model.condition(tuple(training))
    found = torch.cat([chunk.mean for chunk in fitted.predict_chunks(make())])
    torch.testing.assert_close(found, fitted.predict(rows.inputs).mean, rtol=1e-12, atol=1e-12)
    for use in (model.nlml, lambda data: list(Sampler(data, 8).epoch(0)), Scaling.measure):
        with pytest.raises(DataError, match="have no targets"):
            use(make())


def maker(source, tmp_path, rows):
    """A function that makes a source of the rows in a directory of its own each time."""
    numbers = itertools.count()

    def make():
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return source(directory, rows)

    return make


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"targets": 1, "weights": False, "counts": False},
        {"targets": 1, "counts": False},
        {"targets": 0, "weights": False, "counts": False},
        {"targets": 0},
    ],
    ids=["all parts", "inputs and targets", "with weights", "new rows", "new rows with weights and counts"],
)
def test_shared_check(source, parts, tmp_path):
    rows = make_rows(**parts)
    check_source(maker(source, tmp_path, rows), rows)


@pytest.mark.parametrize("source", CHECKED_AS_THEY_PASS, ids=lambda source: source.__name__)
@pytest.mark.parametrize("part", Rows._fields)
def test_a_bad_value_is_named_by_row_and_file(source, part, tmp_path):
    rows = make_rows()
    make = maker(source, tmp_path, rows)
    # Row 10 is alone in one of the Parquet files.
    for number in (10, 37):
        place = make().locate(number)
        values = getattr(rows, part).clone()
        column = None if values.ndim == 1 else 1
        values[number if column is None else (number, column)] = float("nan")
        bad = rows._replace(**{part: values})
        directory = tmp_path / f"bad-{number}"
        directory.mkdir()
        with pytest.raises(DataError) as caught:
            list(source(directory, bad))
        name = "" if place is None else re.escape(place[0].name.replace("inputs", part))
        # Editors count the lines of text files from 1, the header included.
        shown = f"line {number + 2}" if name.endswith("csv") else f"row {place and place[1]}"
        label = rf"row {number}\b" if place is None else rf"{shown} of \S*{name}"
        assert re.search(label, str(caught.value)), caught.value
        if source is arrays and part == "inputs":
            with pytest.raises(DataError, match=rf"row {number}, column 1 is nan"):
                arrays(tmp_path, bad).take(np.array([3, number]))
