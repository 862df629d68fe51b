"""``lightgbm``, ``xgboost``, ``catboost`` and ``ngboost``: boosted trees, with constant and with predicted noise.

Validation rows end each of them; the numbers of trees are caps that no run should reach, and the record says if one did
(``shortened``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from ..outcome import DatasetSplit, Outcome
from .contract import SMALLEST_NOISE, ScaledSplit, Stopwatch, constant_noise, hold_out, merge_settings, require

LIGHTGBM_DEFAULTS: dict[str, Any] = {
    "trees": 10_000,
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_child_samples": 20,
    "early_stopping_rounds": 100,
    "validation_fraction": 0.1,
    "threads": 1,
}

#: Depth is the package's own default, as in ``catboost``.
XGBOOST_DEFAULTS: dict[str, Any] = {
    "trees": 10_000,
    "learning_rate": 0.05,
    "max_depth": 6,
    "early_stopping_rounds": 100,
    "validation_fraction": 0.1,
    "threads": 1,
}

CATBOOST_DEFAULTS: dict[str, Any] = {
    "trees": 10_000,
    "learning_rate": 0.05,
    "depth": 6,
    "early_stopping_rounds": 100,
    "validation_fraction": 0.1,
    "threads": 1,
}

NGBOOST_DEFAULTS: dict[str, Any] = {
    "trees": 2000,
    "learning_rate": 0.04,
    "max_depth": 3,
    "early_stopping_rounds": 50,
    "validation_fraction": 0.1,
}


def lightgbm(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """LightGBM on squared error, stopped early; the noise is the error on the validation rows."""
    used = merge_settings("lightgbm", LIGHTGBM_DEFAULTS, settings)
    package = require("lightgbm", "lightgbm")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    parameters = {
        "objective": "regression",
        "learning_rate": used["learning_rate"],
        "num_leaves": used["num_leaves"],
        "min_data_in_leaf": used["min_child_samples"],
        "num_threads": used["threads"],
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    rows = package.Dataset(scaled.inputs[kept], scaled.targets[kept])
    model = package.train(
        parameters,
        rows,
        num_boost_round=used["trees"],
        valid_sets=[package.Dataset(scaled.inputs[held_out], scaled.targets[held_out], reference=rows)],
        callbacks=[package.early_stopping(used["early_stopping_rounds"], verbose=False)],
    )
    noise = constant_noise(scaled.targets[held_out] - model.predict(scaled.inputs[held_out]))
    elapsed = stopwatch.elapsed
    mean = model.predict(scaled.test_inputs)
    return scaled.outcome(mean, noise, elapsed, _record(used, int(model.best_iteration), model.current_iteration()))


def xgboost(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """XGBoost on squared error, stopped early; the noise is the error on the validation rows."""
    used = merge_settings("xgboost", XGBOOST_DEFAULTS, settings)
    package = require("xgboost", "xgboost")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    model = package.XGBRegressor(
        n_estimators=used["trees"],
        learning_rate=used["learning_rate"],
        max_depth=used["max_depth"],
        tree_method="hist",
        early_stopping_rounds=used["early_stopping_rounds"],
        n_jobs=used["threads"],
        random_state=seed,
    )
    validation = scaled.inputs[held_out], scaled.targets[held_out]
    model.fit(scaled.inputs[kept], scaled.targets[kept], eval_set=[validation], verbose=False)
    noise = constant_noise(validation[1] - model.predict(validation[0]))
    elapsed = stopwatch.elapsed
    grown = model.get_booster().num_boosted_rounds()
    mean = model.predict(scaled.test_inputs)  # with the trees of the best iteration
    return scaled.outcome(mean, noise, elapsed, _record(used, int(model.best_iteration) + 1, grown))


def catboost(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """CatBoost on squared error, stopped early; the noise is the error on the validation rows."""
    used = merge_settings("catboost", CATBOOST_DEFAULTS, settings)
    package = require("catboost", "catboost")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    model = package.CatBoostRegressor(
        iterations=used["trees"],
        learning_rate=used["learning_rate"],
        depth=used["depth"],
        thread_count=used["threads"],
        random_seed=seed,
        verbose=False,
        allow_writing_files=False,
    )
    validation = scaled.inputs[held_out], scaled.targets[held_out]
    model.fit(
        scaled.inputs[kept],
        scaled.targets[kept],
        eval_set=validation,
        early_stopping_rounds=used["early_stopping_rounds"],
    )
    noise = constant_noise(validation[1] - model.predict(validation[0]))
    elapsed = stopwatch.elapsed
    grown = len(model.evals_result_["learn"]["RMSE"])
    mean = model.predict(scaled.test_inputs)  # the trees after the best iteration were removed
    return scaled.outcome(mean, noise, elapsed, _record(used, int(model.tree_count_), grown))


def ngboost(split: DatasetSplit, *, seed: int, settings: Mapping[str, Any]) -> Outcome:
    """Natural gradient boosting of a normal distribution, as many trees as validation rows ask for."""
    used = merge_settings("ngboost", NGBOOST_DEFAULTS, settings)
    package = require("ngboost", "ngboost")
    scaled = ScaledSplit.of(split)
    stopwatch = Stopwatch()
    kept, held_out = hold_out(len(scaled.targets), used["validation_fraction"], seed)
    model = package.NGBRegressor(
        # The trees break ties at random, from the global generator unless they have a seed.
        Base=DecisionTreeRegressor(max_depth=used["max_depth"], random_state=seed),
        n_estimators=used["trees"],
        learning_rate=used["learning_rate"],
        random_state=seed,
        verbose=False,
    )
    model.fit(
        scaled.inputs[kept],
        scaled.targets[kept],
        X_val=scaled.inputs[held_out],
        Y_val=scaled.targets[held_out],
        early_stopping_rounds=used["early_stopping_rounds"],
    )
    elapsed = stopwatch.elapsed
    trees = int(model.best_val_loss_itr) + 1
    prediction = model.pred_dist(scaled.test_inputs, max_iter=trees)
    std = np.maximum(prediction.scale, SMALLEST_NOISE)
    return scaled.outcome(prediction.loc, std, elapsed, _record(used, trees, len(model.scalings)))


def _record(used: Mapping[str, Any], trees: int, grown: int) -> dict[str, Any]:
    """The trees that count; and whether the cap, not the validation rows, ended the run."""
    return {"settings": used, "trees": trees, "shortened": grown >= used["trees"]}
