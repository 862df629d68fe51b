"""Measurements behind the figures of the documents, each a module: ``python -m benchmarks.NAME``."""
