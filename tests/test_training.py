"""The loop, and runs that diverge."""

import math

import pytest
import torch
from torch import nn
from training_runs import ROWS, assert_same_state, make, make_data, state_of

from finitegp import FeatureGP, InputNoise
from finitegp.algorithms import BSGD, SCGD, Exact, Lagged, Minimax, PaperMinimax
from finitegp.callbacks import (
    Callback,
    ExactNLML,
    Validation,
)
from finitegp.features import MLPFeatures
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.training import TrainingDivergedWarning, train


@pytest.fixture
def data():
    return make_data()


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

    def test_an_optimizer_that_needs_the_loss_is_refused(self, data):
        algorithm = make()
        with pytest.raises(ValueError, match="use fit_full_batch"):
            train(algorithm, torch.optim.LBFGS(algorithm.parameters()), data, epochs=1, batch_size=20)

    def test_an_optimizer_of_another_model_is_refused(self, data):
        with pytest.raises(ValueError, match="none of the parameters of the algorithm"):
            train(make(), make_optimizer(make()), data, epochs=1, batch_size=20)
        algorithm = make()
        some = torch.optim.SGD([*nn.Linear(1, 1).parameters(), algorithm.model.noise.log_variance], lr=0.01)
        train(algorithm, some, data, epochs=1, batch_size=20)

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
