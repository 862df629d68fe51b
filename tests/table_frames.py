"""Small tables and a model that is fitted to them in no time: for the tests of tables."""

import numpy as np
import pandas as pd

from finitegp import GPRegressor, TableRegressor
from finitegp.features import LinearFeatures


def make_frame(rows=80, *, seed=0):
    random = np.random.default_rng(seed)
    size = random.uniform(1, 5, rows)
    cut = random.choice(["a", "b", "c"], rows)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 700, rows), unit="D")
    price = 100 + 10 * size + 5 * (cut == "a") + random.normal(size=rows)
    return pd.DataFrame({"size": size, "cut": cut, "day": day.strftime("%d.%m.%Y"), "price": price})


def linear(**parameters):
    """A model that is fitted in no time: linear features, whatever their number."""
    feature_map = parameters.pop("feature_map", LinearFeatures(9))
    return TableRegressor(regressor=GPRegressor(feature_map, algorithm="exact", random_state=0), **parameters)
