"""What a reader needs to know to rerun a measurement: versions, commit, date, processor and BLAS."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info

import finitegp
from finitegp import __version__

#: Packages whose version every record holds.
COMMON_PACKAGES = ("numpy", "scipy", "scikit-learn")
#: Packages of peers, and Numba: the module of each, and the name under which it is installed.
PEER_PACKAGES = {
    "catboost": "catboost",
    "gpytorch": "gpytorch",
    "laplace": "laplace-torch",
    "lightgbm": "lightgbm",
    "ngboost": "ngboost",
    "numba": "numba",
    "pytabkit": "pytabkit",
    "vbll": "vbll",
    "xgboost": "xgboost",
}


def environment() -> dict[str, Any]:
    """Versions, threads, processor, commit and date; of peers' packages those that this process has loaded."""
    used = [package for module, package in PEER_PACKAGES.items() if module in sys.modules]
    versions = {name: _version(name) for name in (*COMMON_PACKAGES, *used)}
    return {
        "finitegp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "packages": {name: version for name, version in versions.items() if version is not None},
        "threads": torch.get_num_threads(),
        "processor": processor_model(),
        "cores": os.cpu_count(),
        "blas": blas_libraries(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def processor_model() -> str:
    """The model as Linux names it, elsewhere as Python does; ``unknown`` if neither says."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def blas_libraries() -> list[dict[str, Any]]:
    """The BLAS and OpenMP libraries that are loaded now, with their versions and threads.

    Their files are left out: a path says nothing to a reader on another machine.
    """
    names = ("user_api", "internal_api", "version", "num_threads", "architecture")
    found = [{name: library.get(name) for name in names if name in library} for library in threadpool_info()]
    return sorted(found, key=lambda library: json.dumps(library, sort_keys=True))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit of the source that runs, marked if it was changed since; ``unknown`` if finitegp is installed."""
    package, here = Path(finitegp.__file__).parent, Path(__file__).parent
    try:
        commit = _git(["rev-parse", "--short", "HEAD"], package)
        changed = any(_git(["status", "--porcelain", "--", "."], directory) for directory in (package, here))
    except FileNotFoundError:
        return "unknown"
    return f"{commit}-dirty" if commit and changed else commit or "unknown"


def _git(arguments: list[str], directory: Path) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=directory, check=False)
    return done.stdout.strip()
