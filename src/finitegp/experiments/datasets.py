"""The paper's datasets with its splits, from a directory or from a cache that is filled once."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from ..errors import DataError
from .outcome import Array, DatasetSplit

PAPER_DATASETS = (
    "bike",
    "elevators",
    "keggdirected",
    "keggundirected",
    "kin40k",
    "pol",
    "protein",
    "slice",
    "tamielectric",
)
SMALL_DATASETS = ("autompg", "concrete", "energy", "housing", "wine", "yacht")
NUM_SPLITS = 10
UPSTREAM = "https://raw.githubusercontent.com/treforevans/uci_datasets/f073752/uci_datasets"
