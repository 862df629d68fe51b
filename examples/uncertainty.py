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

    # Each row judged by all others. In closed form: no model is fitted again.
    mean, std = gp.leave_one_out(X, y)
    surprise = np.abs(y - mean) / std
    print("training rows that the others did not expect, in standard deviations:")
    print("  " + ", ".join(f"row {row}: {surprise[row]:.1f}" for row in np.argsort(-surprise)[:5]))
    print(f"  rows that were made wrong: {WRONG_ROWS}")

    # forget() would take them out of the posterior, but the noise was learned from them too: fit again without them.
    kept = surprise < 8
    _, noise_before = parts_at(gp, -1.5)
    X, y = X[kept], y[kept]
    gp.fit(X, y)
    _, noise_after = parts_at(gp, -1.5)
    print(f"without the {np.sum(~kept)} beyond 8, noise at x = -1.5 goes from {noise_before:.2f} to {noise_after:.2f}")

    print("\nwhere the standard deviation of a prediction comes from (squares add)")
    places = {"left, many rows": -1.5, "right, many rows, more noise": 1.5, "gap, no rows": 0.0, "far outside": 8.0}
    for name, place in places.items():
        epistemic, noise = parts_at(gp, place)
        print(f"  x = {place:4.1f} ({name}): more rows would remove {epistemic:.2f}, noise {noise:.2f}")

    print(f"\nshare of {len(y_test)} new rows inside of intervals")
    print("  promised  Gaussian  conformal")
    for coverage in (0.5, 0.8, 0.9, 0.95):
        shares = []
        for method in ("gaussian", "conformal"):
            lower, upper = gp.predict_interval(X_test, coverage, method=method)
            shares.append(np.mean((y_test >= lower) & (y_test <= upper)))
        print(f"  {100 * coverage:6.0f} %  {100 * shares[0]:6.1f} %  {100 * shares[1]:7.1f} %")

    mean, std = gp.leave_one_out(X, y)
    log_density = -0.5 * (((y - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
    marginal = gp.log_marginal_likelihood() / len(y)
    print(f"\nlog density per row: marginal likelihood {marginal:.3f}, leave-one-out {log_density.mean():.3f}")


def parts_at(gp: GPRegressor, place: float) -> tuple[float, float]:
    """The standard deviations that more rows would remove, and that of the noise."""
    prediction = gp.fits_[0].predict([[place]])  # one fit per target column
    return float(prediction.epistemic_variance) ** 0.5, float(prediction.noise_variance) ** 0.5


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
