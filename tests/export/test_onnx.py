"""ONNX graphs in ONNX Runtime predict what the library predicts."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from export_models import KINDS, intervals, kept, library, table
from typer.testing import CliRunner

from finitegp import DataError, TableRegressor
from finitegp.cli import app
from finitegp.export import onnx_graph, to_onnx
from finitegp.export.formulas import described, predicted
from finitegp.lite.program import evaluate

# Rows of these are tested by themselves: those with something new get NaN.
WITH_TEXT = ("table", "table, log")


@pytest.fixture(scope="module")
def runtime():
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    return pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


@pytest.mark.engines
@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITH_TEXT])
def test_predictions_are_the_librarys(kind, double, runtime, tmp_path):
    fitted, new = kept(kind).fitted, kept(kind).new
    made = to_onnx(fitted, tmp_path / "model.onnx", double=double)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    real = np.float64 if double else np.float32
    inputs = np.column_stack(list(new.values())) if isinstance(new, dict) else new
    names = ["mean", "std", "epistemic_std", "noise_std"]
    names = [name for name in names if name in made.outputs]
    assert len(names) == (2 if kind.startswith("table of numbers, ") else 4)

    def run(rows, names, coverage=0.9):
        given = {"rows": rows.astype(real), "coverage": np.array(coverage, real)}
        return [each.squeeze() for each in session.run(list(names), given)]

    tolerance = 1e-10 if double else 1e-5
    for mine, theirs in zip(run(inputs, names), library(fitted, new), strict=False):
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


@pytest.mark.engines
def test_the_method_of_regressors(runtime, tmp_path):
    made = kept("Fourier").fitted.to_onnx(tmp_path / "model.onnx", double=True, intervals=False)
    assert (made.outputs, made.real) == (["mean", "epistemic_std", "noise_std", "std"], "float64")


def text_table(columns, scale):
    """A model of some columns of a table, with gaps in three of them, and its rows."""
    made, targets = table(120)
    made["cut"] = [None if number % 30 == 7 else cut for number, cut in enumerate(made["cut"])]
    hours = np.random.default_rng(4).integers(0, 86_400, size=120)
    moments = np.array(made["sold"], "datetime64[s]") + hours
    made["sold"] = [None if number % 25 == 4 else str(moment) for number, moment in enumerate(moments)]
    made = {name: made[name] for name in columns}
    model = TableRegressor(effort="low", random_state=0, target_scale=scale, max_one_hot=8)
    return model.fit(made, targets), made


def as_given(made, names, gap, kind):
    return np.array([[gap if cell is None else cell for cell in made[name]] for name in names], dtype=kind).T


TABLES = [
    (("size", "cut", "shop"), "identity"),
    (("cut", "shop"), "log"),
    (("size",), "yeo-johnson"),
    (("size", "cut", "sold"), "log"),
    (("sold",), "identity"),
]


@pytest.mark.engines
@pytest.mark.parametrize(("columns", "scale"), TABLES, ids=["-".join([*names, scale]) for names, scale in TABLES])
def test_categories_dates_and_gaps(columns, scale, runtime, tmp_path):
    model, made = text_table(columns, scale)
    encodings = {"size": "number", "cut": "one-hot", "shop": "target mean", "sold": "date parts"}
    assert [line.encoding for line in model.columns_] == [encodings[name] for name in columns]
    exported = to_onnx(model, tmp_path / "model.onnx", double=True)
    kinds = {"rows": ("size",), "text": ("cut", "shop"), "dates": ("sold",)}
    given = {kind: [name for name in columns if name in names] for kind, names in kinds.items()}
    given = {kind: names for kind, names in given.items() if names}
    assert exported.inputs == given | {"coverage": []}
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    gaps = {"rows": (np.nan, float), "text": ("", object), "dates": ("NaT", "datetime64[us]")}

    def run(table):
        arrays = {kind: as_given(table, names, *gaps[kind]) for kind, names in given.items()}
        arrays |= {kind: array.astype(np.int64) for kind, array in arrays.items() if kind == "dates"}
        outputs = session.run(["mean", "std", "lower", "upper"], arrays | {"coverage": np.array(0.9)})
        return [each[:, 0] for each in outputs]

    ours = *model.predict(made, return_std=True), *model.predict_interval(made, 0.9)
    for theirs, mine in zip(run(made), ours, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-10)
    if "shop" in columns:  # what no row had is not passed off as something known
        new = made | {"shop": ["elsewhere", None, *made["shop"][2:]]}
        for theirs, mine in zip(run(new), ours, strict=True):
            assert np.isnan(theirs[:2]).all()
            np.testing.assert_allclose(theirs[2:], mine[2:], rtol=1e-10)
        stored = json.loads(session.get_modelmeta().custom_metadata_map["categories"])
        assert set(stored["shop"]) == set(made["shop"])


@pytest.mark.engines
def test_parts_of_dates(runtime):
    """Every day around the ends of years, leap or not, and moments far away, against NumPy's calendar."""
    import onnx

    from finitegp.lite.tables import encode_values

    years = np.array([f"{year:04}-01-01" for year in (1, 1600, 1700, *range(1890, 2110), 2400, 9999)], "datetime64[us]")
    days = (years[:, None] + np.arange(-3, 4) * np.timedelta64(1, "D")).ravel()
    moments = np.concatenate([days, days - np.timedelta64(1, "us"), days + np.timedelta64(12_345_678_901, "us")])
    parts = ["days", "day of year", "weekday", "time of day"]
    printer, helper, types = onnx_graph.Nodes(onnx, "v"), onnx.helper, onnx.TensorProto
    name = onnx_graph.date_parts(printer, "dates", parts)
    ends = [
        [helper.make_tensor_value_info(each, kind, ["rows", width])]
        for each, kind, width in (("dates", types.INT64, 1), (name, types.DOUBLE, 7))
    ]
    graph = helper.make_graph(printer.nodes, "dates", *ends, printer.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"dates": moments.astype(np.int64)[:, None]})
    column = {"type": "date", "encoding": "date parts", "parts": parts}
    np.testing.assert_allclose(found, encode_values(column, moments.astype(np.int64)), rtol=1e-14, atol=1e-14)


