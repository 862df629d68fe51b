"""Tables from files: what is read is what was written, in the memory as said; files that are no tables are named."""

import gzip
import itertools
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_rows import joined

from finitegp import DataError
from finitegp.tables.reader import TableReader
from finitegp.tables.source import TableSource
from finitegp.tables.table_files import open_page_bytes, runs_of_row_groups


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    rows = 500
    return pd.DataFrame(
        {
            "count": rng.integers(-5, 100, rows),
            "size": rng.normal(size=rows),
            "colour": rng.choice(["red", "green, dark", 'the "blue"', "two\nlines"], rows),
            "day": pd.date_range("2020-01-01", periods=rows, freq="D"),
            "sold": rng.random(rows) < 0.5,
        }
    )


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def error_of(paths, **options):
    with pytest.raises(DataError) as caught:
        for _ in TableReader(paths, **options):
            pass
    return str(caught.value)


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.tsv", "table.parquet"])
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_what_is_read_is_what_was_written(frame, tmp_path, name, chunk_size):
    path = tmp_path / name
    if name.endswith(".parquet"):
        frame.to_parquet(path, row_group_size=60)
    else:
        frame.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    table = TableReader(path, chunk_size=chunk_size, block_size=4096)
    assert table.column_names == list(frame.columns)
    assert table.num_rows == len(table) == len(frame)
    for _ in range(2):
        chunks = list(table)
        assert all(0 < chunk.num_rows <= (chunk_size or 500) for chunk in chunks)
        assert all(chunk.schema.equals(table.schema) for chunk in chunks)
        read = pa.Table.from_batches(chunks).to_pandas()
        for column in ("count", "size", "sold"):
            assert np.array_equal(read[column], frame[column])
        assert list(read["colour"]) == list(frame["colour"])
        assert list(pd.to_datetime(read["day"])) == list(frame["day"])
    assert table.read().num_rows == len(frame)
    assert not table.notes


def test_several_files_and_directories_are_one_table(frame, tmp_path):
    pieces = [frame[:100], frame[100:101], frame[101:]]
    for number, piece in enumerate(pieces):
        # Another order of columns, narrower integers and other units are no drift.
        columns = list(frame.columns)[:: 1 if number else -1]
        piece = piece[columns].astype({"count": "int32" if number else "int64", "day": "datetime64[ms]"})
        piece.to_parquet(tmp_path / f"part-{number}.parquet")
    write(tmp_path / "_SUCCESS", "")
    for paths in (tmp_path, [tmp_path / f"part-{number}.parquet" for number in range(3)]):
        table = TableReader(paths, chunk_size=64)
        assert table.num_rows == 500
        read = table.read().to_pandas()
        assert np.array_equal(read["count"], frame["count"])
        assert list(read["colour"]) == list(frame["colour"])
    assert table.locate(0) == (tmp_path / "part-0.parquet", 0)
    assert table.locate(100) == (tmp_path / "part-1.parquet", 0)
    assert table.locate(103) == (tmp_path / "part-2.parquet", 2)
    with pytest.raises(IndexError, match="from 0 to 499, but is 500"):
        table.locate(500)
    frame.to_csv(tmp_path / "more.csv", index=False)
    both = TableReader([tmp_path / "part-0.parquet", tmp_path / "more.csv"])
    assert both.num_rows == 600
    assert list(both.read()["colour"].to_pylist()[100:]) == list(frame["colour"])


def test_columns_can_be_chosen(frame, tmp_path):
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        table = TableReader(tmp_path / name, columns=["sold", "count"])
        assert table.column_names == ["sold", "count"]
        assert np.array_equal(table.read()["count"].to_numpy(), frame["count"])
        message = error_of(tmp_path / name, columns=["Count "])
        assert "There is no column 'Count '" in message
        assert "did you mean 'count'?" in message


def long_csv(last, before="1,a", rows=3000):
    return "x,y\n" + f"{before}\n" * rows + f"{last}\n" + f"{before}\n" * 5


