"""Three sites that may not share rows: each gives its sums away, and the sums make one exact model of all rows.

``python examples/three_sites.py`` (``--small`` for a quick look). A maker of pumps fits a model on its own test bench
and sends the file to three plants, without the rows of the bench in it. With tables in files the command line does the
same:

    finitegp fit bench.csv --target power --no-rows -o pump.finitegp      # at the maker's
    finitegp statistics pump.finitegp north.csv -o north.statistics       # at each plant
    finitegp merge pump.finitegp *.statistics -o joint.finitegp           # at the maker's
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from finitegp import DataError, SiteStatistics, TableRegressor

FLUIDS = ("water", "brine", "oil")


def make_readings(rows: int, seed: int, *, flow: tuple[float, float] = (10, 60)) -> dict[str, np.ndarray]:
    """Flow, pressure and fluid, and the power in kW."""
    generator = np.random.default_rng(seed)
    table = {
        "flow": generator.uniform(*flow, size=rows),
        "pressure": generator.uniform(1, 6, size=rows),
        "fluid": generator.choice(FLUIDS, size=rows),
    }
    efficiency = 0.5 + 0.2 * np.sin(table["flow"] / 12) - 0.05 * (table["fluid"] == "oil")
    power = 0.028 * table["flow"] * table["pressure"] / efficiency
    return table | {"power": power + 0.3 * generator.normal(size=rows)}


def fit_model(table: dict[str, np.ndarray], effort: str) -> TableRegressor:
    """A model of the power that holds no rows."""
    # Readings may fall below zero at another plant, where a logarithm or a root that suits the bench's has no value.
    options = {"target_scale": "identity", "keep_rows": False}
    return TableRegressor(effort=effort, random_state=0, **options).fit(table, target="power")


def main(small: bool = False) -> None:
    """Run the example."""
    effort, rows = ("low", 300) if small else ("medium", 2000)
    bench = make_readings(150 if small else 300, seed=0)
    check = make_readings(500, seed=1)
    # Each plant runs its pumps in a range of its own, so that none of them could fit a model for all.
    plants = {
        "north": make_readings(rows, seed=2, flow=(10, 30)),
        "south": make_readings(rows, seed=3, flow=(25, 45)),
        "west": make_readings(rows, seed=4, flow=(40, 60)),
    }

    def rmse(model: TableRegressor) -> float:
        return float(np.sqrt(np.mean((predict(model) - check["power"]) ** 2)))

    def predict(model: TableRegressor) -> np.ndarray:
        return model.predict(check)

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        model = fit_model(bench, effort)
        model.save(folder / "pump.finitegp")
        print(f"test bench, {len(bench['power'])} rows: RMSE {rmse(model):.3f}")

        # At each plant: the maker's file and the plant's rows go in, a file of sums comes out.
        for name, table in plants.items():
            site = TableRegressor.load(folder / "pump.finitegp").statistics(table)
            site.save(folder / f"{name}.statistics")
            kilobytes = (folder / f"{name}.statistics").stat().st_size / 1000
            print(
                f"{name} gives {site.statistics.num_features} x {site.statistics.num_features} sums, {kilobytes:.0f} kB"
            )

        # At the maker's: no row of any plant is here.
        sites = [SiteStatistics.load(folder / f"{name}.statistics") for name in plants]
        for name, site in zip(plants, sites, strict=True):
            print(f"bench and {name}: RMSE {rmse(model.merge(site)):.3f}")
        joint = model.merge(*sites)
        print(f"bench and all three plants: RMSE {rmse(joint):.3f}")

        # The same as if all rows had been in one place.
        pooled = TableRegressor.load(folder / "pump.finitegp")
        pooled.update({column: np.concatenate([table[column] for table in plants.values()]) for column in bench})
        print(f"predictions within {np.max(np.abs(predict(joint) - predict(pooled))):.0e} of those with pooled rows")

        # Sums of other features mean something else, and a site counts once.
        other = fit_model(make_readings(len(bench["power"]), seed=5), effort)
        for why, wrong in (("of another model", other.statistics(plants["north"])), ("given twice", sites[0])):
            try:
                joint.merge(wrong)
            except DataError as error:
                print(f"statistics {why} are refused:\n  {error}")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
