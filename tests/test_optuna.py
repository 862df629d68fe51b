"""``FeatureGPSampler``: better than chance, exact between refits, and every kind of parameter."""

import math

import pytest
import torch

from finitegp import DataError

pytest.importorskip("optuna", reason="needs the extra 'optuna'", exc_type=ImportError)
pytest.importorskip("botorch", reason="needs the extra 'optuna'", exc_type=ImportError)

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from finitegp import optuna as module
from finitegp.optuna import FeatureGPSampler, _AllowedValues, _decode, _encode

SPACE = {
    "plain": FloatDistribution(-2.0, 5.0),
    "log": FloatDistribution(1e-6, 10.0, log=True),
    "stepped": FloatDistribution(0.0, 1.0, step=0.25),
    "whole": IntDistribution(-3, 9),
    "even": IntDistribution(2, 10, step=2),
    "whole log": IntDistribution(1, 1000, log=True),
    "kind": CategoricalDistribution(["a", None, 3]),
}


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def quick(**changes):
    return FeatureGPSampler(**({"num_features": 64, "startup_trials": 8, "num_restarts": 2, "seed": 0} | changes))


def test_parameters_survive_the_unit_cube():
    random = optuna.samplers.RandomSampler(seed=0)
    for _ in range(200):
        params = {name: random.sample_independent(None, None, name, each) for name, each in SPACE.items()}
        point = _encode(params, SPACE)
        assert bool(((point >= 0.0) & (point <= 1.0)).all())
        found = _decode(point, SPACE)
        for name, value in params.items():
            assert found[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value)
            assert type(found[name]) is type(value)


def test_every_point_of_the_unit_cube_is_allowed():
    corners = [torch.zeros(9, dtype=torch.float64), torch.ones(9, dtype=torch.float64)]
    for point in [*corners, *torch.rand(200, 9, dtype=torch.float64)]:
        for name, value in _decode(point, SPACE).items():
            assert SPACE[name]._contains(SPACE[name].to_internal_repr(value)), (name, value)


def test_the_model_sees_what_is_going_to_be_tried():
    points = torch.rand(100, 9, dtype=torch.float64, requires_grad=True)
    moved = _AllowedValues(SPACE)(points)
    expected = torch.stack([_encode(_decode(point, SPACE), SPACE) for point in points.detach()])
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12)
    moved.sum().backward()
    assert points.grad[0].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]  # of plain and logarithmic numbers only


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_better_than_chance(direction):
    """Half the loss of the median of five random searches of as many trials."""
    sign = 1.0 if direction == "minimize" else -1.0

    def objective(trial):
        x, rate = trial.suggest_float("x", -3, 3), trial.suggest_float("rate", 1e-4, 1.0, log=True)
        return sign * ((x - 1.0) ** 2 + (math.log10(rate) + 2.0) ** 2)

    def best(sampler):
        study = optuna.create_study(sampler=sampler, direction=direction)
        study.optimize(objective, n_trials=20)
        return sign * study.best_value

    chance = sorted(best(optuna.samplers.RandomSampler(seed=seed)) for seed in range(5))[2]
    assert best(quick()) < 0.5 * chance


def test_between_refits_the_model_is_that_of_all_trials():
    """The last model with rows added is one that saw all rows: the same weights."""
    sampler = quick()
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        return math.sin(3 * trial.suggest_float("x", 0, 2)) + trial.suggest_float("y", 0, 1) ** 2

    study.optimize(objective, n_trials=18)  # fits with 8, 10, 12, 15 trials; the last trial was made with 17
    state = sampler._state
    assert (state.fitted_trials, len(state.inputs)) == (15, 17)
    inputs = torch.stack(list(state.inputs.values()))
    targets = -torch.tensor([[trial.value] for trial in study.trials[:17]], dtype=torch.float64)
    scaled = state.model.outcome_transform(targets)[0]
    weights = state.model.feature_gp.condition((inputs, scaled)).posterior.weight_mean
    torch.testing.assert_close(state.model.fitted.posterior.weight_mean, weights, rtol=1e-8, atol=1e-8)


def test_running_trials_are_pending(monkeypatch):
    """Trials that are asked for at once are pending points for those after them."""
    seen = []

    def spy(model, baseline, X_pending=None, **options):
        seen.append(X_pending)
        return acquisition(model, baseline, X_pending=X_pending, **options)

    acquisition = module.qLogNoisyExpectedImprovement
    monkeypatch.setattr(module, "qLogNoisyExpectedImprovement", spy)
    study = optuna.create_study(sampler=quick())
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 2) - 0.4) ** 2, n_trials=8)
    asked = [study.ask({"x": FloatDistribution(0, 2)}).params["x"] for _ in range(3)]
    assert seen[0] is None
    for number in (1, 2):
        assert sorted((2 * seen[number]).flatten().tolist()) == pytest.approx(sorted(asked[:number]))


def test_failed_trials_and_single_values():
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.suggest_int("always", 3, 3)
        if trial.number % 4 == 1:
            raise optuna.TrialPruned
        return math.inf if trial.number % 4 == 2 else (x - 0.7) ** 2

    study = optuna.create_study(sampler=quick(startup_trials=4))
    study.optimize(objective, n_trials=24)
    assert study.best_value < 1e-3


def test_refusals_say_what_to_do():
    study = optuna.create_study(sampler=quick(), directions=["minimize", "maximize"])
    with pytest.raises(DataError, match="NSGAIISampler"):
        study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 2.0), n_trials=1)
    with pytest.raises(ValueError, match="startup_trials must be at least 2"):
        FeatureGPSampler(startup_trials=1)
