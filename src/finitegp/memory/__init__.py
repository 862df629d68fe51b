"""Memory as an argument: what training and prediction will need, item by item, before they start."""

from .network_plan import plan_memory
from .plan import Item, MemoryBudgetError, MemoryPlan, format_budget, format_bytes, parse_bytes, return_freed_memory

__all__ = [
    "Item",
    "MemoryBudgetError",
    "MemoryPlan",
    "format_budget",
    "format_bytes",
    "parse_bytes",
    "plan_memory",
    "return_freed_memory",
]
