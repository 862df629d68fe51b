"""``GPRegressor``: the scikit-learn face."""

from .regressor import GPRegressor

__all__ = ["GPRegressor"]
