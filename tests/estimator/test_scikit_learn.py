"""GPRegressor inside scikit-learn and MAPIE, with frames and tensors of all kinds."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from estimator_rows import make_rows, quick
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from finitegp import DataError, GPRegressor, TableRegressor


def test_frames_and_tensors_give_identical_results(rows, fitted):
    inputs, targets = rows
    expected = fitted.predict(inputs)
    names = ["size", "rooms"]
    kinds = {
        "pandas": (pd.DataFrame(inputs, columns=names), pd.Series(targets)),
        "polars": (pl.DataFrame(inputs, schema=names), pl.Series(targets)),
        "torch": (torch.from_numpy(inputs), torch.from_numpy(targets).requires_grad_()),
        "list": (inputs.tolist(), targets.tolist()),
    }
    for kind, (table, values) in kinds.items():
        gp = quick().fit(table, values)
        np.testing.assert_array_equal(gp.predict(table), expected, err_msg=kind)
        assert list(getattr(gp, "feature_names_in_", names)) == names
    frame = kinds["pandas"][0]
    gp = quick().fit(frame, targets)
    with pytest.raises(ValueError, match="feature names should match"):
        gp.predict(frame.rename(columns={"rooms": "floors"}))
    with pytest.raises(ValueError, match="in the same order"):
        gp.predict(frame[["rooms", "size"]])
    with pytest.warns(UserWarning, match="valid feature names"), pytest.raises(ValueError, match="2 features"):
        gp.predict(inputs[:, :1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        np.testing.assert_array_equal(gp.predict(kinds["polars"][0]), expected)


def test_clone_keeps_parameters_and_drops_the_fit(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    assert not hasattr(again, "fits_")


def test_pipeline_search_and_cross_validation(rows):
    inputs, targets = rows
    pipeline = make_pipeline(StandardScaler(), quick()).set_output(transform="pandas")
    search = GridSearchCV(pipeline, {"gpregressor__normalize_y": [True, False]}, cv=2, n_jobs=2, error_score="raise")
    search.fit(pd.DataFrame(inputs, columns=["size", "rooms"]), targets)
    assert search.best_score_ > 0.8
    assert list(search.best_estimator_[-1].feature_names_in_) == ["size", "rooms"]
    predictions = cross_val_predict(quick(), inputs, targets, cv=3)
    assert np.corrcoef(predictions, targets)[0, 1] > 0.9


def test_transformed_targets(rows):
    inputs, targets = rows
    gp = TransformedTargetRegressor(quick(), func=np.log, inverse_func=np.exp).fit(inputs, targets)
    assert gp.score(inputs, targets) > 0.8


def test_conformal_intervals_of_mapie_cover(fitted):
    from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

    calibration, test = make_rows(400, seed=11), make_rows(1000, seed=12)
    split = SplitConformalRegressor(fitted, confidence_level=0.9, prefit=True).conformalize(*calibration)
    crossed = CrossConformalRegressor(quick(), confidence_level=0.9, cv=3).fit_conformalize(*make_rows(90))
    for conformal, highest in ((split, 0.96), (crossed, 0.99)):  # few rows in three folds: wider than needed
        _, intervals = conformal.predict_interval(test[0])
        inside = (intervals[:, 0, 0] < test[1]) & (test[1] < intervals[:, 1, 0])
        assert 0.84 < inside.mean() < highest


@pytest.mark.parametrize("make", [quick, lambda: TableRegressor(regressor=quick())])
def test_row_labels_in_another_order_are_named(make):
    inputs, targets = make_rows(40)
    frame, series = pd.DataFrame(inputs).add_prefix("x"), pd.Series(targets)
    mixed = series.sample(frac=1.0, random_state=0)
    with pytest.warns(UserWarning, match="row labels of X in another order, but rows are paired by position"):
        made = make().fit(frame, mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = make().fit(frame, mixed.to_numpy())  # by position, as before
        make().fit(frame, series)
        make().fit(frame.iloc[:20], series.iloc[20:])  # others altogether
    np.testing.assert_array_equal(made.predict(frame), plain.predict(frame))


def test_targets_of_text_are_named(rows):
    with pytest.raises(DataError, match=r"y must be numbers: could not convert string to float: .*'high'"):
        GPRegressor(effort="low").fit(rows[0], ["high"] * len(rows[0]))
