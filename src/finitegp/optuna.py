"""``FeatureGPSampler``: an Optuna sampler for studies of many trials. Needs the extra ``optuna``.

The hyperparameters are fitted again whenever the trials have grown by a fifth. In between, a new trial is one row more
in the row sums of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import DataError
from .features import FourierFeatures
from .full_batch import fit_full_batch
from .model import FeatureGP

try:
    from botorch.acquisition import qLogNoisyExpectedImprovement
    from botorch.models.transforms import Standardize
    from botorch.optim import optimize_acqf
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState

    from .botorch import FeatureGPModel
except ImportError as error:
    raise ImportError("finitegp.optuna needs Optuna and BoTorch: pip install 'finitegp[optuna]'.") from error

# The observed points among which the noisy best is sought: more cost more and are hardly ever the best.
_BASELINE_POINTS = 32
# Below this number of trials for each column, all columns share a length scale.
_TRIALS_PER_LENGTH_SCALE = 10
_REFIT_GROWTH = 1.2


@dataclass
class _State:
    """The model of a study, and the trials in it."""

    space: dict[str, Any]
    model: FeatureGPModel
    fitted_trials: int
    inputs: dict[int, Tensor] = field(default_factory=dict)  # by trial number


class FeatureGPSampler(BaseSampler):
    """Bayesian optimisation with Fourier features of a Matérn kernel and noisy expected improvement.

    Made for studies of many trials with one objective; for few an exact GP is affordable.
    Numbers are scaled to the unit interval (logarithms where the distribution has ``log=True``), categories are columns
    of zeros and ones. Trials that are running count as pending points, so several workers may share a study. Parameters
    that only some trials have are drawn at random.

    Args:
        num_features: Fourier features; even.
        startup_trials: Trials drawn at random first.
        num_restarts: Starting points of the optimisation of the acquisition function.
        seed: For the random trials, the features and the optimisation.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study(sampler=FeatureGPSampler(num_features=32, startup_trials=5, seed=0))
        >>> study.optimize(lambda trial: (trial.suggest_float("x", -1, 1) - 0.3) ** 2, n_trials=12)
        >>> study.best_value < 0.01
        True
    """

    def __init__(
        self, *, num_features: int = 256, startup_trials: int = 10, num_restarts: int = 4, seed: int | None = None
    ) -> None:
        if startup_trials < 2:
            raise ValueError(f"startup_trials must be at least 2, but is {startup_trials}.")
        self.num_features = num_features
        self.startup_trials = startup_trials
        self.num_restarts = num_restarts
        self._random = RandomSampler(seed=seed)
        self._generator = np.random.default_rng(seed)
        self._space = IntersectionSearchSpace()
        self._state: _State | None = None

    def reseed_rng(self) -> None:
        """New random numbers, for workers that start as copies."""
        self._random.reseed_rng()
        self._generator = np.random.default_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters that all trials have had, but for those with a single value."""
        if len(study.directions) != 1:
            raise DataError(
                f"FeatureGPSampler optimises one objective, but the study has {len(study.directions)}:",
                "use optuna.samplers.NSGAIISampler, or BoTorch with FeatureGPModel and a multi-objective acquisition.",
            )
        return {name: each for name, each in self._space.calculate(study).items() if not each.single()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """A random value: for first trials, and for parameters that only some trials have."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """The values that promise the largest improvement on what is known; none, and so random ones, at first."""
        done = [each for each in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if _is_finite(each)]
        if not search_space or len(done) < self.startup_trials:
            return {}
        model = self._updated_model(done, search_space, study.direction)
        assert self._state is not None
        seen = torch.stack(list(self._state.inputs.values()))
        with torch.no_grad():
            means = model.posterior(seen[:, None]).mean[:, 0, 0]
        baseline = seen[means.topk(min(_BASELINE_POINTS, len(seen))).indices]
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        pending = [
            _encode(each.params, search_space)
            for each in running
            if each.number != trial.number and search_space.keys() <= each.params.keys()
        ]
        with torch.random.fork_rng():
            torch.manual_seed(int(self._generator.integers(2**31)))
            acquisition = qLogNoisyExpectedImprovement(
                model, baseline, X_pending=torch.stack(pending) if pending else None, prune_baseline=False
            )
            unit_cube = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, seen.shape[1])
            found, _ = optimize_acqf(acquisition, unit_cube, q=1, num_restarts=self.num_restarts, raw_samples=128)
        return _decode(found[0], search_space)

    def _updated_model(
        self, done: list[FrozenTrial], space: dict[str, Any], direction: StudyDirection
    ) -> FeatureGPModel:
        """The model of all these trials: fitted, or the last one with the rows that are new."""
        sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
        state = self._state
        known = state is not None and state.space == space and state.inputs.keys() <= {each.number for each in done}
        if state is None or not known or len(done) >= _REFIT_GROWTH * state.fitted_trials:
            inputs = {each.number: _encode(each.params, space) for each in done}
            targets = torch.tensor([[sign * each.value] for each in done], dtype=torch.float64)
            model = self._fit(torch.stack(list(inputs.values())), targets, space)
            self._state = _State(space, model, len(done), inputs)
            return model
        new = [each for each in done if each.number not in state.inputs]
        if new:
            inputs = {each.number: _encode(each.params, space) for each in new}
            targets = torch.tensor([[sign * each.value] for each in new], dtype=torch.float64)
            state.model = state.model.condition_on_observations(torch.stack(list(inputs.values())), targets)
            state.inputs |= inputs
        return state.model

    def _fit(self, inputs: Tensor, targets: Tensor, space: dict[str, Any]) -> FeatureGPModel:
        columns = inputs.shape[1]
        features = FourierFeatures(
            columns,
            self.num_features,
            kernel="matern52",
            sampling="orthogonal",
            length_scales=0.5 * math.sqrt(columns),
            ard=len(inputs) >= _TRIALS_PER_LENGTH_SCALE * columns,
            seed=int(self._generator.integers(2**31)),
        )
        gp = FeatureGP(features, noise_variance=0.01).double()
        scaling = Standardize(1)
        scaled, _ = scaling(targets)
        fit_full_batch(gp, (inputs, scaled[:, 0]), max_iterations=50, minimum_noise_variance=1e-6)
        return FeatureGPModel.from_rows(
            gp, inputs, targets, input_transform=_AllowedValues(space), outcome_transform=Standardize(1)
        )


class _AllowedValues(nn.Module):
    """Moves points of the unit cube to the nearest that stand for allowed values.

    The model then sees what is going to be tried. Without, it goes on hoping for something between two categories,
    whatever the trials show.
    """

    def __init__(self, space: dict[str, Any]) -> None:
        super().__init__()
        self.space = space

    def forward(self, points: Tensor) -> Tensor:
        """Points ``(..., columns)``; gradients reach the columns that are left as they are."""
        columns: list[Tensor] = []
        place = 0
        for distribution in self.space.values():
            width = len(distribution.choices) if isinstance(distribution, CategoricalDistribution) else 1
            part = points[..., place : place + width]
            place += width
            if isinstance(distribution, CategoricalDistribution):
                part = F.one_hot(part.argmax(dim=-1), width).to(part)
            elif distribution.step is not None:
                low, high = _ends(distribution)
                value = low + part.detach() * (high - low)
                value = value.exp() if distribution.log else value
                value = distribution.low + ((value - distribution.low) / distribution.step).round() * distribution.step
                value = value.clamp(distribution.low, distribution.high)
                part = ((value.log() if distribution.log else value) - low) / (high - low)
            columns.append(part)
        return torch.cat(columns, dim=-1)


def _is_finite(trial: FrozenTrial) -> bool:
    return trial.value is not None and math.isfinite(trial.value)


def _encode(params: dict[str, Any], space: dict[str, Any]) -> Tensor:
    """A point of the unit cube."""
    columns: list[float] = []
    for name, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            columns += [float(params[name] == choice) for choice in distribution.choices]
        else:
            low, high = _ends(distribution)
            columns.append((_scale(params[name], distribution) - low) / (high - low))
    return torch.tensor(columns, dtype=torch.float64)


def _decode(point: Tensor, space: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a point of the unit cube: of categories the one with the largest column."""
    params: dict[str, Any] = {}
    columns = iter(point.tolist())
    for name, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            values = [next(columns) for _ in distribution.choices]
            params[name] = distribution.choices[int(np.argmax(values))]
            continue
        low, high = _ends(distribution)
        value = low + next(columns) * (high - low)
        value = math.exp(value) if distribution.log else value
        if distribution.step is not None:
            value = distribution.low + round((value - distribution.low) / distribution.step) * distribution.step
        value = min(max(value, distribution.low), distribution.high)
        params[name] = int(value) if isinstance(distribution, IntDistribution) else float(value)
    return params


def _scale(value: float, distribution: FloatDistribution | IntDistribution) -> float:
    return math.log(value) if distribution.log else float(value)


def _ends(distribution: FloatDistribution | IntDistribution) -> tuple[float, float]:
    """The ends of the range on the scale that is made uniform; steps get half a step more on both sides."""
    margin = 0.5 * distribution.step if distribution.step is not None else 0.0
    return _scale(distribution.low - margin, distribution), _scale(distribution.high + margin, distribution)
