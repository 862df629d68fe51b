"""Memory as an argument: what training and prediction will need, item by item, before they start."""

from .allocator import return_freed_memory
from .bill import Item, Setting
from .byte_sizes import format_bytes, parse_bytes
from .fit_bill import FitSetting
from .fit_plan import FitPlan, plan_fit
from .libraries import load_libraries
from .plan import MemoryBudgetError, MemoryPlan, plan_memory

__all__ = [
    "FitPlan",
    "FitSetting",
    "Item",
    "MemoryBudgetError",
    "MemoryPlan",
    "Setting",
    "format_bytes",
    "load_libraries",
    "parse_bytes",
    "plan_fit",
    "plan_memory",
    "return_freed_memory",
]
