"""Memory as an argument: what training and prediction will need, item by item, before they start."""

from .allocator import return_freed_memory
from .bill import Item, Setting
from .byte_sizes import format_budget, format_bytes, parse_bytes
from .fit_bill import FitSetting
from .fit_plan import plan_fit
from .kernel_plan import KernelSetting, plan_kernel_fit
from .plan import MemoryBudgetError, MemoryPlan, plan_memory
from .prediction_plan import PredictionSetting, plan_prediction

__all__ = [
    "FitSetting",
    "Item",
    "KernelSetting",
    "MemoryBudgetError",
    "MemoryPlan",
    "PredictionSetting",
    "Setting",
    "format_budget",
    "format_bytes",
    "parse_bytes",
    "plan_fit",
    "plan_kernel_fit",
    "plan_memory",
    "plan_prediction",
    "return_freed_memory",
]
