"""``GPRegressor``: the scikit-learn estimator."""

from .regressor import GPRegressor, as_regressor

__all__ = ["GPRegressor", "as_regressor"]
