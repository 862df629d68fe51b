"""Sizes of pages read from the headers of Parquet files, against sizes that follow from how the files were written."""

import inspect
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finitegp import DataError
from finitegp.tables.reader import TableReader
from finitegp.tables.table_files import open_page_bytes

ROWS = 400_000


def written(path, table, **options):
    if not options.keys() <= inspect.signature(pq.write_table).parameters.keys():
        pytest.skip("this release of pyarrow cannot write pages of a given number of rows")
    pq.write_table(table, path, **({"compression": "none", "row_group_size": ROWS} | options))
    metadata = pq.read_metadata(path)
    return open_page_bytes(path, metadata), metadata.row_group(0)


@pytest.fixture
def values(seed):
    return np.random.default_rng(seed).normal(size=ROWS)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_pages_of_numbers(tmp_path, values, version, compression):
    """A page of 20,000 doubles has 160,000 bytes, and a little for what is missing."""
    options = {"data_page_version": version, "compression": compression, "max_rows_per_page": 20_000}
    found, _ = written(tmp_path / "t.parquet", pa.table({"x": values, "y": values}), use_dictionary=False, **options)
    assert found == pytest.approx(1.05 * 2 * 160_000, rel=0.01)


def test_pages_made_large_on_purpose(tmp_path, values):
    options = {"use_dictionary": False, "data_page_size": 1 << 30, "max_rows_per_page": ROWS, "write_batch_size": ROWS}
    found, _ = written(tmp_path / "t.parquet", pa.table({"x": values}), **options)
    assert found == pytest.approx(1.05 * values.nbytes, rel=0.01)


def test_dictionaries_count_twice_and_full_ones_are_followed_by_pages_of_values(tmp_path, values):
    few = pa.table({"x": np.round(values[:1000])})
    found, group = written(tmp_path / "few.parquet", few)
    different = len(np.unique(np.round(values[:1000]).view(np.int64)))  # 0 and -0 are two
    assert found == int(2 * 8 * different + 1.05 * group.column(0).total_uncompressed_size)
    # A dictionary ends at a mebibyte; pages of 20,000 rows then have 160,000 bytes, though the first has fewer.
    found, group = written(tmp_path / "many.parquet", pa.table({"x": values}), max_rows_per_page=20_000)
    share = group.column(0).total_uncompressed_size * 20_000 / ROWS
    assert found == pytest.approx(2 * 2**20 + 1.05 * share, rel=0.02)
    assert share > 160_000


def test_text_and_missing_values(tmp_path):
    texts = [None if row % 3 == 0 else f"text {row:09d}" for row in range(30_000)]
    found, _ = written(tmp_path / "t.parquet", pa.table({"t": texts}), use_dictionary=False, max_rows_per_page=10_000)
    # Length and letters of two thirds of the rows, and bits for those that are missing.
    assert found == pytest.approx(1.05 * 10_000 * (4 + 14) * 2 / 3, rel=0.03)


def test_headers_that_cannot_be_read_count_as_one_page(tmp_path, values):
    path = tmp_path / "t.parquet"
    _, group = written(path, pa.table({"x": values}), use_dictionary=False)
    metadata = pq.read_metadata(path)
    content = bytearray(path.read_bytes())
    start = group.column(0).data_page_offset
    for damage in (bytes(64), b"\xff" * 64):
        content[start : start + 64] = damage
        path.write_bytes(content)
        assert open_page_bytes(path, metadata) == int(1.05 * group.column(0).total_uncompressed_size)


def test_a_damaged_description_of_a_column_is_an_error():
    # Arrow ends the process where the description of a column is asked for; it raises where the column is read.
    with pytest.raises(DataError, match="is damaged after row 0"):
        TableReader(Path(__file__).parents[1] / "files" / "one-bit-changed.parquet")


def test_files_without_rows(tmp_path):
    found, _ = written(tmp_path / "t.parquet", pa.table({"x": np.zeros(1)}))
    assert 0 < found < 200
    pq.write_table(pa.table({"x": np.zeros(0)}), tmp_path / "e.parquet")
    assert open_page_bytes(tmp_path / "e.parquet", pq.read_metadata(tmp_path / "e.parquet")) < 200
    with pq.ParquetWriter(tmp_path / "n.parquet", pa.schema([("x", pa.float64())])):
        pass
    assert open_page_bytes(tmp_path / "n.parquet", pq.read_metadata(tmp_path / "n.parquet")) == 0
