"""Tables with text, gaps and dates: `TableRegressor` beside LightGBM, CatBoost and a linear model.

``python -m benchmarks.tables DIRECTORY`` reads Parquet files (booleans ``test0`` to ``test4`` mark the test rows of
five splits) and appends one JSON line for each table, split and method to ``--output``; lines that are there are not
measured again. ``--page`` writes ``docs/results-tables.md`` from them instead. `TableRegressor` gets no option but the
target. LightGBM and CatBoost have the settings of ``paper/peers/boosting.py``, with native categories and gaps; the
linear model has one-hot columns. What is plain has one noise for all rows, the error on its validation rows. ``NAME+t``
is the treatment of ``paper/peers/posthoc.py``: the mean of five fits without a fold each, a spread for each row and
Student's t from left-out residuals. Nobody gets a transformed target but who chooses it without being told, which is
`TableRegressor`.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from finitegp import TableRegressor
from finitegp.lite.target_scale import COVERAGES
from finitegp.tables.scored_rows import SCORED_COVERAGES, ScoredRows
from paper.environment import environment
from paper.peers.boosting import CATBOOST_DEFAULTS, LIGHTGBM_DEFAULTS
from paper.peers.posthoc import cross_fit_log_variance, fit_student, make_folds

Array = npt.NDArray[np.float64]
#: Fits training rows and predicts others: mean and standard deviation.
Peer = Callable[[pd.DataFrame, Array, pd.DataFrame, int], tuple[Array, Array]]
PAGE = Path(__file__).parents[1] / "docs" / "results-tables.md"
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
OURS = "finitegp"


def main() -> None:
    """Measure what is not yet measured, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/tables.jsonl"))
    parser.add_argument("--tables", nargs="*", default=list(TARGETS))
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(5)))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--effort", default="medium")
    parser.add_argument("--most-rows", type=int, help="Train on at most this many rows, to find crashes.")
    parser.add_argument("--page", action="store_true", help="Write the page from the lines.")
    arguments = parser.parse_args()
    lines = (
        [json.loads(line) for line in arguments.output.read_text().splitlines()] if arguments.output.exists() else []
    )
    if arguments.page:
        PAGE.write_text("\n".join(page(lines)) + "\n")
        return
    if arguments.directory is None:
        parser.error("give the directory of the tables, or --page")
    done = {(line["table"], line["split"], line["method"], line["effort"], line["most_rows"]) for line in lines}
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
                effort = arguments.effort if method == OURS else ""
                if (table, split, method, effort, arguments.most_rows) in done:
                    continue
                line = {"table": table, "split": split, "method": method, "effort": effort}
                line |= {"rows": len(training), "most_rows": arguments.most_rows}
                line |= measure(method, training, test, TARGETS[table], effort, split) | environment()
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
            found = _score(method, training, test, target, effort, seed)
    except Exception as error:  # a crash is a result
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    scores = found.scores().to_dict()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu, "scores": scores}


def _score(method: str, training: pd.DataFrame, test: pd.DataFrame, target: str, effort: str, seed: int) -> ScoredRows:
    if method == OURS:
        return TableRegressor(effort=effort, random_state=seed).fit(training, target=target).predict_scored(test)
    inputs, new = _dates(training.drop(columns=target)), _dates(test.drop(columns=target))
    targets, truth = (rows[target].to_numpy(dtype=float) for rows in (training, test))
    peer = PEERS[method.removesuffix("+t")]
    if not method.endswith("+t"):
        return _student(*peer(inputs, targets, new, seed), None, truth)
    folds = make_folds(len(targets), _FOLDS, seed)
    left_out, parts = np.empty((2, len(targets))), []
    for number, fold in enumerate(folds):
        kept = np.delete(np.arange(len(targets)), fold)
        unseen = pd.concat([inputs.iloc[fold], new])
        mean, std = peer(inputs.iloc[kept], targets[kept], unseen, seed * _FOLDS + number)
        left_out[:, fold] = mean[: len(fold)], std[: len(fold)]
        parts.append((mean[len(fold) :], std[len(fold) :]))
    mean = np.mean([part for part, _ in parts], axis=0)
    std = np.sqrt(np.mean([part**2 for _, part in parts], axis=0))
    errors = (targets - left_out[0]) / left_out[1]
    columns, new_columns = (
        np.column_stack([_codes(rows, inputs), own, np.log(spread)])
        for rows, own, spread in ((inputs, *left_out), (new, mean, std))
    )
    logs, new_logs = cross_fit_log_variance(columns, errors, folds, new_columns, seed=seed)
    constant, learned = fit_student(errors), fit_student(errors, logs)
    chosen, factor = (learned, np.exp(0.5 * new_logs)) if learned.nlpd < constant.nlpd else (constant, 1.0)
    return _student(mean, std * factor * chosen.deviation, chosen.shape.degrees_of_freedom, truth)


