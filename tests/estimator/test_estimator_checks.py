"""scikit-learn's own checks of the estimator contract, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from finitegp import GPRegressor


@parametrize_with_checks(
    [
        GPRegressor(effort="low"),
        GPRegressor(feature_map="fourier", algorithm="exact", effort="low", epochs=20),
        GPRegressor(feature_map="mlp", algorithm="lagged", epochs=20),
    ]
)
def test_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([GPRegressor(), GPRegressor(noise="input", normalize_y=False), GPRegressor("mlp")])
def test_contract_with_default_effort(estimator, check):
    check(estimator)
