"""Tables with text, gaps and dates: `TableRegressor` beside LightGBM, CatBoost and a linear model.

``python -m benchmarks.tables DIRECTORY`` reads Parquet files (booleans ``test0`` to ``test4`` mark the
test rows of five splits) and appends one JSON line for each table, split and method to ``--output``; lines that are
there are not measured again. `TableRegressor` gets no option but the target. LightGBM and CatBoost get native
categories and gaps, the linear model one-hot columns. ``lightgbm-t`` adds a second LightGBM for the logarithm of the
size of out-of-fold residuals, and Student's t with the degrees of freedom that fit; the plain ones have one residual
scale, counted out-of-fold.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from finitegp import TableRegressor
from finitegp.tables.scoring import COVERAGES, SCORED_COVERAGES, ScoredRows

Array = npt.NDArray[np.float64]
TARGETS = {
    "saratoga": "price",
    "computers": "price",
    "hotel_rates": "avg_price_per_room",
    "lending_club": "int_rate",
    "nlswork": "ln_wage",
    "cps1988": "wage",
    "attrition": "MonthlyIncome",
    "babies": "bwt",
    "movies": "rating",
    "chicago": "ridership",
    "mlbbat10": "rbi",
    "txhousing": "median",
}
_FOLDS = 5
_DATES = ("date", "arrival_date")


def main() -> None:
    """Measure what is not yet measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/tables.jsonl"))
    parser.add_argument("--tables", nargs="*", default=list(TARGETS))
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(5)))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--effort", default="medium")
    parser.add_argument("--most-rows", type=int, help="Train on at most so many rows, to find crashes.")
    arguments = parser.parse_args()
    done = set()
    if arguments.output.exists():
        for line in arguments.output.read_text().splitlines():
            found = json.loads(line)
            done.add((found["table"], found["split"], found["method"], found["effort"], found["most_rows"]))
    for table in arguments.tables:
        frame = pd.read_parquet(arguments.directory / f"{table}.parquet")
        marks = [name for name in frame.columns if name.startswith("test")]
        for split in arguments.splits:
            held_out = frame[f"test{split}"].to_numpy(dtype=bool)
            rows = frame.drop(columns=marks)
            training, test = rows[~held_out], rows[held_out]
            if arguments.most_rows:
                training = training.sample(min(len(training), arguments.most_rows), random_state=split)
            for method in arguments.methods:
                effort = arguments.effort if method == "finitegp" else ""
                if (table, split, method, effort, arguments.most_rows) in done:
                    continue
                line = measure(method, training, test, TARGETS[table], effort, split)
                line = {"table": table, "split": split, "method": method, "effort": effort} | line
                line |= {"rows": len(training), "most_rows": arguments.most_rows}
                with arguments.output.open("a") as opened:
                    opened.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)


def measure(
    method: str, training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int
) -> dict[str, Any]:
    """Scores of one method on one split, or the error it ended in."""
    started, cpu = time.perf_counter(), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = METHODS[method](training, test, target, effort, seed)
    except Exception as error:  # a crash is a result
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    scores = found.scores().to_dict()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu, "scores": scores}


def _finitegp(training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int) -> ScoredRows:
    return TableRegressor(effort=effort, random_state=seed).fit(training, target=target).predict_scored(test)


def _lightgbm(training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int) -> ScoredRows:
    return _boosted(training, test, target, seed, _make_lightgbm, "category", spread=False)


def _lightgbm_t(training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int) -> ScoredRows:
    return _boosted(training, test, target, seed, _make_lightgbm, "category", spread=True)


def _catboost(training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int) -> ScoredRows:
    return _boosted(training, test, target, seed, _make_catboost, "text", spread=False)


def _linear(training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int) -> ScoredRows:
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    inputs, new = _one_hot(training.drop(columns=target), test.drop(columns=target))
    scaler = StandardScaler().fit(inputs)
    targets = training[target].to_numpy(dtype=float)
    middle, width = targets.mean(), targets.std()
    model = BayesianRidge().fit(scaler.transform(inputs), (targets - middle) / width)
    mean, std = model.predict(scaler.transform(new), return_std=True)
    return _student(middle + width * mean, width * std, 1e6, test[target].to_numpy(dtype=float))


METHODS: dict[str, Callable[[pd.DataFrame, pd.DataFrame, str, str, int], ScoredRows]] = {
    "finitegp": _finitegp,
    "lightgbm": _lightgbm,
    "lightgbm-t": _lightgbm_t,
    "catboost": _catboost,
    "linear": _linear,
}


