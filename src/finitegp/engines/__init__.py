"""Exact passes and batch prediction where the rows already are: ``engines.spark`` and ``engines.dask``.

Each needs its extra, and finitegp on the workers. What they share is in ``engines.partitions``.
"""
