"""The examples run on small settings and show what they say they show."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TESTED = ["quickstart", "deep_kernel", "messy_table", "streaming_update", "three_sites", "uncertainty"]
TESTED += ["bayesian_optimization", "dask_rows", "edge_device", "shap_values", "skops_pipeline"]


def run(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](small=True)
    return capsys.readouterr().out


def numbers_after(text, words):
    """The numbers of the line that has these words, from there on."""
    line = next(line for line in text.splitlines() if words in line)
    return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line.split(words)[1])]


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(TESTED)


def test_quickstart(capsys, quick_effort):
    shown = run("quickstart", capsys)
    assert "loaded model predicts the same: True" in shown
    ours, _linear = numbers_after(shown, "RMSE ")
    assert 45 < ours < 70  # the targets' standard deviation is 77
    assert 80 <= numbers_after(shown, "intervals hold ")[0] <= 98


def test_deep_kernel(capsys):
    shown = run("deep_kernel", capsys)
    constant, *ours = (
        numbers_after(shown, words)[0] for words in ("of the training rows", "(module)", "Lagged, train")
    )
    assert len(ours) == 2
    assert max(ours) < constant


@pytest.mark.slow
def test_messy_table(capsys, quick_effort):
    shown = run("messy_table", capsys)
    for words in ("one-hot", "date parts", "left out", "Gaps were filled", "'Riverside'"):
        assert words in shown
    error, spread = numbers_after(shown, "median error")
    assert 0 < error < 3 * spread
    # Less certain where there are no data.
    assert numbers_after(shown, "in the district without training rows")[1] > spread


def test_streaming_update(capsys, quick_effort):
    shown = run("streaming_update", capsys)
    restored = numbers_after(shown, "north without it")
    merged = numbers_after(shown, "merged")
    assert restored[1] < 1e-6
    assert merged[1] < 1e-6
    assert numbers_after(shown, "with a wrong day")[0] > restored[0]


def test_three_sites(capsys, quick_effort):
    shown = run("three_sites", capsys)
    joint = numbers_after(shown, "all three plants: RMSE")[0]
    assert joint < min(numbers_after(shown, f"bench and {name}: RMSE")[0] for name in ("north", "south", "west"))
    assert numbers_after(shown, "predictions within")[0] < 1e-9
    for words in ("made for another model", "merged into this model before"):
        assert words in shown


@pytest.mark.slow
def test_uncertainty(capsys, quick_effort):
    shown = run("uncertainty", capsys)
    many_rows, gap, outside = (
        numbers_after(shown, f"({place}):") for place in ("left, many rows", "gap, no rows", "far outside")
    )
    assert many_rows[0] < many_rows[1]  # noise is what is left of the uncertainty where there are rows
    assert many_rows[0] < min(gap[0], outside[0])
    for promised in (50, 80, 90, 95):
        _, conformal = numbers_after(shown, f"    {promised} %")
        assert abs(conformal - promised) < 8
    before, after = numbers_after(shown, "goes from ")
    assert after < before
    found = {int(row) for row in re.findall(r"row (\d+):", shown)}
    assert {5, 17, 40} <= found


def test_bayesian_optimization(capsys):
    pytest.importorskip("botorch", reason="needs the extra 'botorch'", exc_type=ImportError)
    shown = run("bayesian_optimization", capsys)
    deviation, truth = numbers_after(shown, "noise standard deviation")
    assert 0.5 * truth < deviation < 3 * truth
    recommended, best = numbers_after(shown, "more rows:")
    assert 0.5 * best < recommended <= best  # a random row has 0.3


@pytest.mark.engines
def test_dask_rows(capsys):
    pytest.importorskip("distributed", reason="needs the extra 'dask'", exc_type=ImportError)
    shown = run("dask_rows", capsys)
    assert "rows in the posterior: 20,000" in shown
    deviation, truth = numbers_after(shown, "noise standard deviation")
    assert deviation == pytest.approx(truth, rel=0.05)
    assert 89 < numbers_after(shown, "intervals hold")[0] < 91


@pytest.mark.engines
def test_shap_values(capsys):
    pytest.importorskip("shap", reason="needs the extra 'shap'", exc_type=ImportError)
    shown = run("shap_values", capsys)
    rent, deviation = re.findall(r"parts add up to the prediction within (\S+)", shown)
    assert max(float(rent), float(deviation)) < 1e-8
    (large, *_), *_ = [numbers_after(line, "size ") for line in shown.splitlines() if "110 m2" in line]
    assert large > 300
    rare = next(line for line in reversed(shown.splitlines()) if "south" in line)
    assert numbers_after(rare, "town ")[0] > 3  # the town that is rarely seen makes the rent uncertain


@pytest.mark.engines
def test_skops_pipeline(capsys):
    pytest.importorskip("skops", reason="needs the extra 'skops'", exc_type=ImportError)
    shown = run("skops_pipeline", capsys)
    assert "skops alone refuses the regressor" in shown
    assert "files: gp.finitegp, steps.skops" in shown
    assert numbers_after(shown, "predicts the same within")[0] < 1e-9


def test_the_tables_of_the_examples_are_those_of_their_script(tmp_path):
    runpy.run_path(str(EXAMPLES / "tables" / "make_flats.py"))["write_tables"](tmp_path)
    for name in ("flats.csv", "flats-new.csv"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / "tables" / name).read_bytes()


@pytest.mark.parametrize("name", TESTED)
def test_examples_say_how_to_run_them(name):
    assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text()


@pytest.mark.slow
def test_edge_device(capsys):
    shown = run("edge_device", capsys)
    assert "within 16 MB beyond the libraries" in shown or not Path("/proc/self/status").exists()
    assert numbers_after(shown, "the header has")[0] < 32_000
    before, after, adapted = (
        numbers_after(shown, words)[0]
        for words in ("before the repair: RMSE", "after the repair: RMSE", "with 400 new rows: RMSE")
    )
    assert after > 1.3 * adapted
    assert adapted < 1.3 * before
    for words in ("on the device predictions differ by at most", "the new header differs by at most"):
        if words in shown:  # without a C compiler there is none
            assert numbers_after(shown, words)[0] < 1e-3
