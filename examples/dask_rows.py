"""An exact posterior of rows in a Dask cluster, and predictions there: two worker processes on this machine.

``python examples/dask_rows.py`` (``--small`` for a quick look); needs ``pip install 'finitegp[dask]'``. On a real
cluster only the first line of ``main`` changes. With Spark it is ``SparkRows`` of ``finitegp.engines.spark``.
"""

from __future__ import annotations

import sys

import dask.array as da
import torch
from distributed import Client, LocalCluster

from finitegp import FeatureGP, FourierFeatures, fit_full_batch
from finitegp.engines.dask import DaskRows


def main(small: bool = False) -> None:
    """Run the example."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        rows = 20_000 if small else 1_000_000
        inputs = da.random.default_rng(0).uniform(-3, 3, size=(rows, 2), chunks=(rows // 8, 2))
        noise = da.random.default_rng(1).normal(scale=0.3, size=rows, chunks=rows // 8)
        targets = da.sin(inputs[:, 0]) * inputs[:, 1] + noise

        # Hyperparameters from a sample in this process ...
        sample = inputs[:1000].compute(), targets[:1000].compute()
        model = FeatureGP(FourierFeatures(2, 100), noise_variance=0.1).double()
        fit_full_batch(model, tuple(map(torch.from_numpy, sample)), max_iterations=30)

        # ... then one pass over all rows on the workers: the best noise, and the exact posterior.
        everything = DaskRows.from_arrays(inputs, targets)
        fitted = everything.condition(model, optimize_noise=True)
        print(f"rows in the posterior: {fitted.posterior.statistics.num_data:,.0f}")
        print(f"noise standard deviation: {model.noise_variance**0.5:.4f}, in truth 0.3")
        print(f"NLML per row: {everything.nlml(model):.4f}")

        predicted = everything.predict(fitted, coverage=0.9)
        inside = ((predicted["lower"] <= targets) & (targets <= predicted["upper"])).mean()
        print(f"intervals hold {100 * float(inside.compute()):.1f} % of the targets")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
