"""Whether error bars follow errors when rows come after the fit: first rows, updated, and a fit to all rows.

    python -m benchmarks.updates --seeds 4 --first 60 --rows 500

Prints for each made function what 50 % and 90 % intervals hold of other rows, RMSE, mean squared standardised error and
NLPD, the latter in units of their standard deviation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from finitegp import GPRegressor

Array = np.ndarray
TEST_ROWS = 400


def _smooth(random: np.random.Generator, rows: int) -> tuple[Array, Array]:
    x = random.normal(size=(rows, 4))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * random.normal(size=rows)


def _steps(random: np.random.Generator, rows: int) -> tuple[Array, Array]:
    x = random.uniform(size=(rows, 4))
    return x, 3.0 * ((x[:, 0] > 0.4) & (x[:, 1] < 0.6)) + 2.0 * (x[:, 2] > 0.7) + 0.2 * random.normal(size=rows)


def _line(random: np.random.Generator, rows: int) -> tuple[Array, Array]:
    x = random.normal(size=(rows, 6))
    return x, x @ [1, 1, 1, -1, 0, 0] + 0.5 * random.normal(size=rows)


def _noise_of_rows(random: np.random.Generator, rows: int) -> tuple[Array, Array]:
    x = random.uniform(size=(rows, 3))
    return x, np.sin(5 * x[:, 0]) + (0.1 + x[:, 1]) * random.normal(size=rows)


def _wave(random: np.random.Generator, rows: int) -> tuple[Array, Array]:
    x = random.uniform(size=(rows, 1))
    return x, np.sin(25 * x[:, 0]) + 0.2 * random.normal(size=rows)


FUNCTIONS: dict[str, Callable[[np.random.Generator, int], tuple[Array, Array]]] = {
    "smooth": _smooth,
    "steps": _steps,
    "line": _line,
    "noise of rows": _noise_of_rows,
    "wave": _wave,
}


def scores(gp: GPRegressor, inputs: Array, targets: Array) -> list[float]:
    """Held by 50 % and by 90 % intervals, RMSE, z^2, NLPD."""
    lower, upper = gp.predict_interval(inputs, coverage=[0.5, 0.9])
    mean, std = gp.predict(inputs, return_std=True)
    held = ((lower <= targets[:, None]) & (targets[:, None] <= upper)).mean(axis=0)
    errors, unit = targets - mean, targets.std()
    rmse, nlpd = np.sqrt(np.mean(errors**2)) / unit, -np.mean(gp.log_density(inputs, targets)) - np.log(unit)
    return [*held, rmse, np.mean((errors / std) ** 2), nlpd]


def measure(name: str, seed: int, first: int, rows: int, effort: str) -> list[list[float]]:
    """The scores of the first rows, of these updated with the others, and of a fit to all."""
    inputs, targets = FUNCTIONS[name](np.random.default_rng([seed, first, 3]), rows + TEST_ROWS)
    test = inputs[rows:], targets[rows:]
    gp = GPRegressor(effort=effort, random_state=seed).fit(inputs[:first], targets[:first])
    found = [scores(gp, *test)]
    found.append(scores(gp.partial_fit(inputs[first:rows], targets[first:rows]), *test))
    whole = GPRegressor(effort=effort, random_state=seed).fit(inputs[:rows], targets[:rows])
    return [*found, scores(whole, *test)]


def main() -> None:
    """Read the arguments, print a line for each function and moment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=60)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--effort", default="low")
    given = parser.parse_args()
    print(f"{'':30}   50 %   90 %   rmse    z^2   nlpd")
    for name in FUNCTIONS:
        measured = [measure(name, seed, given.first, given.rows, given.effort) for seed in range(given.seeds)]
        for moment, row in zip(("first rows", "updated", "all rows"), np.mean(measured, axis=0), strict=True):
            print(f"{name:16}{moment:14}", *(f"{value:6.3f}" for value in row), flush=True)


if __name__ == "__main__":
    main()
