"""Total effects of columns, against their closed form."""

import numpy as np
import pytest

from finitegp import GPRegressor, TableRegressor
from finitegp.features import LinearFeatures
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.learning import total_effects
from finitegp.tables.targets import TargetScale


class _Product:
    """A fit that predicts ``a + b c``."""

    def predict_mean(self, inputs):
        import torch

        return torch.from_numpy(inputs[:, 0] + inputs[:, 1] * inputs[:, 2])


def test_total_effects_are_sobols():
    random = np.random.default_rng(0)
    table = {name: random.normal(size=4000) for name in "abc"} | {"idle": random.normal(size=4000)}
    encoder = TableEncoder.fit(table)
    found = total_effects(_Product(), encoder, encoder.transform(table), seed=0)
    # The variance of a + b c is 2: a half is of a, a half of b and c together, which is all theirs in total effects.
    assert [found[name] for name in "abc"] == pytest.approx([0.5, 0.5, 0.5], abs=0.05)
    assert found["idle"] == 0.0


def test_importances_by_column_of_the_table(tmp_path):
    random = np.random.default_rng(0)
    kind = random.choice(["p", "q", "r", "s"], 400)
    size = random.normal(size=400)
    table = {"id": np.arange(400), "size": size, "kind": kind, "price": 3 * size + 4 * (kind == "p")}
    regressor = GPRegressor(LinearFeatures(5), algorithm="exact", random_state=0)
    model = TableRegressor(regressor=regressor, target_scale="identity").fit(table, target="price")
    shares = dict(zip(model.feature_names_in_, model.feature_importances_, strict=True))
    # Variances 9 and 16 p (1 - p), nearly independent.
    other = 16 * (kind == "p").mean() * (kind != "p").mean()
    assert shares["size"] == pytest.approx(9 / (9 + other), abs=0.07)
    assert shares["kind"] == pytest.approx(other / (9 + other), abs=0.07)
    assert shares["id"] == 0.0
    assert {line.column: line.relevance for line in model.columns_} == {"id": None, **model.summary_["total_effects"]}
    model.save(tmp_path / "m.finitegp")
    assert np.array_equal(TableRegressor.load(tmp_path / "m.finitegp").feature_importances_, model.feature_importances_)
    bare = TableRegressor.from_parts(model.regressor_, model.encoder_, "price", scale=TargetScale())
    with pytest.raises(AttributeError, match="measured no effects"):
        _ = bare.feature_importances_
