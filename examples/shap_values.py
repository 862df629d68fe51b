"""Which column made this prediction, and which made it uncertain: SHAP values of a ``TableRegressor``.

``python examples/shap_values.py`` (``--small`` for a quick look); needs ``pip install 'finitegp[shap]'``. SHAP takes
functions of numbers: columns of text go through it as the numbers of their categories.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd

from finitegp import TableRegressor


def make_flats(rows: int, seed: int = 0) -> pd.DataFrame:
    """Flats with their rent; the north is dear, the south is rarely seen, and paint does nothing."""
    random = np.random.default_rng(seed)
    flats = pd.DataFrame(
        {
            "size": random.uniform(20, 120, rows),
            "town": random.choice(["north", "centre", "south"], rows, p=[0.48, 0.48, 0.04]),
            "paint": random.choice(["white", "grey"], rows),
        }
    )
    per_metre = flats["town"].map({"north": 14.0, "centre": 11.0, "south": 9.0})
    flats["rent"] = flats["size"] * per_metre + 40 * random.normal(size=rows)
    return flats


def through_codes(table: pd.DataFrame, predict: Callable[[pd.DataFrame], np.ndarray]):
    """The table with numbers in place of text, and the function of such rows."""
    categories = {name: pd.Index(table[name].unique()) for name in table if table[name].dtype.kind not in "fiu"}
    codes = table.assign(**{name: known.get_indexer(table[name]) for name, known in categories.items()})

    def by_codes(rows: np.ndarray) -> np.ndarray:
        values = pd.DataFrame(rows, columns=table.columns)
        return predict(values.assign(**{name: known[values[name].astype(int)] for name, known in categories.items()}))

    return codes.to_numpy(float), by_codes


def main(small: bool = False) -> None:
    """Run the example."""
    import shap

    flats = make_flats(120 if small else 1000)
    table = flats.drop(columns="rent")
    model = TableRegressor(effort="low", random_state=0, target_scale="identity").fit(table, flats["rent"])
    asked = pd.DataFrame({"size": [110.0, 25.0, 70.0], "town": ["north", "centre", "south"], "paint": ["grey"] * 3})
    everything = pd.concat([asked, table], ignore_index=True)
    shown = {
        "rent": lambda rows: model.predict(rows),
        "its standard deviation": lambda rows: model.predict(rows, return_std=True)[1],
    }
    for what, predict in shown.items():
        codes, by_codes = through_codes(everything, predict)
        explainer = shap.Explainer(by_codes, codes[3 : 33 if small else 103], seed=0)
        found = explainer(codes[:3])
        left = np.abs(found.values.sum(axis=1) + found.base_values - by_codes(codes[:3])).max()
        print(f"{what}: {found.base_values[0]:.1f} on average; the parts add up to the prediction within {left:.0e}")
        for row, parts in zip(asked.itertuples(), found.values, strict=True):
            named = ", ".join(f"{name} {part:+.1f}" for name, part in zip(table, parts, strict=True))
            print(f"  {row.size:.0f} m2, {row.town}: {named}")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
