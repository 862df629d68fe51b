"""What can be a table for an encoder, and what is said about anything else."""

import io
import re

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from encoder_summaries import kinds, note, output
from scipy.sparse import csr_matrix

from finitegp import DataError
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.reader import TableReader
from finitegp.tables.summaries import TransformReport
from finitegp.tables.targets import target_values


def test_data_frames_of_all_sorts():
    frame = pd.DataFrame(
        {
            0: pd.Categorical(["u", "v", None]),
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "mixed": [1, "two", None],
            "object": np.array([1, 2.5, None], dtype=object),
            "wait": pd.to_timedelta([1, 2, 90], unit="s"),
            "list": [[1], [2], [3]],
        },
        index=[7, 7, 7],
    )
    encoder = TableEncoder.fit(frame, missing="impute")
    assert kinds(encoder) == {
        "0": ("category", "one-hot"),
        "whole": ("number", "number"),
        "mixed": ("category", "one-hot"),
        "object": ("number", "number"),
        "wait": ("number", "number"),
        "list": ("other", "left out"),
    }
    assert output(encoder, frame, "wait").tolist() == [1, 2, 90]
    assert output(encoder, frame, "whole").tolist() == [1, 2, 3]
    assert "list<" in note(encoder, "list")
    assert output(encoder, frame[1:], "mixed=two").tolist() == [1.0, 0.0]


def test_arrays_iterables_and_empty_tables():
    array = np.random.default_rng(0).normal(size=(9, 3))
    encoder = TableEncoder.fit(array)
    assert encoder.feature_names_out == ["x0", "x1", "x2"]
    assert np.array_equal(encoder.transform(array[::2]), array[::2])
    assert np.array_equal(encoder.transform(np.asfortranarray(array)), array)
    assert TableEncoder.fit([array[:4], array[4:]]).to_dict() == encoder.to_dict()
    assert TableEncoder.fit(iter([array[:4], array[4:]])).to_dict() == encoder.to_dict()
    assert encoder.transform(array[:0]).shape == (0, 3)
    assert encoder.transform(pa.table({"x0": [], "x1": [], "x2": []})).shape == (0, 3)
    objects = np.array([["u", 1], ["v", 2]], dtype=object)
    assert TableEncoder.fit(objects).feature_names_out == ["x0=u", "x0=v", "x1"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("table.csv", r"open it with TableReader\('table.csv'\) first"),
        (3, "must be a data frame, an Arrow table, a mapping, an array or chunks of these, but is a int"),
        (io.StringIO("a,b"), "is an open file: pass its name"),
        (polars.LazyFrame({"x": [1, 2]}), r"is a LazyFrame: call its method collect\(\) first"),
        ([1, 2], "must come in chunks such as Arrow record batches, but one is a int"),
        (np.zeros(3), r"must be \(rows, columns\), but has shape \(3,\)"),
        (np.zeros((0, 2)), "The table has no rows"),
        ([], "The table has no rows"),
        ({"x": [1, 1]}, r"no column that carries information \('x': every value is 1\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "The data frame has more than one column named 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "The table has more than one column named 'a'"),
        (pd.DataFrame({"z": [1j, 2j]}), "Column 'z' has the type complex128, which cannot be used"),
        (
            [{"x": [1, 2]}, {"x": ["a"]}],
            "Column 'x', in the chunk from row 2 on: its type is large_string, but was int64 before; read",
        ),
        ({"x": [1, 2], "y": [1]}, "The mapping is not a table of columns of equal length"),
        ({"x": [1, 2], "y": 1.5}, "Column 'y' must hold one value for each row, but is 1.5"),
        ({"x": np.ones((2, 2))}, r"Column 'x' must hold one value for each row, but has shape \(2, 2\)"),
        ({"x": [1, 2], 1: [1, 2], "1": [3, 4]}, "The mapping has more than one column named '1'"),
        (pd.DataFrame(index=range(3)), "The table has no columns"),
        ({}, "The table has no columns"),
        (csr_matrix(np.eye(2)), r"must be dense, but is a csr_matrix: pass X.toarray\(\)"),
        ([[1, 2], [3, 4]], "one is a list: make an array or a data frame of lists of rows"),
        ({"d": pa.array([0, 2**60], pa.timestamp("s"))}, "Column 'd', in the chunk from row 0 on: a date .* too far"),
        ([{"x": [1, 2]}, {"y": [1]}], "The chunk from row 2 on has other columns than those before: 'x', 'y'"),
    ],
)
def test_what_is_not_a_table_is_named(data, message):
    with pytest.raises(DataError, match=message):
        TableEncoder.fit(data)


