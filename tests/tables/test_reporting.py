"""Reports on models of tables: in the target's own units, whatever the scale, and by time where there are dates."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from finitegp import GPRegressor, TableRegressor
from finitegp.features import LinearFeatures
from finitegp.tables.hold_out import Judging
from finitegp.tables.judging import fit_and_judge


def make_frame(rows=300, *, seed=0):
    random = np.random.default_rng(seed)
    size = random.uniform(1, 5, rows)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(rows), unit="D")
    price = np.exp(1 + size + 0.2 * random.normal(size=rows))
    return pd.DataFrame({"size": size, "day": day.strftime("%d.%m.%Y"), "price": price}).sample(frac=1, random_state=0)


def linear(columns, **parameters):
    regressor = GPRegressor(LinearFeatures(columns), algorithm="exact", random_state=0)
    return TableRegressor(regressor=regressor, **parameters)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A model of the logarithm, its report, and the report of the same model of a column of logarithms."""
    frame = make_frame()
    training, test = frame[:200], frame[200:]
    model = linear(1, target_scale="log", only=["size"]).fit(training, target="price")
    plain = linear(1, target_scale="identity", only=["size"])
    plain.fit(training.assign(price=np.log(training["price"])), target="price")
    path = tmp_path_factory.mktemp("report") / "r.html"
    contents = model.report(test, path, training=(training, training["price"]))
    logarithms = test.assign(price=np.log(test["price"]))
    other = plain.report(logarithms, training=(training, np.log(training["price"])))
    return model, test, contents, other, path.read_text()


def test_a_report_is_in_the_units_of_the_target(reported):
    model, test, contents, other, page = reported
    assert contents.target_name == "price"
    assert contents.scores[0] == model.evaluate(test)
    assert contents.scores[0].rmse > 5 * other.scores[0].rmse
    assert {each.name for each in contents.scores} == {"this model", "linear", "mean"}
    assert contents.scores[2].rmse == pytest.approx(test["price"].std(ddof=0), rel=0.1)
    points = contents.points
    low, high = model.predict_interval(test, 0.9)
    assert np.isin(points.targets, test["price"]).all()
    np.testing.assert_allclose(np.sort(points.low), np.sort(low), rtol=1e-9)
    np.testing.assert_allclose(np.sort(points.high), np.sort(high), rtol=1e-9)
    # What does not depend on units is the same: PIT, coverage, standardized residuals.
    assert np.array_equal(contents.calibration.bin_counts, other.calibration.bin_counts)
    np.testing.assert_allclose(contents.calibration.observed, other.calibration.observed)
    np.testing.assert_allclose(contents.outliers.standardized, other.outliers.standardized, rtol=1e-6)
    assert contents.outliers.targets.max() > 10
    assert "log; all figures are in the target" in page


def test_densities_of_a_report_are_of_the_target(reported):
    _, test, contents, other, _ = reported
    shift = np.log(test["price"]).mean()
    assert contents.scores[0].nlpd == pytest.approx(other.scores[0].nlpd + shift, abs=1e-6)
    # The marginal likelihood per row is one of prices, by the change of variables.
    ours, theirs = (
        float(each.facts["NLML per training row"].split()[0].replace("−", "-")) for each in (contents, other)
    )
    assert ours - theirs == pytest.approx(np.log(make_frame()[:200]["price"]).mean(), abs=0.02)


def test_a_row_that_the_scale_holds_impossible_is_far_out(reported):
    model, test, *_ = reported
    contents = model.report(test.assign(price=[-1.0, *test["price"][1:]]))
    assert np.isfinite(contents.outliers.standardized).all()
    assert contents.outliers.standardized.min() < -8
    assert stats.norm.cdf(contents.outliers.standardized.min()) < 1e-15


def test_columns_are_in_the_report(reported):
    model, _, contents, _, page = reported
    assert [(each.name, each.relevance) for each in contents.columns] == [
        (line.column, line.relevance) for line in model.columns_
    ]
    assert '<section id="columns"' in page
    assert "relevance" in page


def test_dates_are_judged_by_time_too(tmp_path):
    frame = make_frame()
    # In the last fifth all is different, which random rows do not show.
    days = pd.to_datetime(frame["day"], format="%d.%m.%Y")
    late = days >= days.sort_values().iloc[240]
    frame["price"] = frame["price"].where(~late, frame["price"] + 300)
    fit = fit_and_judge(linear(6, target_scale="identity"), frame, "price", report=tmp_path / "r.html")
    ((how, scores),) = fit.other_scores.items()
    assert how == "The 60 latest rows by 'day', from 2020-08-28 on"
    earlier = linear(6, target_scale="identity").fit(frame[~late], target="price")
    assert scores[0].rmse == pytest.approx(earlier.evaluate(frame[late]).rmse, rel=1e-6)
    assert scores[0].rmse > 1.5 * fit.scores[0].rmse
    assert any("random rows do not show how well later ones are predicted. By a model" in note for note in fit.notes)
    page = (tmp_path / "r.html").read_text()
    assert "The 60 latest rows by" in page
    assert "fitted to the rows before 2020-08-28 alone" in page
    assert fit.model.rows_ == 300
    assert fit.summary()["other_scores"][how][0]["rmse"] == scores[0].rmse
    for judging in (Judging(split_by="day"), Judging(test_fraction=0.0)):
        again = fit_and_judge(linear(6, target_scale="identity"), frame, "price", judging, report=tmp_path / "s.html")
        assert not again.other_scores
