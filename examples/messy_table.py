"""A table with text, dates and gaps: encode it, fit, save, and predict for a table with its columns in another order.

``python examples/messy_table.py`` (``--small`` for a quick look). The command line does the same:

    finitegp fit examples/tables/flats.csv --target rent --missing impute -o rent.finitegp
    finitegp predict rent.finitegp examples/tables/flats-new.csv -o predicted.csv
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from finitegp import DataError, GPRegressor, TableEncoder, TableModel, TableReader
from finitegp.tables.encoder import TransformReport
from finitegp.tables.targets import target_values

TABLES = Path(__file__).parent / "tables"


def main(small: bool = False) -> None:
    """Run the example."""
    table = TableReader(TABLES / "flats.csv")
    try:
        TableEncoder.fit(table, exclude="rent")
    except DataError as error:
        print(f"Without a word on gaps the table is refused:\n  {error}\n")

    encoder = TableEncoder.fit(table, exclude="rent", missing="impute")
    for line in encoder.summary():
        print(f"{line.column:9s} {line.kind:11s} {line.encoding:11s} {line.note}")

    regressor = GPRegressor(effort="low" if small else "medium", noise="input", random_state=0)
    regressor.fit(encoder.transform(table), target_values(table, "rent"))
    model = TableModel(regressor, encoder, target="rent")
    with tempfile.TemporaryDirectory() as directory:
        model.save(Path(directory) / "rent.finitegp")
        model = TableModel.load(Path(directory) / "rent.finitegp")

    # Columns are found by name, in any order. A district that the fit did not see is allowed, and told.
    new = TableReader(TABLES / "flats-new.csv")
    shuffled = new.read().select(sorted(new.column_names))
    report = TransformReport()
    chunks = list(model.predict(shuffled, report))
    mean, std = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("mean", "std"))
    print()
    for sentence in report.lines():
        print(sentence)

    rent = target_values(new, "rent")
    print(f"\n{'id':8s} {'district':11s} {'area':>6s} {'rent':>5s}   predicted")
    for row, flat in enumerate(new.read().slice(0, 5).to_pylist()):
        area = "-" if flat["area"] is None else f"{flat['area']:.1f}"
        print(f"{flat['id']} {flat['district']:11s} {area:>6s} {rent[row]:5.0f}   {mean[row]:.0f} ± {std[row]:.0f}")

    unseen = ~np.isin(_texts(new.read()["district"]), _texts(table.read()["district"]))
    error = np.abs(mean - rent)
    print(f"\nmedian error {np.median(error[~unseen]):.0f}, median of the predicted ± {np.median(std[~unseen]):.0f}")
    print(f"in the district without training rows: {np.median(error[unseen]):.0f}, ± {np.median(std[unseen]):.0f}")


def _texts(column: pa.ChunkedArray) -> list[str]:
    return [str(value) for value in column.to_pylist()]


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