def test_columns_of_mappings_are_those_of_data_frames():
    columns = {
        "mixed": np.array([1.5, "a", None, "a"], dtype=object),
        "large": [10**30, 2 * 10**30, 0, 1],
        "tensor": torch.tensor([1.0, 2.0, 4.0, 8.0]),
    }
    frame = pd.DataFrame({"mixed": columns["mixed"], "large": columns["large"], "tensor": [1.0, 2.0, 4.0, 8.0]})
    columns["mixed"] = list(columns["mixed"])
    encoded = [TableEncoder.fit(table, missing="impute").transform(table) for table in (columns, frame)]
    assert np.array_equal(*encoded)
    assert [each.kind for each in TableEncoder.fit(columns, missing="impute").summary()] == [
        "category",
        "number",
        "number",
    ]


def test_sparse_columns_are_numbers():
    dense = pd.DataFrame({"a": [0.0, 1.0, 0.0], "b": [1, 0, 2]})
    sparse = dense.astype({"a": pd.SparseDtype(float, 0.0), "b": pd.SparseDtype(int, 0)})
    assert np.array_equal(TableEncoder.fit(dense).transform(sparse), TableEncoder.fit(sparse).transform(dense))


def test_arguments_are_checked():
    with pytest.raises(DataError, match="Column 'x' cannot hold both a category and a number"):
        TableEncoder.fit({"x": [1, 2]}, categorical=["x"], numeric=["x"])
    with pytest.raises(ValueError, match="missing must be 'error' or 'impute', but is 'drop'"):
        TableEncoder.fit({"x": [1, 2]}, missing="drop")
    with pytest.raises(ValueError, match="max_one_hot must be at least 1, but is 0"):
        TableEncoder.fit({"x": [1, 2]}, max_one_hot=0)


def test_names_of_outputs_are_different():
    encoder = TableEncoder.fit({"a": ["b", "c"], "a=b": [1, 2], "a=b (2)": [3, 4]})
    assert encoder.feature_names_out == ["a=b", "a=c", "a=b (2)", "a=b (2) (2)"]


def test_files_are_named_in_errors(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n2,3\n")
    (tmp_path / "b.csv").write_text("x,y\n3,4\n-,inf\n")
    reader = TableReader([tmp_path / "a.csv", tmp_path / "b.csv"])
    with pytest.raises(DataError, match=re.escape(f"'x' has 1 missing value (first: line 3 of {tmp_path / 'b.csv'})")):
        TableEncoder.fit(reader)
    with pytest.raises(DataError, match=r"target 'y' is infinite in 1 of 4 rows, first in line 3 of .*b\.csv"):
        target_values(reader, "y")
    encoder = TableEncoder.fit(TableReader(tmp_path / "a.csv"))
    with pytest.raises(DataError, match=r"\(first: line 3 of .*b\.csv\)"):
        encoder.transform(reader)
    (tmp_path / "b.csv").write_text("x,y\n3,4\n4,oops\n")
    later = TableReader([tmp_path / "b.csv"])
    report = TransformReport(source=later)
    (chunk,) = later
    with pytest.raises(DataError, match=r"Column 'y', line 3 of .*b\.csv holds 'oops'"):
        encoder.transform(chunk, report)
