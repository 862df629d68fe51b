"""``GPRegressor``: the scikit-learn face."""

from .regressor import GPRegressor, as_regressor

__all__ = ["GPRegressor", "as_regressor"]
