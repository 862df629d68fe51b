"""Rows that come and go: exact updates, forgetting and merging, at a cost that does not depend on the rows before.

``python examples/streaming_update.py`` (``--small`` for a quick look). A model of a pump's power is fitted once; later
readings of two sites arrive day by day, one day turns out to be wrong, and the two sites' models become one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from finitegp import GPRegressor


def make_readings(rows: int, seed: int, *, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Flow, pressure and temperature, and the power in kW."""
    generator = np.random.default_rng(seed)
    X = generator.uniform([10, 1, 5], [60, 6, 35], size=(rows, 3))
    power = 0.028 * X[:, 0] * X[:, 1] / (0.5 + 0.2 * np.sin(X[:, 0] / 12)) + 0.02 * X[:, 2]
    return X, power + offset + 0.3 * generator.normal(size=rows)


def main(small: bool = False) -> None:
    """Run the example."""
    first = make_readings(100 if small else 600, seed=0)
    check, truth = make_readings(500, seed=1)
    gp = GPRegressor(effort="low" if small else "medium", random_state=0).fit(*first)

    def rmse(regressor: GPRegressor) -> float:
        return float(np.sqrt(np.mean((regressor.predict(check) - truth) ** 2)))

    print(f"first fit, {len(first[1])} rows: RMSE {rmse(gp):.3f}")

    # Each site goes on from a copy of the file. It holds row sums, not rows.
    with tempfile.TemporaryDirectory() as directory:
        gp.save(Path(directory) / "pump.finitegp")
        north, south = (GPRegressor.load(Path(directory) / "pump.finitegp") for _ in range(2))
    days = [make_readings(200, seed=10 + day) for day in range(6)]
    for north_day, south_day in zip(days[:3], days[3:], strict=True):
        north.partial_fit(*north_day)
        south.partial_fit(*south_day)
    print(f"north, three days later: RMSE {rmse(north):.3f}")

    # A day with a sensor that was off by 5 kW: taken in, noticed, taken out again.
    before = north.predict(check)
    wrong = make_readings(200, seed=99, offset=5.0)
    north.partial_fit(*wrong)
    print(f"north with a wrong day:  RMSE {rmse(north):.3f}")
    north.forget(*wrong)
    difference = np.max(np.abs(north.predict(check) - before))
    print(f"north without it:        RMSE {rmse(north):.3f}, predictions within {difference:.0e} of those before")

    # One model of both sites. The rows of the first fit are in both, so one of them forgets its copy.
    south.forget(*first)
    together = north.merge(south)
    at_once = gp.partial_fit(*(np.concatenate(parts) for parts in zip(*days, strict=True)))
    difference = np.max(np.abs(together.predict(check) - at_once.predict(check)))
    print(
        f"north and south merged:  RMSE {rmse(together):.3f}, within {difference:.0e} of one that saw all rows at once"
    )


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
