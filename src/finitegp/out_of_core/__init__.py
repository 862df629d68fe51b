"""A fit without choices of rows that stay on disk, within a memory budget: ``fit_within_memory``."""

from .disk_rows import DiskRows, RandomRows
from .fit import fit_disk_rows, fit_within_memory
from .settings import settings_for

__all__ = ["DiskRows", "RandomRows", "fit_disk_rows", "fit_within_memory", "settings_for"]
