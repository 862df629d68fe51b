"""Odd arguments to every public class, function and method, found from their signatures."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import finitegp
import finitegp.export
import finitegp.lite

from .fixtures import Fixtures, scratch, training_rows
from .outcomes import Case, WrongError

ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 3, 2**63, 10**30, 0.5, -0.5, 0.0, 1e308, 1e-320, float("nan"), float("inf"), "", "x"),
    *("\0", "\ud800", b"x", [], [1], {}, {"a": 1}, (), set(), object, object(), 1j, np.nan, np.zeros(0)),
    *(np.zeros((3, 2)), np.full((20, 2), np.nan), np.ones((20, 2, 2)), np.array(["a"]), np.float32(2), np.int64(3)),
    *(torch.zeros(()), torch.zeros(20, 2), torch.full((20,), torch.inf), Path("/no/such/place"), range(3), lambda: 0),
]
# Not called: they start or join other processes, or give memory back to the system.
# Named tuples of results, and objects that `load` makes, check nothing.
_NOT_CALLED = {"join_ranks", "return_freed_memory", "export CExport", "export OnnxExport"}
_NOT_CALLED |= {"lite LitePrediction"}
# As much work as was asked for is no hang: these are not given astronomic numbers.
_WORK = {"epochs", "steps", "max_steps", "num_samples", "max_iterations"}
_ASTRONOMIC = [number for number, value in enumerate(ODD_VALUES) if type(value) is int and value > 2**62]


def argument_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """Calls in which one argument, rarely two, is odd and the others are as they should be."""
    plausible = _Plausible(fixtures)
    targets: list[tuple[str, Callable[[], Callable[..., Any]], inspect.Signature]] = []
    publics = {name: getattr(finitegp, name) for name in finitegp.__all__}
    for module in (finitegp.lite, finitegp.export):
        publics |= {f"{module.__name__.split('.')[1]} {name}": getattr(module, name) for name in module.__all__}
    for name, public in publics.items():
        if name in _NOT_CALLED or (inspect.isclass(public) and issubclass(public, BaseException)):
            continue
        targets.append((name, lambda public=public: public, inspect.signature(public)))
        for method, signature in _methods(public):
            make = plausible.instance(name)
            if make is not None:
                targets.append(
                    (f"{name}.{method}", lambda make=make, method=method: getattr(make(), method), signature)
                )
    spaces = [
        (name, make, signature, parameter)
        for name, make, signature in targets
        for parameter in signature.parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    for number in range(count):
        chance = random.Random(f"{seed}-arguments-{number}")
        # In turn, so that every parameter of everything is tried however few cases there are.
        name, make, signature, parameter = spaces[(number * 7919) % len(spaces)]
        odd = {parameter.name: chance.randrange(len(ODD_VALUES))}
        if chance.random() < 0.1:
            other = chance.choice(list(signature.parameters))
            odd.setdefault(other, chance.randrange(len(ODD_VALUES)))
        odd = {key: 0 if key in _WORK and each in _ASTRONOMIC else each for key, each in odd.items()}
        label = f"{name}({', '.join(f'{key}={_shown(ODD_VALUES[value])}' for key, value in odd.items())})"
        yield Case(label, partial(_call, name, make, signature, odd, plausible), named=tuple(odd))


def _call(
    name: str,
    make: Callable[[], Callable[..., Any]],
    signature: inspect.Signature,
    odd: dict[str, int],
    plausible: _Plausible,
) -> None:
    import os

    os.chdir(scratch())
    arguments: dict[str, Any] = {}
    for key, parameter in signature.parameters.items():
        if key in odd:
            arguments[key] = ODD_VALUES[odd[key]]
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        elif parameter.default is parameter.empty:
            arguments[key] = plausible.value(name, key)
    positional = [
        arguments.pop(key)
        for key, parameter in signature.parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    found = make()(*positional, **arguments)
    if hasattr(found, "get_params") and "." not in name:  # estimators check what they were given when they fit
        inputs, targets = training_rows()
        found = found.fit(inputs, targets).predict(inputs)
    elif name.endswith("Features"):
        with torch.no_grad():
            found = found.double()(torch.zeros(3, 2, dtype=torch.float64))
    elif name == "resumable":
        with found:
            pass
    elif inspect.isgenerator(found):
        found = list(found)[:5]
    # Densities of infinite targets, or shifts by NaN, are the caller's own; predictions are ours.
    own = any(not _is_finite(ODD_VALUES[each]) for each in odd.values()) and not any(
        word in name for word in ("predict", "sample", "interval")
    )
    if name not in ("Prediction", "Prediction.in_units") and not own:
        _check_result(found)


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except (TypeError, ValueError, OverflowError):
        return True


def _check_result(found: Any) -> None:
    """Predictions are finite."""
    if isinstance(found, finitegp.Prediction):
        found = [found.mean, found.variance]
    if isinstance(found, finitegp.lite.LitePrediction):
        found = [found.mean, found.std]
    if isinstance(found, torch.Tensor | np.ndarray):
        found = [found]
    if not isinstance(found, list | tuple):
        return
    for each in found:
        if isinstance(each, torch.Tensor):
            each = each.detach().cpu().numpy()
        if isinstance(each, np.ndarray) and each.dtype.kind == "f" and not np.isfinite(each).all():
            raise WrongError("a result is not finite")


def _methods(public: Any) -> list[tuple[str, inspect.Signature]]:
    if not inspect.isclass(public):
        return []
    found = []
    for name in dir(public):
        value = inspect.getattr_static(public, name)
        # Layers are called by torch alone.
        if (
            name.startswith("_")
            or name in ("forward", "pullback")
            or (not isinstance(value, classmethod | staticmethod) and not inspect.isfunction(value))
        ):
            continue
        function = getattr(public, name)
        if not (getattr(function, "__module__", "") or "").startswith("finitegp"):
            continue  # inherited from torch or scikit-learn
        signature = inspect.signature(function)
        if inspect.isfunction(value):
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        if signature.parameters:
            found.append((name, signature))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{type(value).__name__} {tuple(value.shape)}"
    return repr(value)[:30]


class _Plausible:
    """Arguments that a call may well be made with, by the name of the parameter, and instances to call methods of."""

    def __init__(self, fixtures: Fixtures) -> None:
        self._fixtures = fixtures
        self._inputs, self._targets = training_rows()
        self._models: dict[str, Any] = {}

    def value(self, name: str, parameter: str) -> Any:
        """What is passed where nothing odd is; None where nothing is known of the parameter."""
        fixtures = self._fixtures
        new = {"a": [0.1, 0.2], "b": [1.0, 2.0], "c": ["u", "v"], "y": [0.0, 1.0]}
        tables = name.startswith(("TableRegressor", "TableEncoder", "SiteStatistics"))
        values: dict[str, Callable[[], Any]] = {
            "X": lambda: new if tables else self._inputs,
            "y": lambda: [0.0, 1.0] if tables else self._targets,
            "table": lambda: new,
            "tables": lambda: fixtures.table,
            "paths": lambda: fixtures.table,
            "data": lambda: new if tables else (self._inputs, self._targets),
            "source": lambda: finitegp.ArraySource(self._inputs, self._targets),
            "inputs": lambda: self._inputs if "Npy" not in name else self._npy("inputs", self._inputs),
            "targets": lambda: self._targets,
            "held_out_inputs": lambda: self._inputs,
            "held_out_targets": lambda: self._targets,
            "features": lambda: torch.ones(20, 3, dtype=torch.float64),
            "chunks": lambda: [(self._inputs, self._targets)],
            "rows": lambda: finitegp.ArraySource(self._inputs, self._targets).take(np.arange(3)),
            "numbers": lambda: np.arange(3),
            "model": self._feature_gp,
            "feature_map": lambda: finitegp.LinearFeatures(2),
            "fitted": lambda: self._feature_gp().condition((self._inputs, self._targets)),
            "regressor": lambda: self._regressor(),
            "other": lambda: self._regressor() if name.startswith("GPRegressor") else None,
            "algorithm": self._algorithm,
            "optimizer": lambda: finitegp.make_optimizer(self._algorithm()),
            "statistics": self._statistics,
            "num_data": lambda: 20,
            "num_rows": lambda: 20,
            "input_dim": lambda: 2,
            "num_features": lambda: 4,
            "num_frequencies": lambda: 4,
            "total_steps": lambda: 10,
            "epochs": lambda: 1,
            "noise_variance": lambda: 0.1,
            "variance": lambda: 0.1,
            "mean": lambda: torch.zeros(20, dtype=torch.float64),
            "std": lambda: torch.ones(20, dtype=torch.float64),
            "epistemic_variance": lambda: torch.ones(20, dtype=torch.float64),
            "network": lambda: torch.nn.Linear(2, 1),
            "maps": lambda: finitegp.LinearFeatures(2),
            "first": lambda: torch.nn.Linear(2, 2),
            "second": lambda: finitegp.LinearFeatures(2),
            "coverage": lambda: 0.9,
            "level": lambda: 0.9,
            "memory_budget": lambda: "300MB",
            "budget": lambda: "300MB",
            "path": lambda: self._path(name),
            "directory": lambda: fixtures.spool if "open" in name else scratch() / "new-spool",
            "contents": lambda: self._contents(),
            "run": lambda: self._run(),
            "settings": lambda: None,
            "metric": lambda: "nlml",
            "value": lambda: 0.5,
            "shift": lambda: 0.0,
            "factor": lambda: 2.0,
            "seed": lambda: 0,
        }
        if name.startswith(("lite", "export")):
            values |= {
                "rows": lambda: {key: new[key] for key in "abc"},
                "targets": lambda: [0.0, 1.0],
                "model": lambda: fixtures.numbers,
                "other": lambda: finitegp.lite.load(fixtures.model),
            }
        made = values.get(parameter)
        return None if made is None else made()

    def instance(self, name: str) -> Callable[[], Any] | None:
        """Something that makes an object of this class, or None where methods are called on the class."""
        fixtures = self._fixtures
        made: dict[str, Callable[[], Any]] = {
            "GPRegressor": self._regressor,
            "TableRegressor": lambda: finitegp.TableRegressor.load(fixtures.model),
            "TableEncoder": lambda: finitegp.TableRegressor.load(fixtures.model).encoder_,
            "TableReader": lambda: finitegp.TableReader(fixtures.table),
            "SiteStatistics": lambda: finitegp.SiteStatistics.load(fixtures.statistics),
            "ScaledGP": lambda: self._regressor().fits_[0],
            "FeatureGP": self._feature_gp,
            "FittedGP": lambda: self._feature_gp().condition((self._inputs, self._targets)),
            "WeightPosterior": lambda: self._feature_gp().condition((self._inputs, self._targets)).posterior,
            "FeatureStatistics": self._statistics,
            "Prediction": lambda: self._feature_gp().condition((self._inputs, self._targets)).predict(self._inputs),
            "lite LiteModel": lambda: finitegp.lite.load(fixtures.model),
            "ArraySource": lambda: finitegp.ArraySource(self._inputs, self._targets),
            "Lagged": self._algorithm,
        }
        return made.get(name)

    def _regressor(self) -> Any:
        if "regressor" not in self._models:
            from finitegp import GPRegressor

            self._models["regressor"] = GPRegressor(effort="low", random_state=0).fit(self._inputs, self._targets)
        import copy

        return copy.deepcopy(self._models["regressor"])

    def _feature_gp(self) -> Any:
        return finitegp.FeatureGP(finitegp.LinearFeatures(2), noise_variance=0.1)

    def _algorithm(self) -> Any:
        model = finitegp.FeatureGP(finitegp.MLPFeatures(2, hidden=(4,), seed=0), noise_variance=0.1)
        return finitegp.Lagged(model, num_data=20)

    def _statistics(self) -> Any:
        return finitegp.FeatureStatistics.from_batch(torch.eye(3, dtype=torch.float64), torch.ones(3).double())

    def _run(self) -> Any:
        algorithm = self._algorithm()
        return finitegp.train(
            algorithm, finitegp.make_optimizer(algorithm), (self._inputs, self._targets), epochs=1, batch_size=10
        )

    def _contents(self) -> Any:
        fitted = self._feature_gp().condition((self._inputs, self._targets))
        return finitegp.gather_contents(fitted, self._inputs, self._targets)

    def _path(self, name: str) -> Path:
        known = {"TableRegressor.load": self._fixtures.model, "SiteStatistics.load": self._fixtures.statistics}
        known["lite load"] = self._fixtures.model
        return known.get(name, scratch() / "new-file")

    def _npy(self, name: str, values: Any) -> Path:
        path = scratch() / f"{name}.npy"
        np.save(path, values)
        return path
