"""The loop, its callbacks, checkpoints, sampling and diagnostics."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from finitegp import DataError, FeatureGP, InputNoise, fit_full_batch
from finitegp.algorithms import BSGD, SCGD, Exact, Lagged, Minimax, PaperMinimax
from finitegp.callbacks import (
    BiasMeter,
    Callback,
    Checkpoint,
    ExactNLML,
    JsonLinesLog,
    ProgressBar,
    TensorBoardLog,
    Validation,
)
from finitegp.data.sampling import Sampler
from finitegp.diagnostics import certify, measure_bias
from finitegp.features import FourierFeatures, MLPFeatures
from finitegp.likelihood import regularized_gram_factor
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.training import TrainingDivergedWarning, train

ROWS = 300


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(ROWS, 3, generator=generator)
    return inputs, torch.sin(2 * inputs[:, 0]) + 0.2 * torch.randn(ROWS, generator=generator)


def make(kind=Lagged, seed=0, **options):
    model = FeatureGP(MLPFeatures(3, hidden=(16, 8), seed=seed), 0.5)
    return kind(model, ROWS, **options)


def state_of(algorithm):
    return {name: tensor.clone() for name, tensor in algorithm.state_dict().items()}


def assert_same_state(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


class TestSampling:
    def test_shuffled_epoch_has_every_row_once(self, data):
        sampler = Sampler(data, 32, seed=3)
        seen = torch.cat([batch.inputs for batch in sampler.epoch(0)])
        assert len(seen) == ROWS
        assert torch.equal(seen.sort(dim=0).values, data[0].sort(dim=0).values)
        assert [len(batch.inputs) for batch in sampler.epoch(0)] == [32] * 9 + [12]

    def test_rows_stay_together_and_skipping_is_going_on(self, data):
        weights = torch.arange(1.0, ROWS + 1)
        sampler = Sampler((data[0], weights, weights), 7, seed=3)
        batches = list(sampler.epoch(5))
        for batch in batches:
            index = batch.targets[:, 0].long() - 1
            assert torch.equal(batch.inputs, data[0][index])
            assert torch.equal(batch.weights, batch.targets[:, 0])
        for skip in (1, 31, 32, 42):
            rest = list(sampler.epoch(5, skip=skip))
            assert len(rest) == len(batches) - skip
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(rest, batches[skip:], strict=True))
            some = list(sampler.epoch(5, skip=skip, stop=40))
            assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(some, batches[skip:40], strict=True))

    def test_epochs_streams_and_seeds_differ_and_repeat(self, data):
        sampler = Sampler(data, 50, seed=3)
        first = next(iter(sampler.epoch(0))).inputs
        assert torch.equal(first, next(iter(Sampler(data, 50, seed=3).epoch(0))).inputs)
        for other in (sampler.epoch(1), sampler.epoch(0, stream=1), Sampler(data, 50, seed=4).epoch(0)):
            assert not torch.equal(first, next(iter(other)).inputs)

    @pytest.mark.parametrize("sampling", ["shuffle", "independent"])
    def test_batches_are_uniform(self, sampling):
        """Chi-square over 20 rows from sorted data: first batches of 4000 epochs."""
        rows = torch.arange(20.0)
        sampler = Sampler((rows[:, None], rows), 5, sampling=sampling, seed=0)
        counts = torch.zeros(20)
        for epoch in range(4000):
            counts += torch.bincount(next(iter(sampler.epoch(epoch))).targets[:, 0].long(), minlength=20)
        expected = 4000 * 5 / 20
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < 43.8  # the 99.9 % quantile for 19 degrees of freedom

    def test_independent_batches_repeat_rows(self, data):
        sampler = Sampler(data, 32, sampling="independent", seed=3)
        seen = torch.cat([batch.inputs[:, 0] for batch in sampler.epoch(0)])
        assert len(seen) == 320
        assert len(seen.unique()) < 0.75 * ROWS

    def test_bad_arguments(self, data):
        with pytest.raises(ValueError, match="batch_size"):
            Sampler(data, 0)
        with pytest.raises(ValueError, match="sampling"):
            Sampler(data, 5, sampling="blocks")
        with pytest.raises(DataError, match="Some chunks"):
            Sampler([(data[0], data[1]), (data[0], data[1], torch.ones(ROWS))], 5)
        assert Sampler(data, 10**6).batch_size == ROWS


class TestLoop:
    @pytest.mark.parametrize("optimizer", ["adam", "adadelta", "sgd"])
    def test_any_optimizer_and_schedule(self, data, optimizer):
        algorithm = make()
        before = algorithm.model.nlml(data)
        rate = {"adam": 5e-3, "adadelta": 1.0, "sgd": 0.05}[optimizer]
        optimizer = make_optimizer(algorithm, optimizer, learning_rate=rate)
        run = train(algorithm, optimizer, data, epochs=8, batch_size=20, schedule=cosine_decay(120))
        assert run.step == 120
        assert run.epoch == 8
        assert algorithm.model.nlml(data) < before
        assert optimizer.param_groups[0]["lr"] < 1e-3 * rate

    def test_torch_scheduler(self, data):
        algorithm = make()
        optimizer = torch.optim.RAdam(algorithm.parameter_groups(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=15, gamma=0.5)
        train(algorithm, optimizer, data, epochs=2, batch_size=20, schedule=scheduler)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0025)

    def test_same_seed_same_result(self, data):
        states = []
        for _ in range(2):
            algorithm = make(Minimax)
            train(algorithm, make_optimizer(algorithm), data, epochs=2, batch_size=20)
            states.append(state_of(algorithm))
        assert_same_state(*states)

    def test_exact_takes_one_step_per_epoch(self, data):
        model = FeatureGP(MLPFeatures(3, hidden=(16, 8), seed=0), 0.5)
        algorithm = Exact(model, data)
        before = model.nlml(data)
        run = train(algorithm, make_optimizer(algorithm, learning_rate=1e-2), data, epochs=15)
        assert run.step == 15
        assert model.nlml(data) < before

    def test_input_noise_and_weights(self, data):
        weights = torch.where(data[0][:, 1] > 0, 2.0, 0.5)
        for kind in (Lagged, SCGD, Minimax, BSGD):
            # Not ReLU: from zero weights SCGD can switch off all units of so small a network.
            network = MLPFeatures(3, hidden=(16, 8), activation="tanh", seed=0)
            model = FeatureGP(network, noise_model=InputNoise(nn.Linear(8, 1), variance=0.5))
            algorithm = kind(model, ROWS)
            before = model.nlml((*data, weights))
            train(algorithm, make_optimizer(algorithm, learning_rate=5e-3), (*data, weights), epochs=6, batch_size=20)
            assert model.nlml((*data, weights)) < before

    def test_bad_arguments(self, data):
        algorithm = make()
        with pytest.raises(ValueError, match="epochs"):
            train(algorithm, make_optimizer(algorithm), data, epochs=0)
        with pytest.raises(ValueError, match="total_steps"):
            cosine_decay(0)
        for bad in (lambda: ExactNLML(0), lambda: Validation(data, every=0), lambda: Validation(data, patience=0)):
            with pytest.raises(ValueError, match="must be at least 1"):
                bad()


class TestDivergence:
    def test_not_a_number_is_caught_within_one_step_and_the_best_state_restored(self, data):
        class Poison(Callback):
            def on_step(self, run):
                if run.step == 40:
                    with torch.no_grad():
                        run.algorithm.model.feature_map.layers[0].weight.fill_(math.nan)

        algorithm = make()
        optimizer = make_optimizer(algorithm)
        with pytest.warns(TrainingDivergedWarning, match=r"step 40 .*Restored the best state, nlml .* of epoch 2"):
            run = train(algorithm, optimizer, data, epochs=5, batch_size=20, callbacks=[ExactNLML(), Poison()])
        assert run.diverged
        assert run.step == 40
        assert run.best.epoch == 2
        assert algorithm.model.nlml(data) == run.best.value

    @pytest.mark.parametrize(
        ("kind", "options"), [(Lagged, {"block": 1}), (SCGD, {}), (BSGD, {}), (Minimax, {}), (PaperMinimax, {})]
    )
    def test_not_a_number_in_every_algorithm(self, data, kind, options):
        class Poison(Callback):
            def on_step(self, run):
                if run.step == 4:
                    with torch.no_grad():
                        run.algorithm.model.feature_map.layers[2].weight.fill_(math.nan)

        algorithm = make(kind, **options)
        with pytest.warns(TrainingDivergedWarning, match="step 4"):
            run = train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=20, callbacks=[Poison()])
        assert run.diverged
        assert math.isfinite(algorithm.model.nlml(data))

    def test_callbacks_end_also_when_training_is_interrupted(self, data):
        class Interrupt(Callback):
            ended = False

            def on_step(self, run):
                raise KeyboardInterrupt

            def on_end(self, run):
                self.ended = True

        algorithm, callback = make(), Interrupt()
        with pytest.raises(KeyboardInterrupt):
            train(algorithm, make_optimizer(algorithm), data, epochs=1, callbacks=[callback])
        assert callback.ended

    @pytest.mark.parametrize("kind", [Lagged, SCGD, BSGD, Minimax])
    @pytest.mark.filterwarnings("ignore::finitegp.training.TrainingDivergedWarning")
    def test_absurd_learning_rate_ends_with_finite_parameters(self, data, kind):
        algorithm = make(kind)
        optimizer = make_optimizer(algorithm, "sgd", learning_rate=1e6)
        run = train(algorithm, optimizer, data, epochs=3, batch_size=20)
        assert run.diverged or run.step == 45
        assert all(bool(torch.isfinite(p).all()) for p in algorithm.parameters())

    def test_exploding_noise_is_caught(self, data):
        class Inflate(Callback):
            def on_step(self, run):
                if run.step == 3:
                    run.algorithm.model.noise.set_variance(1e9)

        algorithm = make(SCGD)
        with pytest.warns(TrainingDivergedWarning, match=r"noise variance 9.99e\+08.*Restored the initial state"):
            run = train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=20, callbacks=[Inflate()])
        assert run.step == 3


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


class TestDiagnostics:
    def test_bias_meter_sees_what_is_biased(self, data):
        trained = make(Lagged)
        optimizer = make_optimizer(trained, learning_rate=5e-3)
        run = train(trained, optimizer, data, epochs=6, batch_size=10, callbacks=[BiasMeter(every=3)])
        assert [row["epoch"] for row in run.history if "gradient_angle_degrees" in row] == [3, 6]
        # At exact tracked quantities the unbiased gradient has no error at all.
        unbiased, biased, model = make(SCGD), make(BSGD), trained.model
        unbiased.model.load_state_dict(model.state_dict())
        statistics = model.statistics(data)
        unbiased.weights.data.copy_(
            regularized_gram_factor(statistics, model.noise_variance).solve(statistics.projected_targets)
        )
        unbiased.tracked_gram.copy_(statistics.gram + model.noise_variance * torch.eye(8))
        sampler = Sampler(data, 10, seed=0)
        found = measure_bias(unbiased, sampler)
        assert found.relative_error < 1e-3  # float32
        assert found.angle_degrees < 0.1
        assert found.batch_noise > 1.0
        biased.model.load_state_dict(model.state_dict())
        other = measure_bias(biased, sampler)
        assert other.relative_error > 0.2
        assert other.exact_norm == pytest.approx(found.exact_norm, rel=1e-6)
        assert other.nlml == pytest.approx(model.nlml(data), rel=1e-5)

    def test_measuring_changes_nothing(self, data):
        algorithm = make(SCGD)
        before = state_of(algorithm)
        measure_bias(algorithm, Sampler(data, 10, seed=0))
        assert_same_state(before, state_of(algorithm))
        assert all(parameter.grad is None for parameter in algorithm.parameters())

    def test_certificate(self, data):
        model = FeatureGP(FourierFeatures(3, 30, seed=0), 0.5).double()
        far = certify(model, data)
        fit_full_batch(model, data)
        near = certify(model, data)
        assert near.gradient_norm < 1e-4 < far.gradient_norm
        assert near.nlml == pytest.approx(model.nlml(data))
        assert 0 <= near.noise_gain < 1e-6 < far.noise_gain


class TestCheckpoints:
    @pytest.mark.parametrize("kind", [Lagged, SCGD, Minimax, BSGD])
    @pytest.mark.parametrize("optimizer", ["adam", "adadelta"])
    def test_resumed_run_equals_the_uninterrupted_one_to_the_bit(self, data, tmp_path, kind, optimizer):
        def go(path, stop_at=None, resume=None):
            class Stop(Callback):
                def on_step(self, run):
                    if run.step == stop_at:
                        raise KeyboardInterrupt

            algorithm = make(kind)
            run = None
            callbacks = [ExactNLML(every=2), Checkpoint(path, every_steps=7), Stop()]
            try:
                run = train(
                    algorithm,
                    make_optimizer(algorithm, optimizer, learning_rate=5e-3),
                    data,
                    epochs=4,
                    batch_size=32,
                    schedule=cosine_decay(40),
                    callbacks=callbacks,
                    resume=resume,
                )
            except KeyboardInterrupt:
                assert stop_at is not None
            return algorithm, run

        whole, expected = go(tmp_path / "whole.ckpt")
        go(tmp_path / "part.ckpt", stop_at=26)
        resumed, found = go(tmp_path / "part.ckpt", resume=tmp_path / "part.ckpt")
        assert_same_state(state_of(whole), state_of(resumed))
        assert found.step == expected.step == 40
        assert found.best.value == expected.best.value
        drop = {"seconds"}
        clean = [[{k: v for k, v in row.items() if k not in drop} for row in r.history] for r in (found, expected)]
        assert clean[0] == clean[1]
        assert found.seconds > 0

    def test_another_run_is_refused(self, data, tmp_path):
        path = tmp_path / "run.ckpt"
        algorithm = make()
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=32, callbacks=[Checkpoint(path)])
        for change in ({"batch_size": 16}, {"seed": 1}, {"sampling": "independent"}):
            other = make()
            with pytest.raises(DataError, match=f"belongs to another run: {next(iter(change))}"):
                train(other, make_optimizer(other), data, epochs=2, resume=path, **({"batch_size": 32} | change))
        other = make(SCGD)
        with pytest.raises(DataError, match="algorithm was 'Lagged' and is now 'SCGD'"):
            train(other, make_optimizer(other), data, epochs=2, batch_size=32, resume=path)

    def test_damaged_files_are_refused_and_leave_nothing_behind(self, data, tmp_path):
        path = tmp_path / "run.ckpt"
        algorithm = make()
        train(algorithm, make_optimizer(algorithm), data, epochs=1, batch_size=32, callbacks=[Checkpoint(path)])
        assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"]
        content = path.read_bytes()
        for damaged in (content[:100], content[:-50], b"", b"\xff" * 64, b"not a checkpoint"):
            path.write_bytes(damaged)
            other = make()
            with pytest.raises(DataError, match="checkpoint"):
                train(other, make_optimizer(other), data, epochs=1, batch_size=32, resume=path)

    def test_missing_file_starts_from_the_beginning(self, data, tmp_path):
        algorithm = make()
        run = train(algorithm, make_optimizer(algorithm), data, epochs=1, resume=tmp_path / "none.ckpt")
        assert run.epoch == 1


KILLED = """
import torch
import test_training
from finitegp.callbacks import Checkpoint
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(2)
inputs = torch.randn(300, 3, generator=generator)
data = inputs, torch.sin(2 * inputs[:, 0]) + 0.2 * torch.randn(300, generator=generator)
algorithm = test_training.make()
print("ready", flush=True)
test_training.train(algorithm, test_training.make_optimizer(algorithm), data, epochs=20, batch_size=8,
                    callbacks=[Checkpoint({path!r}, every_steps=5)], resume={path!r})
from safetensors.torch import save_file
save_file(test_training.state_of(algorithm), {result!r})
"""


@pytest.mark.slow
def test_killed_process_resumes_to_the_same_parameters(tmp_path):
    """SIGKILL at random moments, several times; the run that survives equals one that was never killed."""

    def script(name):
        text = KILLED.format(path=str(tmp_path / f"{name}.ckpt"), result=str(tmp_path / f"{name}.st"))
        return [sys.executable, "-c", text]

    # What -c runs imports from the working directory: this module.
    options = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, "cwd": Path(__file__).parent}
    subprocess.run(script("whole"), check=True, timeout=120, **options)
    generator = torch.Generator().manual_seed(int(time.time()))
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(script("killed"), stdout=subprocess.PIPE, **options)
        process.stdout.readline()
        time.sleep(float(0.05 + 0.6 * torch.rand((), generator=generator)))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run(script("killed"), check=True, timeout=120, **options)
    assert kills > 0
    assert_same_state(load_file(tmp_path / "whole.st"), load_file(tmp_path / "killed.st"))