def _make_lightgbm(seed: int) -> Any:
    import lightgbm

    return lightgbm.LGBMRegressor(n_estimators=400, learning_rate=0.05, random_state=seed, n_jobs=1, verbose=-1)


def _make_catboost(seed: int) -> Any:
    import catboost

    return catboost.CatBoostRegressor(
        iterations=600, random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False
    )


def _boosted(
    training: pd.DataFrame,
    test: pd.DataFrame,
    target: str,
    seed: int,
    make: Callable[[int], Any],
    kind: str,
    *,
    spread: bool,
) -> ScoredRows:
    """Trees with the residual scale of out-of-fold predictions; with ``spread``, one for each row and Student's t."""
    inputs, new = _native(training.drop(columns=target), test.drop(columns=target), kind)
    targets = training[target].to_numpy(dtype=float)
    options = {"cat_features": [name for name in inputs if inputs[name].dtype == object]} if kind == "text" else {}
    folds = np.random.default_rng(seed).permutation(len(targets)) % _FOLDS
    left_out = np.empty(len(targets))
    for fold in range(_FOLDS):
        model = make(seed).fit(inputs[folds != fold], targets[folds != fold], **options)
        left_out[folds == fold] = model.predict(inputs[folds == fold])
    mean = np.asarray(make(seed).fit(inputs, targets, **options).predict(new))
    errors = targets - left_out
    truth = test[target].to_numpy(dtype=float)
    if not spread:
        return _student(mean, np.full(len(mean), errors.std()), 1e6, truth)
    floor = 1e-3 * errors.std()
    sizes = np.log(np.maximum(np.abs(errors), floor))
    log_scale, own = np.empty(len(targets)), make(seed).fit(inputs, sizes, **options)
    for fold in range(_FOLDS):
        model = make(seed).fit(inputs[folds != fold], sizes[folds != fold], **options)
        log_scale[folds == fold] = model.predict(inputs[folds == fold])
    standard = errors / np.exp(log_scale)
    degrees, _, width = stats.t.fit(standard, floc=0.0)
    degrees = float(np.clip(degrees, 2.5, 1e6))
    scale = width * np.exp(np.asarray(own.predict(new)))
    return _student(mean, scale, degrees, truth)


def _student(mean: Array, scale: Array, degrees: float, targets: Array) -> ScoredRows:
    """Student's t around the mean."""
    levels = np.array([*COVERAGES, *SCORED_COVERAGES])
    reach = scale[:, None] * stats.t.ppf(0.5 + levels / 2, degrees)
    density = stats.t.logpdf((targets - mean) / scale, degrees) - np.log(scale)
    std = scale * np.sqrt(degrees / (degrees - 2.0))
    return ScoredRows(mean, std, density, mean[:, None] - reach, mean[:, None] + reach, targets)


def _dates(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as numbers that trees can use."""
    frame = frame.copy()
    for name in _DATES:
        if name in frame:
            day = pd.to_datetime(frame.pop(name))
            frame[f"{name} days"] = (day - pd.Timestamp("1970-01-01")).dt.days.astype(float)
            frame[f"{name} day of year"], frame[f"{name} weekday"] = day.dt.dayofyear, day.dt.dayofweek
    return frame


def _native(training: pd.DataFrame, test: pd.DataFrame, kind: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    training, test = _dates(training), _dates(test)
    for name in training:
        if pd.api.types.is_numeric_dtype(training[name]):
            continue
        if kind == "category":
            levels = pd.CategoricalDtype(sorted(training[name].dropna().unique()))
            training[name], test[name] = training[name].astype(levels), test[name].astype(levels)
        else:
            training[name] = training[name].astype(object).where(training[name].notna(), "missing")
            test[name] = test[name].astype(object).where(test[name].notna(), "missing")
    return training, test


def _one_hot(training: pd.DataFrame, test: pd.DataFrame) -> tuple[Array, Array]:
    training, test = _dates(training), _dates(test)
    numbers = [name for name in training if pd.api.types.is_numeric_dtype(training[name])]
    texts = [name for name in training if name not in numbers]
    middle = training[numbers].median()
    parts = []
    for frame in (training, test):
        gaps = frame[numbers].isna().astype(float).add_suffix(" missing")
        parts.append(pd.concat([frame[numbers].fillna(middle), gaps, pd.get_dummies(frame[texts])], axis=1))
    known = parts[0].columns
    return tuple(part.reindex(columns=known, fill_value=0.0).to_numpy(dtype=float) for part in parts)  # type: ignore[return-value]


if __name__ == "__main__":
    main()
