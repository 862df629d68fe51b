"""The bundled diamonds table, encoded by hand: what the encoder is compared with."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyarrow import csv

NUMERIC_COLUMNS = ("carat", "depth", "table", "x", "y", "z")
# From worst to best.
CATEGORIES = {
    "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
    "color": ("J", "I", "H", "G", "F", "E", "D"),
    "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
}


class Diamonds(NamedTuple):
    """Inputs ``(53940, 26)`` with text columns one-hot encoded, prices in US dollars, and the input names."""

    inputs: npt.NDArray[np.float64]
    prices: npt.NDArray[np.float64]
    column_names: list[str]


def load_diamonds() -> Diamonds:
    """Read and encode the table (source and licence: ``data/bundled/README.md``).

    Example:
        >>> diamonds = load_diamonds()
        >>> diamonds.inputs.shape, int(diamonds.prices.min()), diamonds.column_names[6]
        ((53940, 26), 326, 'cut=Fair')
    """
    with as_file(files("finitegp.data") / "bundled" / "diamonds.csv.gz") as path:
        table = csv.read_csv(path)
    columns = [table[name].to_numpy().astype(np.float64) for name in NUMERIC_COLUMNS]
    names = list(NUMERIC_COLUMNS)
    for column, categories in CATEGORIES.items():
        values = np.asarray(table[column].to_pylist())
        for category in categories:
            columns.append((values == category).astype(np.float64))
            names.append(f"{column}={category}")
    return Diamonds(np.column_stack(columns), table["price"].to_numpy().astype(np.float64), names)