@pytest.mark.parametrize(
    ("before", "last", "kind"),
    [
        ("1", "2.5", "double"),
        ("1", "9" * 25, "double"),
        ("1", "oops", "string"),
        ("1.5", "oops", "string"),
        ("1", "-", "int64"),
        ("1", "N/A", "int64"),
        ("", "7", "int64"),
        ("", "7.5", "double"),
        ("", "true", "bool"),
        ("", "2020-05-06", "date32[day]"),
        ("", "2020-05-06T07:08:09Z", "timestamp[s, tz=UTC]"),
        ("", "2020-05-06 07:08:09.5", "timestamp[ns]"),
        ("", "word", "string"),
        ("-", "word", "string"),
        ("2020-05-06", "2020-05-06 07:08:09", "timestamp[s]"),
        ("2020-05-06", "next week", "string"),
        ("true", "maybe", "string"),
        ("10:30", "10:30:05.25", "string"),
        ("", "", "null"),
    ],
)
def test_types_are_settled_over_the_whole_file(tmp_path, before, last, kind):
    path = write(tmp_path / "t.csv", long_csv(f"1,{last}", f"1,{before}"))
    table = TableReader(path, block_size=2000)
    assert str(table.schema.field("y").type) == kind
    assert table.num_rows == 3006
    chunks = list(table)
    assert len(chunks) > 3
    if kind == "string":
        assert table.notes == ([f"Column 'y' is read as text because line 3002 of {path} holds {last!r}."])
        values = table.read()["y"].to_pylist()
        assert (values[0], values[3000], values[3005]) == (before, last, before)
    else:
        assert not table.notes
    # All in one block: the same type, found by Arrow itself.
    assert TableReader(path).schema.equals(table.schema)


def test_an_empty_start_followed_by_two_kinds_is_text(tmp_path):
    path = write(tmp_path / "t.csv", "x,y\n" + "1,\n" * 2000 + "1,5\n" * 2000 + "1,abc\n" * 2000)
    table = TableReader(path, block_size=1000)
    assert str(table.schema.field("y").type) == "string"
    values = table.read()["y"].to_pylist()
    assert (values[0], values[2000], values[4000]) == ("", "5", "abc")


def test_csv_files_with_a_few_words_are_text_in_all(tmp_path):
    write(tmp_path / "a.csv", "x\n" + "1\n" * 100)
    write(tmp_path / "b.csv", "x\n" + "2\n" * 60 + "broken\n" + "2.5\n" * 60)
    write(tmp_path / "c.csv", "x\n" + "3\n" * 100)
    table = TableReader([tmp_path / f"{name}.csv" for name in "abc"])
    assert table.read()["x"].to_pylist()[158:162] == ["2", "2", "broken", "2.5"]
    assert table.notes == [f"Column 'x' is read as text because line 62 of {tmp_path / 'b.csv'} holds 'broken'."]
    write(tmp_path / "b.csv", "x\n4\nlow\nhigh\nlow\n")
    message = error_of([tmp_path / f"{name}.csv" for name in "abc"])
    assert re.search(r"Column 'x' is int64 in .*a\.csv but text in .*b\.csv: line 3 there holds 'low'", message)


def test_drift_between_files_is_named(tmp_path):
    def save(name, **columns):
        pq.write_table(pa.table(columns), tmp_path / name)

    save("a.parquet", x=[1, 2], day=pa.array([0, 1], pa.date32()))
    save("b.parquet", x=["one", "two"], day=pa.array([0, 1], pa.date32()))
    message = error_of(tmp_path)
    assert re.search(r"Column 'x' is int64 in .*a\.parquet but text in .*b\.parquet: convert one", message)
    save("b.parquet", x=[1, 2], day=pa.array([0, 1], pa.timestamp("s", tz="UTC")))
    assert "Column 'day' is date32[day] in" in error_of(tmp_path)
    save("b.parquet", x=[1.5, 2.5])
    message = error_of(tmp_path)
    assert "b.parquet lacks the column 'day' that" in message
    assert TableReader(tmp_path, columns=["x"]).read()["x"].to_pylist() == [1.0, 2.0, 1.5, 2.5]
    save("b.parquet", x=[1.5], day=pa.nulls(1), more=[1])
    assert "a.parquet lacks the column 'more' that" in error_of(tmp_path)
    save("b.parquet", x=[1.5], day=pa.nulls(1))
    assert TableReader(tmp_path).read()["day"].null_count == 1


JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", JPEG, "a.csv is not CSV as its name has it, but a JPEG image"),
        ("a.csv.gz", JPEG, "a.csv.gz is not CSV as its name has it, but a JPEG image"),
        ("a.csv", b"PK\x03\x04" + b"x" * 100, "Excel workbook: unpack it, or rename it"),
        ("a.csv", "<!DOCTYPE html><html>", "a web page or XML: the download may need a login"),
        ("a.csv", "x,y\n1,2\n".encode("utf-16"), "text in UTF-16: save it as UTF-8.*encoding='utf-16'"),
        ("a.csv", b"\x01\x00\x02" * 100, "binary data"),
        ("a.csv", b"PAR1" + b"x" * 100, "not CSV as its name has it, but a Parquet file"),
        ("a.parquet", JPEG, "a.parquet is not Parquet as its name has it, but a JPEG image"),
        ("a.parquet", "x,y\n1,2\n", "a.parquet is not Parquet as its name has it, but something else"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.parquet", b"", "a.parquet is empty"),
        ("a.csv", "\n\n", "a.csv is empty: it has not even a header"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "a.csv.gz is empty: it has not even a header"),
        ("a.csv", "x,y\n", "a.csv has a header but no rows"),
        ("a.csv", "x,y,x\n1,2,3\n", "a.csv has more than one column named 'x': rename or remove"),
        ("a.csv", "x,y\n1,2\n1,2\n1,2,3\n", "a.csv, line 4: expected 2 columns, got 3: 1,2,3. Correct it"),
        ("a.csv", long_csv("1,2,3"), "a.csv, line 3002: expected 2 columns, got 3"),
        ("a.csv", 'x,y\n1,"2\n' + "1,2\n" * 3000, "a quotation mark may never be closed"),
        ("a.csv", b"x,y\n1,caf\xe9\n", "line 2, column 'y' holds text that is not utf8.*encoding='cp1252'"),
        # A header that cannot be read still shows what separates it.
        (
            "a.csv",
            "Größe;Miete\n1;2\n".encode("cp1252"),
            "line 1 holds text that is not utf8.*encoding='cp1252'",
        ),
        ("a.csv", b"sep=;\nx;y\n1;2\n", "the first line, 'sep=;', is a note for Excel and not the header: remove it"),
        ("a.csv", b"Flats 2024;;\n;;\nx;y;z\n1;2;3\n", "the first line must be the header, but is 'Flats 2024;;'"),
        (
            "a.csv",
            b"x,y\n1,2\n1,2,3\n",
            "line 3: expected 2 columns, got 3: 1,2,3.*header, which is 'x,y'.*another delim",
        ),
        (
            "a.csv",
            long_csv("1,??").encode().replace(b"??", b"caf\xe9"),
            "line 3002, column 'y' holds text that is not utf8",
        ),
        (
            "a.csv.gz",
            gzip.compress(long_csv("1,2").encode(), mtime=0)[:-20],
            "a.csv.gz is a damaged or truncated gzip file",
        ),
        ("a.json", "[]", "a.json does not show what kind of table it is"),
    ],
)
def test_files_that_are_not_tables(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    assert re.search(message, error_of(path, block_size=2048), re.DOTALL)


def test_parquet_that_is_damaged(tmp_path, frame):
    frame.to_parquet(tmp_path / "a.parquet", compression="snappy")
    content = (tmp_path / "a.parquet").read_bytes()
    write(tmp_path / "half.parquet", content[: len(content) // 2])
    assert "half.parquet is not a whole Parquet file" in error_of(tmp_path / "half.parquet")
    write(tmp_path / "holes.parquet", content[:100] + bytes(3000) + content[3100:])
    assert "holes.parquet is damaged after row 0" in error_of(tmp_path / "holes.parquet")
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    assert "none.parquet has a header but no rows" in error_of(tmp_path / "none.parquet")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), tmp_path / "twice.parquet")
    assert "more than one column named 'x'" in error_of(tmp_path / "twice.parquet")


def test_paths_that_lead_nowhere(tmp_path):
    assert f"There is no file {tmp_path / 'a.csv'}." in error_of(tmp_path / "a.csv")
    assert "has no files that end in .parquet" in error_of(tmp_path)
    assert "There are no files to read" in error_of([])
    with pytest.raises(ValueError, match="chunk_size must be at least 1, but is 0"):
        TableReader(tmp_path, chunk_size=0)
    with pytest.raises(ValueError, match="delimiter must be one character, but is '::'"):
        TableReader(tmp_path, delimiter="::")


def test_a_file_that_changes_between_passes(tmp_path):
    path = write(tmp_path / "a.csv", "x,y\n1,2\n")
    table = TableReader(path)
    write(path, "x,y\n1,2\n3,4\n")
    with pytest.raises(DataError, match=r"a\.csv changed since it was opened"):
        list(table)


def test_other_encodings_and_delimiters(tmp_path):
    path = write(tmp_path / "a.csv", "Größe;Café\n1;süß\n2;é\n".encode("latin-1"))
    table = TableReader(path, encoding="latin-1", delimiter=";").read()
    assert table.to_pydict() == {"Größe": [1, 2], "Café": ["süß", "é"]}
    path = write(tmp_path / "b.csv", b"\xef\xbb\xbfx,y\r\n1,2\r\n")
    assert TableReader(path).read().to_pydict() == {"x": [1], "y": [2]}


def test_wide_tables_come_in_chunks_of_fewer_rows(tmp_path):
    pq.write_table(pa.table({f"x{number}": np.zeros(2000) for number in range(2000)}), tmp_path / "a.parquet")
    assert max(chunk.num_rows for chunk in TableReader(tmp_path / "a.parquet")) == 2**21 // 2000


def test_no_file_of_a_directory_is_left_out_unnoticed(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "B.CSV", "x,y\n3,4\n")
    write(tmp_path / "c.TSV", "x\ty\n5\t6\n")
    assert sorted(TableReader(tmp_path).read()["x"].to_pylist()) == [1, 3, 5]
    (tmp_path / "d.csv").symlink_to(tmp_path / "elsewhere.csv")
    assert "d.csv cannot be read: No such file" in error_of(tmp_path)
    (tmp_path / "d.csv").unlink()
    pq.write_table(pa.table({"x": [7], "y": [8]}), tmp_path / "e.parquet")
    assert re.search(r"Parquet files \(such as e\.parquet\) and CSV files \(such as B\.CSV\)", error_of(tmp_path))
    assert TableReader(tmp_path / "e.parquet").num_rows == 1


def test_files_that_are_read_twice_are_told(tmp_path):
    path = write(tmp_path / "a.csv", "x,y\n1,2\n")
    other = write(tmp_path / "b.csv", "x,y\n3,4\n")
    (tmp_path / "c.csv").symlink_to(path)
    table = TableReader([path, other, path])
    assert table.num_rows == 3
    assert table.notes == [f"{path} is read 2 times, so that its rows count as often."]
    (note,) = TableReader(tmp_path).notes
    assert note == f"{path} is read 2 times, so that its rows count as often (also as {str(tmp_path / 'c.csv')!r})."
    assert not TableReader([path, other]).notes


def test_a_file_that_is_gone_between_passes(tmp_path):
    table = TableReader(write(tmp_path / "a.csv", "x,y\n1,2\n"))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(DataError, match=r"a\.csv is gone since it was opened"):
        list(table)


def test_texts_of_different_arrow_types_are_one_column(tmp_path):
    view = getattr(pa, "string_view", pa.large_string)()
    pq.write_table(pa.table({"x": pa.array(["a"], view)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array(["b"], pa.string())}), tmp_path / "b.parquet")
    assert TableReader(tmp_path).read()["x"].to_pylist() == ["a", "b"]


def test_what_reading_takes_is_that_of_a_packed_file_whatever_its_name(tmp_path):
    rows = b"x,y\n" + b"1,2\n" * 100
    packed, plain = write(tmp_path / "a.csv", gzip.compress(rows)), write(tmp_path / "b.csv", rows)
    named = write(tmp_path / "c.csv.gz", gzip.compress(rows))
    assert TableReader(packed).reading_bytes == TableReader(named).reading_bytes > TableReader(plain).reading_bytes


# Row groups, blocks, and the memory that they need


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
    assert list(runs_of_row_groups([group.num_rows for group in groups], size)) == expected
    source = TableSource(TableReader(path, chunk_size=size), "y")
    assert joined(source)[1][:, 0].tolist() == list(range(75))
    # What benchmarks/reading.py measured: open pages, dictionaries, and some chunks.
    pages = open_page_bytes(path, metadata)
    rows = min(size, max(sum(groups[group].num_rows for group in run) for run in expected))
    row_bytes = max(16, *(group.total_byte_size / group.num_rows for group in groups))
    assert source.table.reading_bytes == int(500_000 + pages + 4.2 * rows * row_bytes)


def test_reading_csv_needs_no_more_than_the_file_or_the_blocks_ahead(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,2\n" * 1000)
    constant, size = 1_500_000, path.stat().st_size
    assert TableReader(path).reading_bytes == constant + int(3.2 * size)
    assert TableReader(path, block_size=64).reading_bytes == constant + int(1.2 * 32 * 64 + 2 * 64)
    assert TableReader(path, block_size=1000).reading_bytes == constant + int(1.2 * size + 2 * 1000)
    # What a packed file unpacks to is not known.
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert TableReader(packed, block_size=1000).reading_bytes == constant + int(1.2 * 32 * 1000 + 2 * 1000)