def test_what_is_cut_at_the_plausible_range():
    """The formulas of means on another scale are those of ``Scale.moments``, also where quantiles are cut."""
    model = described(kept("table of numbers, log").fitted)
    inputs, _ = model.inputs(kept("table of numbers, log").new)
    for plausible in ((3.0, 5.0), (-np.inf, 5.0), (4.0, np.inf), (-np.inf, np.inf)):
        cut = replace(model, scale=replace(model.scale, plausible=plausible))
        expected = cut.predict(kept("table of numbers, log").new)
        found = evaluate(predicted(cut)[0], inputs)
        np.testing.assert_allclose(found["mean"][:, 0], expected.mean, rtol=1e-12)
        np.testing.assert_allclose(found["std"][:, 0], expected.std, rtol=1e-12)


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(DataError, match=r"pip install 'finitegp\[onnx\]'"):
        to_onnx(kept("noise from inputs").fitted, tmp_path / "model.onnx")


def test_normal_quantile():
    """Wichura's formula against SciPy, as far out as intervals go."""
    from scipy.special import ndtri

    from finitegp.export.formulas import normal_reach
    from finitegp.lite.program import Value, evaluate

    coverage = np.concatenate([[1e-3], np.linspace(0.01, 0.99, 50), [0.999, 0.9999]])
    found = evaluate({"z": normal_reach(Value("input", 1))}, coverage[:, None])["z"][:, 0]
    np.testing.assert_allclose(found, ndtri(0.5 + 0.5 * coverage), rtol=1e-12)


def test_every_operation_has_a_printer():
    from finitegp.lite.program import OPERATIONS

    printer = onnx_graph._Printer(SimpleNamespace(TensorProto=SimpleNamespace(DOUBLE=1, FLOAT=2)), True)
    for name in OPERATIONS:
        assert name in onnx_graph._NAMES or hasattr(printer, f"_{name}")
