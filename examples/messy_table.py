"""A table with text, dates and gaps: fit, judge, save, and predict for a table with its columns in another order.

``python examples/messy_table.py`` (``--small`` for a quick look). The command line does the same:

    finitegp fit examples/tables/flats.csv --target rent -o rent.finitegp
    finitegp predict rent.finitegp examples/tables/flats-new.csv -o predicted.csv
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from finitegp import TableReader, TableRegressor

TABLES = Path(__file__).parent / "tables"


def main(small: bool = False) -> None:
    """Run the example."""
    model = TableRegressor(effort="low" if small else "medium", random_state=0)
    model.fit(TABLES / "flats.csv", target="rent")
    for line in model.columns_:
        print(f"{line.column:9s} {line.kind:11s} {line.encoding:11s} {line.note}")
    for note in model.notes_:
        print(note)
    with tempfile.TemporaryDirectory() as directory:
        model.save(Path(directory) / "rent.finitegp")
        model = TableRegressor.load(Path(directory) / "rent.finitegp")

    # Columns are found by name, in any order. A district that the fit did not see is allowed, and told.
    new = TableReader(TABLES / "flats-new.csv").read()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mean, std = model.predict(new.select(sorted(new.column_names)), return_std=True)
    print()
    for warning in told:
        print(warning.message)

    rent = np.array(new["rent"], dtype=float)
    print(f"\n{'id':8s} {'district':11s} {'area':>6s} {'rent':>5s}   predicted")
    for row, flat in enumerate(new.slice(0, 5).to_pylist()):
        area = "-" if flat["area"] is None else f"{flat['area']:.1f}"
        print(f"{flat['id']} {flat['district']:11s} {area:>6s} {rent[row]:5.0f}   {mean[row]:.0f} ± {std[row]:.0f}")

    known = set(TableReader(TABLES / "flats.csv").read()["district"].to_pylist())
    unseen = np.array([district not in known for district in new["district"].to_pylist()])
    error = np.abs(mean - rent)
    print(f"\nmedian error {np.median(error[~unseen]):.0f}, median of the predicted ± {np.median(std[~unseen]):.0f}")
    print(f"in the district without training rows: {np.median(error[unseen]):.0f}, ± {np.median(std[unseen]):.0f}")
    scores = model.evaluate(new)
    print(f"RMSE {scores.rmse:.0f}, R2 {scores.r_squared:.2f}, {100 * scores.coverage[0.9]:.0f} % in 90 % intervals")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
