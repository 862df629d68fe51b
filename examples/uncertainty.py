"""What the error bars say: two kinds of uncertainty, coverage, intervals for tails that are not Gaussian, outliers.

``python examples/uncertainty.py`` (``--small`` for a quick look). No training row lies between -0.5 and 0.5; the
noise is larger on the right and has heavier tails than a Gaussian; three training rows are plainly wrong.
"""

from __future__ import annotations

import sys

import numpy as np

from finitegp import GPRegressor

WRONG_ROWS = [5, 17, 40]


def make_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs ``(rows, 1)`` with a gap in the middle, and targets."""
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(0.5, 3, size=rows) * generator.choice([-1, 1], size=rows)
    noise = (0.1 + 0.1 * (inputs > 0)) * generator.standard_t(4, size=rows)
    return inputs[:, None], np.sin(2 * inputs) + noise


def main(small: bool = False) -> None:
    """Run the example."""
    X, y = make_rows(200 if small else 800, seed=0)
    y[WRONG_ROWS] += 4.0
    X_test, y_test = make_rows(4000, seed=1)
    gp = GPRegressor(effort="low" if small else "medium", noise="input", random_state=0).fit(X, y)

    print("standard deviation of a prediction, and where it comes from")
    places = {"left, many rows": -1.5, "right, many rows, more noise": 1.5, "gap, no rows": 0.0, "far outside": 8.0}
    prediction = gp.fits_[0].predict(np.array([[place] for place in places.values()]))
    for row, (name, place) in enumerate(places.items()):
        known, noise = (float(part[row]) ** 0.5 for part in (prediction.epistemic_variance, prediction.noise_variance))
        print(
            f"  x = {place:4.1f} ({name}): {float(prediction.std[row]):.2f}"
            f" = more rows would remove {known:.2f}, noise {noise:.2f} (squares add)"
        )

    print("\nshare of 4000 new rows inside of intervals")
    print("  promised  Gaussian  conformal")
    for coverage in (0.5, 0.8, 0.9, 0.95):
        shares = []
        for method in ("gaussian", "conformal"):
            lower, upper = gp.predict_interval(X_test, coverage, method=method)
            shares.append(np.mean((y_test >= lower) & (y_test <= upper)))
        print(f"  {100 * coverage:6.0f} %  {100 * shares[0]:6.1f} %  {100 * shares[1]:7.1f} %")

    mean, std = gp.leave_one_out(X, y)  # closed form: no model is fitted again
    surprise = np.abs(y - mean) / std
    most = np.argsort(-surprise)[:5]
    print("\ntraining rows that the other rows did not expect, in standard deviations:")
    print("  " + ", ".join(f"row {row}: {surprise[row]:.1f}" for row in most))
    print(f"  rows that were made wrong: {WRONG_ROWS}")

    log_density = -0.5 * (surprise**2 + np.log(2 * np.pi * std**2))
    marginal = gp.log_marginal_likelihood() / len(y)
    print(f"\nlog density per row: marginal likelihood {marginal:.3f}, leave-one-out {log_density.mean():.3f}")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
