"""Rows as arrays, as files and as tensors again: what the tests of sources, spools and moments compare."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

ROWS, COLUMNS = 500, 3


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
