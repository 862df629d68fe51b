"""A pipeline in two files without pickle: scikit-learn's steps by skops, the regressor by its own ``save``.

``python examples/skops_pipeline.py``; needs ``pip install 'finitegp[skops]'``. skops holds NumPy arrays and refuses
PyTorch's tensors, of which a fitted regressor is made.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PolynomialFeatures, QuantileTransformer

from finitegp import GPRegressor


def save_pipeline(pipeline: Pipeline, directory: Path) -> None:
    """All steps but the last into one file, the regressor into another."""
    import skops.io

    skops.io.dump(pipeline[:-1], directory / "steps.skops")
    pipeline[-1].save(directory / "gp.finitegp")


def load_pipeline(directory: Path) -> Pipeline:
    """The pipeline again; skops refuses types that it does not know to be harmless."""
    import skops.io

    return make_pipeline(skops.io.load(directory / "steps.skops"), GPRegressor.load(directory / "gp.finitegp"))


def main(small: bool = False) -> None:
    """Run the example."""
    import skops.io

    random = np.random.default_rng(0)
    inputs = random.normal(size=(60 if small else 400, 3))
    targets = inputs[:, 0] * inputs[:, 1] + 0.1 * random.normal(size=len(inputs))
    ranks = QuantileTransformer(n_quantiles=50, output_distribution="normal")
    pipeline = make_pipeline(ranks, PolynomialFeatures(2), GPRegressor(effort="low", random_state=0))
    pipeline.fit(inputs, targets)
    try:
        skops.io.dumps(pipeline)
    except (RuntimeError, TypeError) as error:
        print(f"skops alone refuses the regressor: {error}")
    with tempfile.TemporaryDirectory() as name:
        save_pipeline(pipeline, Path(name))
        print("files:", ", ".join(sorted(path.name for path in Path(name).iterdir())))
        again = load_pipeline(Path(name))
    differ = np.abs(again.predict(inputs) - pipeline.predict(inputs)).max()
    print(f"the loaded pipeline predicts the same within {differ:.0e}")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