def _student(mean: Array, std: Array, degrees: float | None, targets: Array) -> ScoredRows:
    """Student's t around the mean with this standard deviation; a Gaussian without degrees of freedom."""
    levels = np.array([*COVERAGES, *SCORED_COVERAGES])
    scale = std if degrees is None else std * np.sqrt((degrees - 2.0) / degrees)
    shape = stats.norm() if degrees is None else stats.t(degrees)
    reach = scale[:, None] * shape.ppf(0.5 + levels / 2)
    density = shape.logpdf((targets - mean) / scale) - np.log(scale)
    return ScoredRows(mean, std, density, mean[:, None] - reach, mean[:, None] + reach, targets)


def _validation(rows: int, fraction: float, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    order = np.random.default_rng(seed).permutation(rows)
    count = max(1, int(fraction * rows))
    return order[count:], order[:count]


def _lightgbm(inputs: pd.DataFrame, targets: Array, new: pd.DataFrame, seed: int) -> tuple[Array, Array]:
    import lightgbm

    used = LIGHTGBM_DEFAULTS
    inputs, new = (_categories(rows, inputs) for rows in (inputs, new))
    kept, held_out = _validation(len(targets), used["validation_fraction"], seed)
    model = lightgbm.LGBMRegressor(
        n_estimators=used["trees"],
        learning_rate=used["learning_rate"],
        num_leaves=used["num_leaves"],
        min_child_samples=used["min_child_samples"],
        n_jobs=used["threads"],
        random_state=seed,
        verbose=-1,
    ).fit(
        inputs.iloc[kept],
        targets[kept],
        eval_set=[(inputs.iloc[held_out], targets[held_out])],
        callbacks=[lightgbm.early_stopping(used["early_stopping_rounds"], verbose=False)],
    )
    return _with_noise(model, inputs.iloc[held_out], targets[held_out], new)


def _catboost(inputs: pd.DataFrame, targets: Array, new: pd.DataFrame, seed: int) -> tuple[Array, Array]:
    import catboost

    used = CATBOOST_DEFAULTS
    texts = [name for name in inputs if not pd.api.types.is_numeric_dtype(inputs[name])]
    inputs, new = (
        _replaced(rows, {name: rows[name].astype(object).where(rows[name].notna(), "missing") for name in texts})
        for rows in (inputs, new)
    )
    kept, held_out = _validation(len(targets), used["validation_fraction"], seed)
    model = catboost.CatBoostRegressor(
        iterations=used["trees"],
        learning_rate=used["learning_rate"],
        depth=used["depth"],
        early_stopping_rounds=used["early_stopping_rounds"],
        thread_count=used["threads"],
        random_seed=seed,
        cat_features=texts,
        verbose=False,
        allow_writing_files=False,
    ).fit(inputs.iloc[kept], targets[kept], eval_set=(inputs.iloc[held_out], targets[held_out]))
    return _with_noise(model, inputs.iloc[held_out], targets[held_out], new)


def _with_noise(model: Any, held_out: pd.DataFrame, targets: Array, new: pd.DataFrame) -> tuple[Array, Array]:
    noise = max(float(np.sqrt(np.mean((model.predict(held_out) - targets) ** 2))), 1e-6 * float(targets.std() + 1e-300))
    mean = np.asarray(model.predict(new), dtype=np.float64)
    return mean, np.full(len(mean), noise)


def _linear(inputs: pd.DataFrame, targets: Array, new: pd.DataFrame, seed: int) -> tuple[Array, Array]:
    from sklearn.linear_model import BayesianRidge
    from sklearn.preprocessing import StandardScaler

    columns, new_columns = _one_hot(inputs, new)
    scaler = StandardScaler().fit(columns)
    middle, width = targets.mean(), targets.std()
    model = BayesianRidge().fit(scaler.transform(columns), (targets - middle) / width)
    mean, std = model.predict(scaler.transform(new_columns), return_std=True)
    return middle + width * mean, width * std


PEERS: dict[str, Peer] = {"lightgbm": _lightgbm, "catboost": _catboost, "linear": _linear}
METHODS = [OURS, "lightgbm", "lightgbm+t", "catboost", "catboost+t", "linear"]


def _dates(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as numbers that trees can use."""
    frame = frame.copy()
    for name in _DATES:
        if name in frame:
            day = pd.to_datetime(frame.pop(name))
            frame[f"{name} days"] = (day - pd.Timestamp("1970-01-01")).dt.days.astype(float)
            frame[f"{name} day of year"], frame[f"{name} weekday"] = day.dt.dayofyear, day.dt.dayofweek
    return frame


def _replaced(rows: pd.DataFrame, columns: dict[str, pd.Series]) -> pd.DataFrame:
    """The rows with other values in some columns, whatever these are called: ``assign`` has no column named self."""
    rows = rows.copy()
    for name, values in columns.items():
        rows[name] = values
    return rows


def _categories(rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Text as categories of the rows that are known; others count as missing."""
    rows = rows.copy()
    for name in [name for name in rows if not pd.api.types.is_numeric_dtype(rows[name])]:
        rows[name] = rows[name].astype(pd.CategoricalDtype(sorted(known[name].dropna().unique())))
    return rows


def _codes(rows: pd.DataFrame, known: pd.DataFrame) -> Array:
    """Numbers, and numbers of categories; NaN where missing."""
    coded = _categories(rows, known)
    texts = [name for name in coded if isinstance(coded[name].dtype, pd.CategoricalDtype)]
    found = {name: coded[name].cat.codes.where(coded[name].notna(), np.nan) for name in texts}
    result: Array = _replaced(coded, found).to_numpy(dtype=np.float64, na_value=np.nan)
    return result


def _one_hot(training: pd.DataFrame, test: pd.DataFrame) -> tuple[Array, Array]:
    numbers = [name for name in training if pd.api.types.is_numeric_dtype(training[name])]
    texts = [name for name in training if name not in numbers]
    middle = training[numbers].median()
    parts = []
    for frame in (training, test):
        gaps = frame[numbers].isna().astype(float).add_suffix(" missing")
        words = [pd.get_dummies(frame[texts])] if texts else []
        parts.append(pd.concat([frame[numbers].fillna(middle), gaps, *words], axis=1))
    first, second = (part.reindex(columns=parts[0].columns, fill_value=0.0).to_numpy(dtype=float) for part in parts)
    return first, second


def page(lines: Iterable[dict[str, Any]]) -> list[str]:
    """The page: a table for each measure, with differences to ours and their standard errors over the splits."""
    cells: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    failed, commits, efforts = [], set(), set()
    for line in lines:
        if line["most_rows"] is not None:
            continue
        if "error" in line:
            failed.append(f"{line['method']} on {line['table']}, split {line['split']}: {line['error']}")
            continue
        cells.setdefault((line["table"], line["method"]), {})[line["split"]] = line
        commits.add(str(line.get("commit", "unknown"))[:12])
        efforts |= {line["effort"]} - {""}
    tables = [table for table in TARGETS if (table, OURS) in cells]
    methods = [method for method in METHODS if any((table, method) in cells for table in tables)]
    text = [
        "# Tables with text, gaps and dates",
        "",
        "Written by `python -m benchmarks.tables --page` from `benchmarks/results/tables.jsonl`: five random splits of "
        f"each table, `TableRegressor` with the target alone (effort {', '.join(sorted(efforts)) or 'unknown'}; "
        f"commit {', '.join(sorted(commits)) or 'unknown'}). The module says how the peers are set. After ± is the "
        "standard error of the paired difference to finitegp over the splits that both have; bold is the lowest mean.",
        "",
    ]
    text += [*summary(cells, tables, methods), ""]
    for title, value in MEASURES.items():
        text += [f"## {title}", "", f"| table | rows | {' | '.join(methods)} |", f"|---|--:|{'--:|' * len(methods)}"]
        for table in tables:
            ours = {split: value(line) for split, line in cells[table, OURS].items()}
            means, shown = {}, {}
            for method in methods:
                found = {split: value(line) for split, line in cells.get((table, method), {}).items()}
                both = [split for split in found if split in ours]
                if not both:
                    shown[method] = "–"
                    continue
                differences = np.array([found[split] - ours[split] for split in both])
                means[method] = float(np.mean([found[split] for split in both]))
                error = (
                    f" ± {differences.std(ddof=1) / np.sqrt(len(both)):.2g}" if len(both) > 1 and method != OURS else ""
                )
                shown[method] = f"{means[method]:.4g}{error}"
            if title in LOWER_IS_BETTER:
                best = min(means, key=lambda method: means[method])
                shown[best] = f"**{shown[best]}**"
            rows = next(iter(cells[table, OURS].values()))["rows"]
            text.append(f"| {table} | {rows} | {' | '.join(shown[method] for method in methods)} |")
        text.append("")
    if failed:
        text += ["## What failed", "", *(f"- {each}" for each in failed), ""]
    return text


def summary(
    cells: dict[tuple[str, str], dict[int, dict[str, Any]]], tables: list[str], methods: list[str]
) -> list[str]:
    """How often each method is best, over the splits that all methods have."""
    means: dict[str, Array] = {}
    for title, value in MEASURES.items():
        rows = []
        for table in tables:
            both = set.intersection(*(set(cells.get((table, method), {})) for method in methods))
            if both:
                rows.append([np.mean([value(cells[table, method][split]) for split in both]) for method in methods])
        means[title] = np.array(rows).reshape(-1, len(methods))
    count = len(means["RMSE"])
    lines = [
        f"| of {count} tables | " + " | ".join(methods) + " |",
        "|---|" + "--:|" * len(methods),
    ]
    for title in LOWER_IS_BETTER:
        lowest = means[title] == means[title].min(axis=1, keepdims=True)
        lines.append(f"| lowest {title} | " + " | ".join(str(each) for each in lowest.sum(axis=0)) + " |")
    near = means["RMSE"] <= 1.03 * means["RMSE"].min(axis=1, keepdims=True)
    lines.append("| RMSE within 3 % of the best | " + " | ".join(str(each) for each in near.sum(axis=0)) + " |")
    shares = means["Share in 90 % intervals, %"]
    held = (shares >= 87.0) & (shares <= 93.0)
    lines.append("| 90 % intervals hold 87 to 93 % | " + " | ".join(str(each) for each in held.sum(axis=0)) + " |")
    return lines


MEASURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "RMSE": lambda line: line["scores"]["rmse"],
    "NLPD": lambda line: line["scores"]["nlpd"],
    "CRPS": lambda line: line["scores"]["crps"],
    "Share in 90 % intervals, %": lambda line: 100.0 * line["scores"]["coverage"]["0.9"],
}
LOWER_IS_BETTER = ("RMSE", "NLPD", "CRPS")


if __name__ == "__main__":
    main()
