"""Callbacks: what they measure, keep, write and stop."""

import io
import json
import math

import pytest
import torch
from rich.console import Console
from training_runs import make, make_data

from finitegp import FeatureGP
from finitegp.algorithms import Lagged
from finitegp.callbacks import (
    Callback,
    ExactNLML,
    JsonLinesLog,
    ProgressBar,
    TensorBoardLog,
    Validation,
)
from finitegp.features import MLPFeatures
from finitegp.schedules import make_optimizer
from finitegp.training import train


@pytest.fixture
def data():
    return make_data()


class TestCallbacks:
    def test_best_iterate_is_a_copy_and_is_restored(self, data):
        class Spoil(Callback):
            """Makes the model worse after the third epoch."""

            def on_epoch(self, run):
                if run.epoch == 3:
                    with torch.no_grad():
                        run.algorithm.model.feature_map.layers[0].weight.mul_(100.0)

        algorithm = make()
        optimizer = make_optimizer(algorithm, learning_rate=1e-5)
        run = train(algorithm, optimizer, data, epochs=5, batch_size=20, callbacks=[ExactNLML(), Spoil()])
        assert run.best.epoch == 3
        values = {row["epoch"]: row["nlml"] for row in run.history}
        assert values[4] > values[3]
        assert algorithm.model.nlml(data) == values[3]
        again = make()
        optimizer = make_optimizer(again, learning_rate=1e-5)
        run = train(
            again, optimizer, data, epochs=5, batch_size=20, callbacks=[ExactNLML(), Spoil()], restore_best=False
        )
        # The spoiled state is kept; only its noise was set to the optimum.
        assert run.history[-1]["nlml"] >= again.model.nlml(data) > values[3]
        spoiled, best = (found.model.feature_map.layers[0].weight.detach() for found in (again, algorithm))
        assert float(spoiled.abs().mean()) > 50 * float(best.abs().mean())

    def test_validation_is_of_the_held_out_rows_and_stops(self, data):
        held_out = data[0][:60], data[1][:60]
        rest = data[0][60:], data[1][60:]
        algorithm = Lagged(FeatureGP(MLPFeatures(3, hidden=(64, 64), seed=0), 0.5), 240)
        optimizer = make_optimizer(algorithm, learning_rate=2e-2)
        run = train(algorithm, optimizer, rest, epochs=300, batch_size=10, callbacks=[Validation(held_out, patience=5)])
        assert run.stop_reason == "no better validation NLPD in 5 measurements"
        assert run.epoch < 300
        measured = [row["validation_nlpd"] for row in run.history]
        assert measured.index(min(measured)) == len(measured) - 6
        prediction = algorithm.model.condition(rest).predict(held_out[0])
        nlpd = -float(prediction.log_density(held_out[1].double()).mean())
        assert nlpd == pytest.approx(min(measured), rel=1e-9)
        rmse = float((prediction.mean - held_out[1]).square().mean().sqrt())
        assert rmse == pytest.approx(run.history[-6]["validation_rmse"], rel=1e-9)

    def test_measurements_every_few_epochs(self, data):
        algorithm = make()
        run = train(
            algorithm,
            make_optimizer(algorithm),
            data,
            epochs=5,
            batch_size=50,
            callbacks=[ExactNLML(every=2, offset=10.0), Validation(data, every=3)],
        )
        assert [row["epoch"] for row in run.history if "nlml" in row] == [2, 4, 5]
        assert [row["epoch"] for row in run.history if "validation_nlpd" in row] == [3, 5]
        assert run.history[1]["nlml"] > 5

    def test_log_has_one_line_per_epoch(self, data, tmp_path):
        algorithm = make()
        log = tmp_path / "logs" / "run.jsonl"
        callbacks = [ExactNLML(), JsonLinesLog(log, {"dataset": "sine"})]
        train(algorithm, make_optimizer(algorithm), data, epochs=3, batch_size=50, callbacks=callbacks)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        assert [row["epoch"] for row in rows] == [1, 2, 3]
        assert all(row["dataset"] == "sine" and math.isfinite(row["nlml"]) for row in rows)
        assert all(row["learning_rates"] == [1e-3] for row in rows)

    def test_progress_bar_shows_nlml_and_rate(self, data):
        output = io.StringIO()
        console = Console(file=output, force_terminal=True, width=120)
        algorithm = make()
        callbacks = [ExactNLML(), ProgressBar(console)]
        run = train(algorithm, make_optimizer(algorithm), data, epochs=2, batch_size=50, callbacks=callbacks)
        text = output.getvalue()
        assert "epoch 2/2" in text
        assert f"NLML {run.history[-1]['nlml']:.3f}" in text
        assert "rows/s" in text

    def test_tensorboard_is_optional(self, data, tmp_path):
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            with pytest.raises(ImportError, match=r"finitegp\[tensorboard\]"):
                TensorBoardLog(tmp_path)
            return
        algorithm = make()
        train(algorithm, make_optimizer(algorithm), data, epochs=1, callbacks=[TensorBoardLog(tmp_path)])
        assert list(tmp_path.glob("events*"))
