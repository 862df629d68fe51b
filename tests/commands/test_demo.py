import io

import numpy as np
import pytest
import torch
from diamonds_by_hand import load_diamonds
from rich.console import Console
from typer.testing import CliRunner

from finitegp import DataError, __version__
from finitegp.cli import app
from finitegp.commands.fit import run_demo
from finitegp.data.scaling import Standardizer
from finitegp.metrics import score


@pytest.mark.slow
def test_demo_beats_its_baselines_and_prints_them():
    output = io.StringIO()
    result = run_demo(max_rows=2000, console=Console(file=output, width=100))
    scores = result.scores
    assert scores["this model"].rmse < scores["linear"].rmse < scores["mean"].rmse
    assert scores["this model"].nlpd < scores["linear"].nlpd < scores["mean"].nlpd
    text = output.getvalue()
    for word in (
        "mean",
        "linear",
        "this model",
        "RMSE",
        "NLPD",
        "in 90 %",
        f"{scores['this model'].rmse:.4g}",
    ):
        assert word in text


@pytest.mark.slow
def test_command_line(tmp_path):
    runner = CliRunner()
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"finitegp {__version__}"
    assert "demo" in runner.invoke(app, ["--help"]).output
    result = runner.invoke(app, ["demo", "--rows", "600", "--directory", str(tmp_path / "left")])
    assert result.exit_code == 0, result.output
    assert "held-out rows" in result.output
    model, report = tmp_path / "left" / "diamonds.finitegp", tmp_path / "left" / "diamonds.html"
    assert f"model:  {model}" in result.output
    assert f"report: {report}" in result.output
    assert "Predicting price" in report.read_text()
    assert "price" in runner.invoke(app, ["info", str(model)]).output
    assert runner.invoke(app, ["demo", "--rows", "5"]).exit_code == 2
    assert runner.invoke(app, ["nonsense"]).exit_code == 2


def test_diamonds_are_encoded_completely():
    inputs, prices, names = load_diamonds()
    assert inputs.shape == (53940, len(names))
    assert np.isfinite(inputs).all()
    assert (prices > 0).all()
    for column in ("cut", "color", "clarity"):
        one_hot = inputs[:, [i for i, name in enumerate(names) if name.startswith(column + "=")]]
        assert (one_hot.sum(axis=1) == 1).all()
    assert inputs[0, names.index("carat")] == 0.23
    assert inputs[0, names.index("clarity=SI2")] == 1


def test_standardizer_small_and_constant_columns():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) * [1e-6, 1.0, 0.0] + [5e-3, -2.0, 0.1]
    scaler = Standardizer.fit(values)
    scaled = scaler.transform(values)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(scaled[:, :2].std(axis=0), 1.0, rtol=1e-12)
    assert scaler.scale[2] == 1.0
    np.testing.assert_allclose(scaler.inverse(scaled), values, rtol=1e-12)
    with pytest.raises(DataError, match="no rows"):
        Standardizer.fit(np.zeros((0, 2)))


def test_scores_against_sampling_and_definitions(generator):
    mean = torch.tensor([0.0, 1.0, -2.0]).double()
    std = torch.tensor([1.0, 0.5, 2.0]).double()
    targets = torch.tensor([0.4, 2.5, -2.0]).double()
    found = score(mean, std, targets)
    normal = torch.distributions.Normal(mean, std)
    assert found.nlpd == pytest.approx(-float(normal.log_prob(targets).mean()), rel=1e-12)
    assert found.rmse == pytest.approx(float(((targets - mean) ** 2).mean().sqrt()), rel=1e-12)
    # CRPS = E|X - y| - E|X - X'| / 2, by sampling.
    draws = mean + std * torch.randn(400000, 3, generator=generator, dtype=torch.float64)
    other = mean + std * torch.randn(400000, 3, generator=generator, dtype=torch.float64)
    sampled = (draws - targets).abs().mean(dim=0) - 0.5 * (draws - other).abs().mean(dim=0)
    assert found.crps == pytest.approx(float(sampled.mean()), abs=5e-3)
    assert found.coverage == {
        0.5: pytest.approx(2 / 3),
        0.9: pytest.approx(2 / 3),
        0.95: pytest.approx(2 / 3),
    }
    assert found.largest_standardized_residual == pytest.approx(3.0)
    with pytest.raises(DataError, match="row 1"):
        score(mean, torch.tensor([1.0, 0.0, 1.0]), targets)
    with pytest.raises(DataError, match="shapes"):
        score(mean, std, targets[:2])
