"""Tables of three sites, a model of such a table, and the row sums of the sites."""

from __future__ import annotations

import numpy as np

from finitegp import GPRegressor
from finitegp.features import FourierFeatures
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.model import TableRegressor

COUNTS = (30, 45, 25)


def make_table(count, seed):
    generator = np.random.default_rng(seed)
    size = generator.uniform(1, 5, size=count)
    cut = generator.choice(["fair", "good", "ideal"], size=count)
    price = 100 + 10 * np.sin(size) + 5 * (cut == "ideal") + generator.normal(size=count)
    return {"size": size, "cut": cut.tolist(), "price": price}


def make_model(*, noise="constant", features=None, rows=40):
    table = make_table(rows, seed=100)
    encoder = TableEncoder.fit(table, exclude="price")
    width = len(encoder.feature_names_out)
    regressor = GPRegressor(
        features or FourierFeatures(width, 20, seed=0), algorithm="exact", noise=noise, epochs=5, random_state=0
    )
    return TableRegressor.from_parts(
        regressor.fit(encoder.transform(table), table["price"]), encoder, "price", {"rows": rows}
    )


def make_sites(model):
    return [model.statistics(make_table(count, seed)) for seed, count in enumerate(COUNTS)]
