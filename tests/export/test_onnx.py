"""ONNX graphs in ONNX Runtime predict what the library predicts."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from export_models import KINDS, intervals, kept, library, table
from typer.testing import CliRunner

from finitegp import DataError, TableRegressor
from finitegp.cli import app
from finitegp.export import onnx_graph, to_onnx

REFUSED = ("table", "table, log")


@pytest.fixture(scope="module")
def runtime():
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    return pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


@pytest.mark.engines
@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_predictions_are_the_librarys(kind, double, runtime, tmp_path):
    fitted, new = kept(kind).fitted, kept(kind).new
    made = to_onnx(fitted, tmp_path / "model.onnx", double=double)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    real = np.float64 if double else np.float32
    inputs = np.column_stack(list(new.values())) if isinstance(new, dict) else new
    names = ("mean", "std", "epistemic_std", "noise_std")
    assert made.outputs[:4] == ["mean", "epistemic_std", "noise_std", "std"]

    def run(rows, names, coverage=0.9):
        given = {"rows": rows.astype(real), "coverage": np.array(coverage, real)}
        return [each.squeeze() for each in session.run(list(names), given)]

    tolerance = 1e-10 if double else 1e-5
    for mine, theirs in zip(run(inputs, names), library(fitted, new), strict=True):
        if theirs is not None:
            np.testing.assert_allclose(mine, theirs, rtol=tolerance)
    for coverage in (0.05, 0.5, 0.9, 0.99):
        expected = intervals(fitted, new, coverage, "predictive")
        for mine, theirs in zip(run(inputs, ["lower", "upper"], coverage), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance)
    # The batch is as large as it is, and one row is predicted as among others.
    np.testing.assert_allclose(run(inputs[:1], ["mean"])[0], run(inputs, ["mean"])[0][0], rtol=tolerance)
    assert json.loads(session.get_modelmeta().custom_metadata_map["columns"])[1] in ("column 1", "width")


@pytest.mark.engines
def test_the_command(runtime, tmp_path):
    kept("table of numbers").fitted.save(tmp_path / "model.finitegp")
    arguments = ["export", str(tmp_path / "model.finitegp"), "-o", str(tmp_path / "model.onnx")]
    result = CliRunner().invoke(app, [*arguments, "--no-intervals"])
    assert result.exit_code == 0, result.output
    assert "operators" in result.output
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["rows"]
    assert [each.name for each in session.get_outputs()] == ["mean", "epistemic_std", "noise_std", "std"]


def text_table(columns):
    """A model of some columns of a table, with gaps in two of them, and its rows."""
    made, targets = table(120)
    made["cut"] = [None if number % 30 == 7 else cut for number, cut in enumerate(made["cut"])]
    made = {name: made[name] for name in columns}
    model = TableRegressor(effort="low", random_state=0, target_scale="identity", max_one_hot=8)
    return model.fit(made, targets), made


def as_given(made, names, gap, kind):
    return np.array([[gap if cell is None else cell for cell in made[name]] for name in names], dtype=kind).T


@pytest.mark.engines
@pytest.mark.parametrize("columns", [("size", "cut", "shop"), ("cut", "shop"), ("size",)], ids="-".join)
def test_categories_and_gaps(columns, runtime, tmp_path):
    model, made = text_table(columns)
    encodings = {"size": "number", "cut": "one-hot", "shop": "target mean"}
    assert [line.encoding for line in model.columns_] == [encodings[name] for name in columns]
    exported = to_onnx(model, tmp_path / "model.onnx", double=True)
    numbers = [name for name in columns if name == "size"]
    texts = [name for name in columns if name != "size"]
    expected = {"rows": numbers, "text": texts, "coverage": []}
    assert exported.inputs == {name: each for name, each in expected.items() if each or name == "coverage"}
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])

    def run(table):
        given = {"rows": as_given(table, numbers, np.nan, float), "text": as_given(table, texts, "", object)}
        given = {name: each for name, each in given.items() if each.size} | {"coverage": np.array(0.9)}
        return [each[:, 0] for each in session.run(["mean", "std", "lower", "upper"], given)]

    ours = *model.predict(made, return_std=True), *model.predict_interval(made, 0.9)
    for theirs, mine in zip(run(made), ours, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-9)
    if "shop" in columns:  # what no row had is not passed off as something known
        new = made | {"shop": ["elsewhere", None, *made["shop"][2:]]}
        for theirs, mine in zip(run(new), ours, strict=True):
            assert np.isnan(theirs[:2]).all()
            np.testing.assert_allclose(theirs[2:], mine[2:], rtol=1e-9)
        stored = json.loads(session.get_modelmeta().custom_metadata_map["categories"])
        assert set(stored["shop"]) == set(made["shop"])


@pytest.mark.parametrize("kind", REFUSED)
def test_dates_are_refused_by_name(kind, tmp_path):
    with pytest.raises(DataError, match=r"Column .sold. holds dates.*finitegp-lite"):
        to_onnx(kept(kind).fitted, tmp_path / "model.onnx")


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(DataError, match=r"pip install 'finitegp\[onnx\]'"):
        to_onnx(kept("noise from inputs").fitted, tmp_path / "model.onnx")


def test_normal_quantile():
    """Wichura's formula against SciPy, as far out as intervals go."""
    from scipy.special import ndtri

    from finitegp.export.interval_formulas import normal_reach
    from finitegp.lite.program import Value, evaluate

    coverage = np.concatenate([[1e-3], np.linspace(0.01, 0.99, 50), [0.999, 0.9999]])
    found = evaluate({"z": normal_reach(Value("input", 1))}, coverage[:, None])["z"][:, 0]
    np.testing.assert_allclose(found, ndtri(0.5 + 0.5 * coverage), rtol=1e-12)


def test_every_operation_has_a_printer():
    from finitegp.lite.program import OPERATIONS

    printer = onnx_graph._Printer(SimpleNamespace(TensorProto=SimpleNamespace(DOUBLE=1, FLOAT=2)), True)
    for name in OPERATIONS:
        assert name in onnx_graph._NAMES or hasattr(printer, f"_{name}")
