"""``GPRegressor``: the scikit-learn face."""

from .from_fit import as_regressor
from .regressor import GPRegressor

__all__ = ["GPRegressor", "as_regressor"]
