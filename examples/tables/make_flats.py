"""Write the made-up tables of flats that the examples use: ``python examples/tables/make_flats.py``.

They are messy on purpose: text, yes and no, dates, gaps written in several ways, an identifier, a constant column, and
in the second table a district that the first does not have. Rents spread more the larger a flat is.
"""

from __future__ import annotations

import csv
import datetime
import math
import random
from pathlib import Path

HEADER = ["id", "city", "area", "rooms", "district", "heating", "balcony", "listed", "rent"]
PRICES = {"Harbour": 19.0, "Old Town": 17.5, "University": 16.0, "Garden City": 14.0, "Mills": 12.0, "Airport": 10.5}


def make_rows(count: int, *, first: int, seed: int, districts: dict[str, float]) -> list[list[str]]:
    """Flats, numbered from ``first``."""
    generator = random.Random(seed)
    rows = []
    for number in range(first, first + count):
        area = 25 + 110 * generator.random() ** 2
        rooms = max(1, round(area / 25 + generator.uniform(-0.7, 0.7)))
        district = generator.choice(list(districts))
        heating = generator.choice(["gas", "district", "heat pump"])
        balcony = generator.random() < 0.4
        day = generator.randrange(730)
        rent = area * districts[district] * (0.75 + 10 / area) * (1 + 0.03 * math.sin(2 * math.pi * day / 365))
        rent += 45 * balcony + 30 * (heating == "heat pump") + area * generator.gauss(0, 0.8)
        rows.append(
            [
                f"F-{number:05d}",
                "Port Example",
                generator.choice(["n/a", "-"]) if generator.random() < 0.03 else f"{area:.1f}",
                str(rooms),
                district,
                "" if generator.random() < 0.05 else heating,
                "yes" if balcony else "no",
                (datetime.date(2023, 1, 1) + datetime.timedelta(days=day)).isoformat(),
                f"{rent:.0f}",
            ]
        )
    return rows


def write_tables(directory: Path) -> None:
    """Write ``flats.csv`` and ``flats-new.csv``."""
    tables = {
        "flats.csv": make_rows(400, first=1, seed=0, districts=PRICES),
        "flats-new.csv": make_rows(100, first=401, seed=1, districts=PRICES | {"Riverside": 15.0}),
    }
    for name, rows in tables.items():
        with open(directory / name, "w", newline="", encoding="utf-8") as opened:
            csv.writer(opened, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    write_tables(Path(__file__).parent)
