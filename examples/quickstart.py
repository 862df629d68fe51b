"""Fit, predict with error bars, check them on rows that were not seen, save and load.

``python examples/quickstart.py`` (``--small`` for a quick look). The table has 442 patients, ten measurements of
each, and how their diabetes progressed within a year; it comes with scikit-learn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from finitegp import GPRegressor


def main(small: bool = False) -> None:
    """Run the example."""
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

    gp = GPRegressor(effort="low" if small else "medium", random_state=0).fit(X_train, y_train)
    mean, std = gp.predict(X_test, return_std=True)
    lower, upper = gp.predict_interval(X_test, coverage=0.9)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "diabetes.finitegp"
        gp.save(path)
        again = GPRegressor.load(path)
        print(f"model file: {path.stat().st_size / 1e6:.1f} MB, with the inputs of this small table in it")
        print(f"loaded model predicts the same: {np.allclose(again.predict(X_test), mean, rtol=1e-9)}")

    print("\npatient  observed  predicted   90 % interval")
    for row in range(5):
        interval = f"{lower[row]:.0f} to {upper[row]:.0f}"
        print(f"{y_test.index[row]:7d}  {y_test.iloc[row]:8.0f}  {mean[row]:5.0f} ± {std[row]:.0f}   {interval}")

    def rmse(predicted: np.ndarray) -> float:
        return float(np.sqrt(np.mean((predicted - y_test) ** 2)))

    linear = LinearRegression().fit(X_train, y_train).predict(X_test)
    inside = np.mean((y_test >= lower) & (y_test <= upper))
    print(f"\n{len(y_test)} patients that the fit did not see:")
    print(f"RMSE {rmse(mean):.1f} (a linear regression: {rmse(linear):.1f})")
    print(f"90 % intervals hold {100 * inside:.0f} % of the observations")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
